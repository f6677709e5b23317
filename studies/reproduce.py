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
        at, lines, steps, ft = self._at, self._lines, self._at.scale.steps, self._ft
        longer = steps // 4  # than rows of equal examples take, in case that the time of FT-Cobalt allows for more
        self._world()
        self._evaluate(BASE)
        self._collect("cobalt", self._base)
        lines.rows("ft_rows", "single", self._train_problems, self._dev, at.data("ft"), self._base, "--prompts pocket")
        self._train("ft", "grpo_single_turn", self._base, 4 * steps)
        self._export("ft", steps, FT)
        self._export("ft", 2 * steps, FT_MORE)
        self._evaluate(FT)
        self._collect("ft_cobalt", ft)
        self._cut("ft_cobalt", ft)
        self._train("ft_cobalt", "grpo_multi_turn", ft, steps)
        self._export("ft_cobalt", steps, FT_COBALT)
        self._evaluate(FT_COBALT)
        self._evaluate(FT_MORE)
        for slug, method in (("grpo_mt", GRPO_MT), ("verpo_mt", VERPO_MT)):
            flags = f"--episodes {POCKET.partition(' --max_tokens')[0]}"
            lines.rows(f"{slug}_rows", "single", self._train_problems, self._dev, at.data(slug), self._base, flags)
            self._train(slug, slug, self._base, steps + longer, save_every=1)
            self._export(slug, 3 * steps // 4, method)
            self._evaluate(method)
        self._cut("cobalt", self._base)
        self._train("cobalt", "grpo_multi_turn", self._base, 2 * steps + longer, save_every=1)
        self._export("cobalt", 2 * steps, COBALT_OWN)
        self._evaluate(COBALT_OWN)
        self._perturbed_training()
        self._second_round()
        self._train("cobalt_ft", "grpo_multi_turn", self._base, 2 * steps, data="ft_cobalt")
        for method, trained in ((COBALT_HALF, steps), (COBALT, 2 * steps)):
            self._export("cobalt_ft", trained, method)
            self._evaluate(method)
        for method in EQUAL_TIME:
            self._export_in_time(method)
            self._evaluate(method)
        return lines.steps

    def _world(self) -> None:
        at, scale, lines, base = self._at, self._at.scale, self._lines, self._base
        flags = f"--demonstrations {scale.demonstrations} --open_share {OPEN_SHARE:g}"
        lines.world(at.world, f"{flags} --test_problems {scale.test_problems}")
        # Training runs of veRL want development problems, though these do not validate.
        dev, use = problems(at.world, "dev"), "development problems"
        lines.head("dev_problems", use, min(32, scale.test_problems), dev, self._dev)
        use = "the problems that trajectories are collected for"
        lines.head("collected_problems", use, scale.collection_problems, self._train_problems, self._collected)
        purpose, run = "Collect the seed model's trajectories on these problems.", at.home / "validation_collection"
        lines.write("validation_collection", purpose, self._dev, run, base, "--turns 2 -n 1")
        lines.prompts("validation_prompts", run, self._validation, base, "--prompts pocket --is_test")

    def _train(
        self, slug: str, method: str, policy: Path, steps: int, save_every: int | None = None, data: str | None = None
    ) -> None:
        at, purpose = self._at, f"Train, {steps} steps ({method})."
        settings = f"{length(steps, save_every=save_every or at.scale.save_every)} {_SETTINGS}"
        rows, run = at.data(data or slug), at.training(slug)
        self._lines.train(f"{slug}_training", purpose, method, rows, policy, run, settings)

    def _export(self, slug: str, step: int, method: Method) -> None:
        self._lines.export(f"{method.slug}_model", self._at.training(slug), step, self._at.model(method))

    def _export_in_time(self, method: Method) -> None:
        at, prepared, ((slug, _),) = self._at, method.prepared, method.trained
        line = "python -m studies.equal_time --study {folder} --run {run} --budget_runs {runs} --budget_steps {steps}"
        # Where nothing was collected, the rows of problems take a moment, and count on neither side.
        spent = prepared if len(prepared) > 1 else ()
        self._lines.add(
            f"{method.slug}_model",
            "Export the last checkpoint that fits into the time of FT-Cobalt.",
            f"{line} {'--spent_steps {spent}' if spent else ''} --output_dir {{output}}",
            at.model(method),
            needs=tuple(at.training(name) / METRICS for name in dict.fromkeys(("ft", "ft_cobalt", slug))),
            folder=at.folder,
            run=at.training(slug),
            runs=tuple(f"{at.training(name)}@{at.scale.steps}" for name, _ in FT_COBALT.trained),
            steps=tuple(at.step(name) for name in FT_COBALT.prepared[1:]),
            spent=tuple(map(at.step, spent)),
            output=at.model(method),
        )

    def _evaluate(self, method: Method) -> None:
        at, lines, model, test = self._at, self._lines, self._at.model(method), problems(self._at.world, "test")
        purpose = f"Evaluate {method.name} ({method.slug}) on the test problems."
        lines.write(f"{method.slug}_test", purpose, test, at.evaluation(method), model, "-n 1")
        if method.perturbed:
            purpose = f"Evaluate {method.name} under impossible feedback, and extract its hacking events."
            lines.write(f"{method.slug}_perturbed", purpose, test, at.perturbed(method), model, "-n 1 --perturbed")

    def _collect(self, slug: str, model: Path) -> None:
        purpose, run = "Collect trajectories for training.", self._at.collection(slug)
        self._lines.write(f"{slug}_collection", purpose, self._collected, run, model, "--turns 2 -n 4")

    def _cut(self, slug: str, policy: Path) -> None:
        at, prompts = self._at, self._at.data(slug) / "prompts.jsonl"
        self._lines.prompts(f"{slug}_prompts", at.collection(slug), prompts, policy, "--prompts pocket")
        self._lines.rows(f"{slug}_rows", "multi", prompts, self._validation, at.data(slug), policy)

    def _perturbed_training(self) -> None:
        """FT-Cobalt-PTB: FT-Cobalt's prompts, and a copy of each with impossible feedback."""
        at, lines, slug, collection = self._at, self._lines, FT_COBALT_PTB.slug, self._at.collection("ft_cobalt")
        perturbed, prompts = at.data(slug) / "perturbed.jsonl", at.data(slug) / "prompts.jsonl"
        lines.perturb(f"{slug}_problems", collection, perturbed)
        flags = "--prompts pocket --perturbed_ratio 1 --perturbed_file {perturbed}"
        lines.prompts(f"{slug}_prompts", collection, prompts, self._ft, flags, perturbed=perturbed)
        lines.rows(f"{slug}_rows", "multi", prompts, self._validation, at.data(slug), self._ft)
        self._train(slug, "grpo_multi_turn", self._ft, at.scale.steps)
        self._export(slug, at.scale.steps, FT_COBALT_PTB)
        self._evaluate(FT_COBALT_PTB)

    def _second_round(self) -> None:
        """FT-Cobalt in two rounds: the first half of its run, and one on trajectories of the policy reached by then."""
        at, half = self._at, self._at.scale.steps // 2
        reached = at.home / "models" / "ft_cobalt_2_rounds_1"
        self._lines.export(reached.name + "_model", at.training("ft_cobalt"), half, reached)
        self._collect(SECOND_ROUND, reached)
        self._cut(SECOND_ROUND, reached)
        self._train(SECOND_ROUND, "grpo_multi_turn", reached, half)
        self._export(SECOND_ROUND, half, TWO_ROUNDS)
        self._evaluate(TWO_ROUNDS)


@dataclass(frozen=True)
class Arguments(SeedsFlags):
    """Compare base, FT, Cobalt, GRPO-MT, VeRPO-MT and their variants on the pocket world, several seeds, two cores.

    Takes more than an hour for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for; seeds can be added to the same folder later."""
    folder, flags = arguments.folder("reproduce"), arguments.shared
    results = folder / "RESULTS.md"
    steps = [step for seed in arguments.seeds for step in _SeedPlan(SeedFolders(folder, seed, arguments.fast)).build()]
    last = Lines(0, inputs=[file for step in steps for file in step.files])
    line = "python -m studies.results {folder} {flags} --output_file {results}"
    last.add("results", "Write the tables and plots.", line, results, folder=folder, flags=flags, results=results)
    again = arguments.again("python", "-m", "studies.reproduce", str(folder))
    return Study("reproduce", folder, {"fast": arguments.fast}, (*steps, *last.steps), again, f"done: {results}")


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
