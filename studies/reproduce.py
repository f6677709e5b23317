"""The comparison of all methods on the pocket world (`python -m studies.reproduce`).

For each seed: a world with open sentences and its seed model (base), then every method from the same seed model,
evaluated on the test problems over eight rounds of feedback. `studies.results` makes the tables. Two views are
equally fair, and both are made:

- equal examples: each method is trained on as many responses as the others, or a few more: an online trajectory of
  three responses is three examples;
- equal time: each method is trained until it has taken as much time as FT-Cobalt, with the collection of its
  trajectories (`studies.equal_time`).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.pocket.open_sentences import OPEN_SHARE
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies import pocket
from studies.flags import check_seeds, list_or_run
from studies.methods import (
    BASE,
    COBALT,
    COBALT_HALF,
    COBALT_OWN,
    COBALT_OWN_TIME,
    FAST,
    FT,
    FT_COBALT,
    FT_COBALT_PTB,
    FT_MORE,
    FT_TIME,
    FULL,
    GRPO_MT,
    GRPO_MT_TIME,
    ROUNDS,
    VERPO_MT,
    VERPO_MT_TIME,
    Method,
    Scale,
    SeedFolders,
    check_rounds,
    methods,
    round_slug,
    rounds_method,
)
from studies.plan import Step, Study

SETTINGS = (
    "actor_rollout_ref.actor.optim.lr=4e-4",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.1",
)
"""Of every training run, chosen on the development problems of seed 100, which is not reported (docs/RESULTS.md)."""


class _SeedPlan:
    """The steps of one seed, in order."""

    def __init__(self, folders: SeedFolders, scale: Scale, ptb_ratio: float, rounds: Sequence[int]) -> None:
        self._at, self._scale, self._seed = folders, scale, folders.seed
        self._ptb_ratio, self._numbers_of_rounds = ptb_ratio, rounds
        self.steps: list[Step] = []
        # More than the view of equal examples takes, in case that the time of FT-Cobalt allows for more.
        self._longer = scale.steps // 4
        self._base = pocket.world_model(folders.world)
        self._dev = folders.home / "dev_problems.jsonl"
        self._collected = folders.home / "collected_problems.jsonl"
        self._validation = folders.home / "validation_prompts.jsonl"

    def build(self) -> tuple[Step, ...]:
        """The whole plan of the seed."""
        at, steps = self._at, self._scale.steps
        # Steps that need the same model stand together, and share one start of the services.
        self._world()
        self._evaluate(BASE)
        self._collect("cobalt", self._base)
        self.steps.append(pocket.problem_rows(at.step("ft_rows"), at.world, self._dev, at.data("ft")))
        # One run has FT, FT with Cobalt's steps added, and what FT reaches in Cobalt's time.
        self._train("ft", "grpo_single_turn", self._base, 4 * steps)
        self._checkpoint("ft", steps, FT)
        self._checkpoint("ft", 2 * steps, FT_MORE)
        self._evaluate(FT)
        ft = at.model(FT)
        self._collect("ft_cobalt", ft)
        self._cut("ft_cobalt", ft)
        self._train("ft_cobalt", "grpo_multi_turn", ft, steps)
        self._checkpoint("ft_cobalt", steps, FT_COBALT)
        self._evaluate(FT_COBALT)
        self._evaluate(FT_MORE)
        self._train_online("grpo_mt", GRPO_MT)
        self._train_online("verpo_mt", VERPO_MT)
        self._cut("cobalt", self._base)
        self._train("cobalt", "grpo_multi_turn", self._base, 2 * steps + self._longer, save_every=1)
        self._checkpoint("cobalt", 2 * steps, COBALT_OWN)
        self._evaluate(COBALT_OWN)
        self._perturbed_training(ft)
        for rounds in self._numbers_of_rounds:
            self._rounds(ft, rounds)
        self._train("cobalt_ft", "grpo_multi_turn", self._base, 2 * steps, data="ft_cobalt")
        for method, length in ((COBALT_HALF, steps), (COBALT, 2 * steps)):
            self._checkpoint("cobalt_ft", length, method)
            self._evaluate(method)
        for slug, method, spent in (
            ("ft", FT_TIME, ()),
            ("cobalt", COBALT_OWN_TIME, ("cobalt_collection", "cobalt_prompts", "cobalt_rows")),
            ("grpo_mt", GRPO_MT_TIME, ()),
            ("verpo_mt", VERPO_MT_TIME, ()),
        ):
            self._in_equal_time(slug, method, spent)
            self._evaluate(method)
        return tuple(self.steps)

    def _world(self) -> None:
        at, scale = self._at, self._scale
        flags = ("--demonstrations", f"{scale.demonstrations}", "--open_share", f"{OPEN_SHARE:g}")
        world = pocket.pocket_world(at.world, self._seed, *flags, "--test_problems", f"{scale.test_problems}")
        collected = self._at.home / "validation_collection"
        self.steps += [
            _named(world, at.step("pocket_world")),
            pocket.first_problems(
                at.step("dev_problems"),
                "Choose development problems: training runs of veRL want some, though these do not validate.",
                min(32, scale.test_problems),
                pocket.problems(at.world, "dev"),
                self._dev,
            ),
            pocket.first_problems(
                at.step("collected_problems"),
                "Choose the problems that trajectories are collected for.",
                scale.collection_problems,
                pocket.problems(at.world, "train"),
                self._collected,
            ),
            pocket.trajectories(
                at.step("validation_collection"),
                "Collect the seed model's trajectories on the development problems.",
                self._dev,
                collected,
                self._base,
                self._seed,
                samples=1,
                turns=2,
            ),
            pocket.contextual_prompts(
                at.step("validation_prompts"), collected, self._validation, self._base, is_test=True
            ),
        ]

    def _train(
        self, slug: str, method: str, model: Path, steps: int, save_every: int | None = None, data: str | None = None
    ) -> None:
        at = self._at
        self.steps.append(
            pocket.training(
                at.step(f"{slug}_training"),
                f"Train, {steps} steps ({method}).",
                method,
                at.data(data or slug),
                model,
                at.training(slug),
                steps,
                self._seed,
                save_every=save_every or self._scale.save_every,
                validate_every=None,
                settings=SETTINGS,
            )
        )

    def _checkpoint(self, slug: str, step: int, method: Method) -> None:
        at = self._at
        self.steps.append(pocket.checkpoint(at.step(f"{method.slug}_model"), at.training(slug), step, at.model(method)))

    def _evaluate(self, method: Method) -> None:
        at = self._at
        purposes = [(f"Evaluate {method.name} ({method.slug}) on the test problems.", "test", at.evaluation(method))]
        if method.perturbed:
            purpose = f"Evaluate {method.name} under impossible feedback, and extract its hacking events."
            purposes.append((purpose, "perturbed", at.perturbed(method)))
        for purpose, kind, run in purposes:
            self.steps.append(
                pocket.trajectories(
                    at.step(f"{method.slug}_{kind}"),
                    purpose,
                    pocket.problems(at.world, "test"),
                    run,
                    at.model(method),
                    self._seed,
                    samples=1,
                    perturbed=kind == "perturbed",
                )
            )

    def _collect(self, slug: str, model: Path) -> None:
        at = self._at
        self.steps.append(
            pocket.trajectories(
                at.step(f"{slug}_collection"),
                "Collect trajectories for training.",
                self._collected,
                at.collection(slug),
                model,
                self._seed,
                samples=4,
                turns=2,
            )
        )

    def _cut(self, slug: str, model: Path) -> None:
        at = self._at
        prompts = at.data(slug) / "prompts.jsonl"
        self.steps += [
            pocket.contextual_prompts(at.step(f"{slug}_prompts"), at.collection(slug), prompts, model),
            pocket.multi_turn_rows(at.step(f"{slug}_rows"), prompts, self._validation, at.data(slug), model),
        ]

    def _train_online(self, slug: str, method: Method) -> None:
        at = self._at
        self.steps.append(
            pocket.problem_rows(at.step(f"{slug}_rows"), at.world, self._dev, at.data(slug), episodes=True)
        )
        ((_, share),) = method.trained
        assert share is not None
        self._train(slug, slug, self._base, self._scale.steps + self._longer, save_every=1)
        self._checkpoint(slug, int(share * self._scale.steps), method)
        self._evaluate(method)

    def _perturbed_training(self, ft: Path) -> None:
        """FT-Cobalt-PTB: FT-Cobalt's prompts, and a copy of each with impossible feedback."""
        at, slug = self._at, "ft_cobalt_ptb"
        collected = pocket.evaluation_file(at.collection("ft_cobalt"))
        perturbed, prompts = at.data(slug) / "perturbed.jsonl", at.data(slug) / "prompts.jsonl"
        self.steps += [
            Step(
                at.step(f"{slug}_problems"),
                "Make two public tests of each problem of FT's trajectories impossible.",
                ("python", "preproc/run_perturbation.py", "-i", str(collected), "-o", str(perturbed)),
                files=(perturbed,),
                needs=(collected,),
            ),
            pocket.contextual_prompts(
                at.step(f"{slug}_prompts"),
                at.collection("ft_cobalt"),
                prompts,
                ft,
                perturbed=perturbed,
                perturbed_ratio=self._ptb_ratio,
            ),
            pocket.multi_turn_rows(at.step(f"{slug}_rows"), prompts, self._validation, at.data(slug), ft),
        ]
        self._train(slug, "grpo_multi_turn", ft, self._scale.steps)
        self._checkpoint(slug, self._scale.steps, FT_COBALT_PTB)
        self._evaluate(FT_COBALT_PTB)

    def _rounds(self, ft: Path, rounds: int) -> None:
        """FT-Cobalt in rounds: each after the first one trains on trajectories of the policy reached by then."""
        at, method, length = self._at, rounds_method(rounds), self._scale.steps // rounds
        run = "ft_cobalt"  # The first round is the first part of FT-Cobalt's own run.
        for number in range(2, rounds + 1):
            reached = at.home / "models" / f"{method.slug}_{number - 1}"
            step = at.step(f"{method.slug}_{number - 1}_model")
            self.steps.append(pocket.checkpoint(step, at.training(run), length, reached))
            run = round_slug(rounds, number)
            self._collect(run, reached)
            self._cut(run, reached)
            self._train(run, "grpo_multi_turn", reached, length)
        self._checkpoint(run, length, method)
        self._evaluate(method)

    def _in_equal_time(self, slug: str, method: Method, spent: tuple[str, ...]) -> None:
        at, steps = self._at, self._scale.steps
        run, output = at.training(slug), at.model(method)
        budget_runs = (f"{at.training('ft')}@{steps}", f"{at.training('ft_cobalt')}@{steps}")
        budget_steps = [at.step(f"ft_cobalt_{part}") for part in ("collection", "prompts", "rows")]
        command = ("python", "-m", "studies.equal_time", "--study", str(at.folder), "--run", str(run))
        already = ("--spent_steps", *map(at.step, spent)) if spent else ()
        budget = ("--budget_runs", *budget_runs, "--budget_steps", *budget_steps)
        self.steps.append(
            Step(
                at.step(f"{method.slug}_model"),
                "Export the last checkpoint that fits into the time of FT-Cobalt.",
                (*command, *budget, *already, "--output_dir", str(output)),
                files=(output,),
                needs=tuple(pocket.metrics_file(at.training(name)) for name in sorted({"ft", "ft_cobalt", slug})),
            )
        )


def _named(step: Step, name: str) -> Step:
    return Step(name, step.purpose, step.command, step.files, step.needs, step.services)


def study_of(
    folder: Path, seeds: tuple[int, ...], *, fast: bool, ptb_ratio: float, rounds: tuple[int, ...], results: Path
) -> Study:
    """The study of some seeds and numbers of rounds; more can be added to the same folder later."""
    scale = FAST if fast else FULL
    steps: list[Step] = []
    for seed in seeds:
        steps += _SeedPlan(SeedFolders(folder, seed, fast), scale, ptb_ratio, rounds).build()
    evaluated = [
        pocket.evaluation_file(SeedFolders(folder, seed, fast).evaluation(method))
        for seed in seeds
        for method in methods(rounds)
    ]
    flags: tuple[str, ...] = ("--fast",) if fast else ()
    if rounds != ROUNDS:
        flags += ("--rounds", *map(str, rounds))
    command = ("python", "-m", "studies.results", str(folder), "--seeds", *map(str, seeds), *flags)
    steps.append(
        Step(
            "results",
            "Write the tables and plots.",
            (*command, "--output_file", str(results)),
            files=(results,),
            needs=tuple(evaluated),
        )
    )
    again = ["python", "-m", "studies.reproduce", str(folder), "--seeds", *map(str, seeds), *flags]
    if ptb_ratio != 1:
        again += ["--ptb_ratio", f"{ptb_ratio:g}"]
    if results != folder / "RESULTS.md":
        again += ["--results", str(results)]
    return Study(
        "reproduce", folder, {"fast": fast, "ptb_ratio": ptb_ratio}, tuple(steps), shlex.join(again), f"done: {results}"
    )


@dataclass(frozen=True)
class Arguments:
    """Compare base, FT, Cobalt, GRPO-MT, VeRPO-MT and their variants on the pocket world, several seeds, two cores.

    Takes more than an hour for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """

    output_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[OUTPUT_DIR]")] = None
    """Folder of the study; runs/reproduce by default."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each has a world, a seed model and samples of its own. Seeds can be added later."""
    fast: bool = False
    """Run every step with a weaker seed model and too few problems and training steps to learn anything."""
    ptb_ratio: float = 1.0
    """Of FT-Cobalt-PTB: prompts with impossible feedback for each of FT-Cobalt's, 0.01 to 1."""
    rounds: tuple[int, ...] = ROUNDS
    """Rows of FT-Cobalt in so many rounds of collection; one is the paper's. They can be added later."""
    results: Path | None = None
    """The file of tables to write; RESULTS.md in the folder of the study by default."""
    list_steps: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Print the steps and which of them are done, and stop."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    seeds = check_seeds(arguments.seeds)
    if not 0.01 <= arguments.ptb_ratio <= 1:
        raise UserError(f"--ptb_ratio {arguments.ptb_ratio}: give a number from 0.01 to 1")
    folder = arguments.output_dir or Path("runs") / ("reproduce_fast" if arguments.fast else "reproduce")
    results = arguments.results or folder / "RESULTS.md"
    rounds = check_rounds(arguments.rounds, FAST if arguments.fast else FULL)
    return study_of(folder, seeds, fast=arguments.fast, ptb_ratio=arguments.ptb_ratio, rounds=rounds, results=results)


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: list_or_run(study(arguments), list_only=arguments.list_steps))
