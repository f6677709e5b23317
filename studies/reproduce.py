"""The comparison of all methods on the pocket world (`python -m studies.reproduce`).

For each seed: a world with open sentences and its seed model (base), then every method from the same seed model,
evaluated on the test problems over eight rounds of feedback. `studies.results` makes the tables. Two views are
equally fair, and both are made:

- equal examples: each method is trained on as many responses as the others, or a few more: an online trajectory of
  three responses is three examples;
- equal time: each method is trained until it has taken as much time as FT-Cobalt, with the collection of its
  trajectories (`studies.equal_time`).
"""

from dataclasses import dataclass
from pathlib import Path

from cobalt.pocket.open_sentences import OPEN_SHARE
from cobalt.report.curves import METRICS
from cobalt.stage.cli import run_script
from studies.flags import SeedsFlags
from studies.lines import POCKET, Lines, length, problems
from studies.methods import (
    BASE,
    COBALT,
    COBALT_HALF,
    COBALT_OWN,
    EQUAL_TIME,
    FT,
    FT_COBALT,
    FT_COBALT_PTB,
    FT_MORE,
    GRPO_MT,
    SECOND_ROUND,
    STEPS,
    TWO_ROUNDS,
    VERPO_MT,
    Method,
    SeedFolders,
)
from studies.plan import Step, Study

_SETTINGS = "actor_rollout_ref.actor.optim.lr=4e-4 actor_rollout_ref.actor.use_kl_loss=true"
_SETTINGS += " actor_rollout_ref.actor.kl_loss_coef=0.1"
"""Of every training run, chosen on the development problems of seed 100, which is not reported (docs/RESULTS.md)."""


class _SeedPlan:
    """The steps of one seed, in order."""

    def __init__(self, at: SeedFolders) -> None:
        self._at, self._lines = at, Lines(at.seed, prefix=at.step(""))
        self._base, self._ft = at.model(BASE), at.model(FT)
        self._dev, self._validation = at.home / "dev_problems.jsonl", at.home / "validation_prompts.jsonl"
        self._collected, self._train_problems = at.home / "collected_problems.jsonl", problems(at.world, "train")

    def build(self) -> list[Step]:
        """The whole plan. Steps that need the same model stand together, and share one start of the services."""
        base, ft = self._base, self._ft
        longer = STEPS // 4  # than rows of equal examples take, in case that the time of FT-Cobalt allows for more
        self._world()
        self._row(BASE)
        self._collect("cobalt", base)
        self._problem_rows("ft", "--prompts pocket")
        self._train("ft", "grpo_single_turn", base, 4 * STEPS)
        self._row(FT)
        self._collect("ft_cobalt", ft)
        self._cut("ft_cobalt", ft)
        self._train("ft_cobalt", "grpo_multi_turn", ft, STEPS)
        self._row(FT_COBALT)
        self._row(FT_MORE)
        for method in (GRPO_MT, VERPO_MT):
            self._problem_rows(method.slug, f"--episodes {POCKET.partition(' --max_tokens')[0]}")
            self._train(method.slug, method.slug, base, STEPS + longer, save_every=1)
            self._row(method)
        self._cut("cobalt", base)
        self._train("cobalt", "grpo_multi_turn", base, 2 * STEPS + longer, save_every=1)
        self._row(COBALT_OWN)
        ptb, collection = FT_COBALT_PTB.slug, self._at.collection("ft_cobalt")
        self._lines.perturbed(ptb, collection, self._at.data(ptb), ft, self._validation)
        self._train(ptb, "grpo_multi_turn", ft, STEPS)
        self._row(FT_COBALT_PTB)
        self._second_round()
        self._train("cobalt_ft", "grpo_multi_turn", base, 2 * STEPS, data="ft_cobalt")
        for method in (COBALT_HALF, COBALT, *EQUAL_TIME):
            self._row(method)
        return self._lines.steps

    def _world(self) -> None:
        at, lines, base = self._at, self._lines, self._base
        flags = f"--demonstrations 8000 --open_share {OPEN_SHARE:g} --test_problems 120"
        lines.world(at.world, flags)
        # Training runs of veRL want development problems, though these do not validate.
        dev, use = problems(at.world, "dev"), "development problems"
        lines.head("dev_problems", use, 32, dev, self._dev)
        use = "the problems that trajectories are collected for"
        lines.head("collected_problems", use, 300, self._train_problems, self._collected)
        purpose, run = "Collect the seed model's trajectories on these problems.", at.home / "validation_collection"
        lines.write("validation_collection", purpose, self._dev, run, base, "--turns 2 -n 1")
        lines.prompts("validation_prompts", run, self._validation, base, "--prompts pocket --is_test")

    def _train(
        self, slug: str, method: str, policy: Path, steps: int, save_every: int = 4, data: str | None = None
    ) -> None:
        at, purpose = self._at, f"Train, {steps} steps ({method})."
        settings = f"{length(steps, save_every=save_every)} {_SETTINGS}"
        rows, run = at.data(data or slug), at.training(slug)
        self._lines.train(f"{slug}_training", purpose, method, rows, policy, run, settings)

    def _row(self, method: Method) -> None:
        """The policy of a row, exported from its last training run, and its evaluations."""
        at, lines, model, test = self._at, self._lines, self._at.model(method), problems(self._at.world, "test")
        for slug, share in method.trained[-1:]:
            if share is not None:
                lines.export(f"{method.slug}_model", at.training(slug), int(share * STEPS), model)
                continue
            line = ("python -m studies.equal_time --study", at.folder, "--output_dir", model)
            flags = f"--seed {at.seed} --row {method.slug}"
            purpose = "Export the last checkpoint that fits into the time of FT-Cobalt."
            needs = tuple(at.training(name) / METRICS for name in dict.fromkeys(("ft", "ft_cobalt", slug)))
            lines.add(f"{method.slug}_model", purpose, *line, flags, makes=[model], needs=needs)
        purpose = f"Evaluate {method.name} ({method.slug}) on the test problems."
        lines.write(f"{method.slug}_test", purpose, test, at.evaluation(method), model, "-n 1")
        if method.perturbed:
            purpose = f"Evaluate {method.name} under impossible feedback, and extract its hacking events."
            lines.write(f"{method.slug}_perturbed", purpose, test, at.perturbed(method), model, "-n 1 --perturbed")

    def _problem_rows(self, slug: str, flags: str) -> None:
        train, folder = self._train_problems, self._at.data(slug)
        self._lines.rows(f"{slug}_rows", "single", train, self._dev, folder, self._base, flags)

    def _collect(self, slug: str, model: Path) -> None:
        purpose, run = "Collect trajectories for training.", self._at.collection(slug)
        self._lines.write(f"{slug}_collection", purpose, self._collected, run, model, "--turns 2 -n 4")

    def _cut(self, slug: str, policy: Path) -> None:
        at, prompts = self._at, self._at.data(slug) / "prompts.jsonl"
        self._lines.prompts(f"{slug}_prompts", at.collection(slug), prompts, policy, "--prompts pocket")
        self._lines.rows(f"{slug}_rows", "multi", prompts, self._validation, at.data(slug), policy)

    def _second_round(self) -> None:
        """FT-Cobalt in two rounds: the first half of its run, and one on trajectories of the policy reached by then."""
        at, half = self._at, STEPS // 2
        reached = at.home / "models" / "ft_cobalt_2_rounds_1"
        self._lines.export(reached.name + "_model", at.training("ft_cobalt"), half, reached)
        self._collect(SECOND_ROUND, reached)
        self._cut(SECOND_ROUND, reached)
        self._train(SECOND_ROUND, "grpo_multi_turn", reached, half)
        self._row(TWO_ROUNDS)


@dataclass(frozen=True)
class Arguments(SeedsFlags):
    """Compare base, FT, Cobalt, GRPO-MT, VeRPO-MT and their variants on the pocket world, several seeds, two cores.

    Takes more than an hour for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for; seeds can be added to the same folder later."""
    folder = arguments.output_dir or Path("runs/reproduce")
    steps = [step for seed in arguments.seeds for step in _SeedPlan(SeedFolders(folder, seed)).build()]
    last = Lines(0, inputs=[file for step in steps for file in step.files])
    last.tables("studies.results", folder, arguments.shared)
    return Study("reproduce", folder, {}, (*steps, *last.steps), f"done: {folder / 'RESULTS.md'}")


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
