"""A plan as command lines: steps in order, each a line that says itself what the step needs.

`Lines.add` takes any line; the other methods have the lines that studies share.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cobalt.report.curves import METRICS
from cobalt.report.runs import EVALUATION
from cobalt.serving.services import ServiceFlags
from cobalt.stage.errors import UserError
from cobalt.training.configuration import TrainingSettings
from studies.plan import Step, Study

EVENTS = "events.jsonl"
"""The hacking events in a folder of scripts/multi_turn.sh with impossible feedback."""

VALIDATION_PROMPTS = "validation_prompts.jsonl"

POCKET = "--prompts pocket --enable_thinking --truncated_thinking drop --max_tokens 512"
"""Flags by which policies of the pocket world are sampled."""

_CHOICES = {
    "grpo_single_turn": ("problems", "single_turn", "grpo"),
    "grpo_multi_turn": ("partial_trajectories", "single_turn", "grpo"),
    "grpo_mt": ("episodes", "multi_turn", "grpo"),
    "verpo_mt": ("episodes", "multi_turn_until_solved", "verpo"),
}
"""The data, rollout and estimator that each of the scripts train_METHOD.sh chooses."""

NO_VALIDATION = "trainer.test_freq=-1 trainer.val_before_train=false"
_HEAD = 'mkdir -p "$(dirname "$3")" && head -n "$1" "$2" >"$3"'


def problems(world: Path, split: str) -> Path:
    """The problems of a split of a pocket world: "train", "dev" or "test"."""
    return world / "data" / f"{split}.jsonl"


def length(steps: int, *, save_every: int | None = None, validate_every: int | None = None) -> str:
    """Settings of a training run: its steps, and those between checkpoints (None: the last) and validations (None)."""
    saved, validation = save_every or steps, f"trainer.test_freq={validate_every}" if validate_every else NO_VALIDATION
    return f"trainer.total_training_steps={steps} trainer.total_epochs={steps} trainer.save_freq={saved} {validation}"


Word = str | Path | tuple[str, ...]
"""A part of a command line: words, or one path, which may have blanks, or words that may have blanks."""


class Lines:
    """Steps in order.

    Args:
        seed: Of samples and of the order of training.
        inputs: Files and folders that are there before.
        sampling: Flags of sampling, of every policy.
        data_source: In the rows for veRL.
        services: Settings of the engine and of the judge (`ServiceFlags`) of steps that have a model.
        prefix: Of the names of all steps.
        profile: Of training runs; those of "paper" have the paper's judge.

    Raises UserError if the seed is negative.
    """

    def __init__(
        self,
        seed: int,
        *,
        inputs: Iterable[Path] = (),
        sampling: str = POCKET,
        data_source: str | None = "pocket",
        services: Mapping[str, Any] | None = None,
        prefix: str = "",
        profile: str = "pocket",
    ) -> None:
        if seed < 0:
            raise UserError(f"the seed is {seed}: it must be 0 or more")
        self.steps: list[Step] = []
        self._inputs = tuple(inputs)
        self._made, self._services, self._prefix, self._profile = [*self._inputs], services or {}, prefix, profile
        self._seed, self._sampled = seed, f"{sampling} --seed {seed}"
        self._source = f"--data_source {data_source}" if data_source else ""

    def add(
        self,
        name: str,
        purpose: str,
        *line: Word,
        makes: Iterable[Path],
        model: Path | None = None,
        needs: tuple[Path, ...] | None = None,
        shown: bool = False,
    ) -> None:
        """A step, which needs all of the words of its line, and all that lies in them, that earlier steps have made.

        Args:
            name: Of the step.
            purpose: Purpose of the step, in a sentence.
            line: Its command.
            makes: Files and folders that it makes.
            model: Of the engine that it needs, with a judge; None: it needs neither.
            needs: Files and folders that it needs, where its line names more; None: see above.
            shown: Whether its output is shown on the terminal.
        """
        parts = (
            part.split() if isinstance(part, str) else (str(part),) if isinstance(part, Path) else part for part in line
        )
        words = tuple(word for part in parts for word in part)
        read = {model, *(Path(part) for word in words for part in (word, word.partition("=")[2].strip("'")) if part)}
        if needs is None:
            needs = tuple(path for path in self._made if not read.isdisjoint((path, *path.parents[:-1])))
        services = ServiceFlags(model=str(model), **self._services) if model else None
        self.steps.append(Step(f"{self._prefix}{name}", purpose, words, tuple(makes), needs, services, shown))
        self._made += self.steps[-1].files

    def world(self, world: Path, flags: str) -> None:
        """A pocket world and its seed model, which a later step measures."""
        purpose = "Make the pocket world's problems, and train its seed model (base)."
        line = ("python -m cobalt.pocket --output_dir", world, f"--seed {self._seed} {flags}")
        made = (*(problems(world, split) for split in ("train", "dev", "test")), world / "model")
        self.add("pocket_world", purpose, *line, makes=made)

    def head(self, name: str, count: int, source: Path, file: Path) -> None:
        """The first `count` lines of a file, as a file of their own."""
        line = ("bash -c", (_HEAD,), f"first_problems {count}", source, file)
        self.add(name, f"Choose the first {count} lines of {source}.", *line, makes=[file])

    def write(self, name: str, source: Path, run: Path, model: Path, flags: str) -> None:
        """Trajectories of a model on a file of problems, evaluated on hidden tests.

        With `--perturbed` among the flags feedback comes from impossible tests, and hacking events are extracted.
        """
        perturbed = "--perturbed" in flags.split()
        files = (run / EVALUATION, *((run / EVENTS,) if perturbed else ()))
        purpose = "Write trajectories, evaluate them" + (", and extract hacking events." if perturbed else ".")
        line = ("bash scripts/multi_turn.sh", source, run, self._sampled, flags)
        self.add(name, purpose, *line, makes=files, model=model)

    def sample(self, name: str, source: Path, file: Path, model: Path, flags: str) -> None:
        """Judged first programs of a model on a file of problems."""
        line = ("python run_single_turn_vllm.py --input_file", source, "--output_file", file, self._sampled, flags)
        self.add(name, "Write first programs, and judge them.", *line, makes=[file], model=model)

    def rows(
        self, name: str, kind: str, train: Path, validation: Path, folder: Path, policy: Path, flags: str = ""
    ) -> None:
        """Rows for veRL, of problems (`kind` "single") or of contextual prompts ("multi")."""
        script = f"python preproc/verl_preproc_{kind}_turn.py"
        files = ("--train_file", train, "--validation_file", validation, "--local_dir", folder, "--model_name", policy)
        made = (folder / "train.parquet", folder / "validation.parquet")
        self.add(name, "Write the rows for veRL.", script, *files, flags, self._source, makes=made)

    def prompts(self, name: str, run: Path, file: Path, policy: Path, *flags: Word) -> None:
        """Contextual prompts from the trajectories of a run; prompts are measured by the tokens of `policy`."""
        line = ("python preproc/process_multi_turn_taco.py --input_file", run / EVALUATION, "--output_file", file)
        self.add(name, "Cut trajectories into prompts.", *line, *flags, "--model_name", policy, makes=[file])

    def perturbed(self, slug: str, run: Path, folder: Path, policy: Path, validation: Path) -> None:
        """Rows for GRPO on the partial trajectories of a run, and on a copy of each with impossible feedback."""
        copies, prompts = folder / "perturbed.jsonl", folder / "prompts.jsonl"
        line = ("python preproc/run_perturbation.py -i", run / EVALUATION, "-o", copies)
        self.add(f"{slug}_problems", "Make two public tests of each problem impossible.", *line, makes=[copies])
        flags = "--prompts pocket --perturbed_ratio 1 --perturbed_file"
        self.prompts(f"{slug}_prompts", run, prompts, policy, flags, copies)
        self.rows(f"{slug}_rows", "multi", prompts, validation, folder, policy)

    def download(self, name: str, hub: str, model: Path) -> None:
        """A model of the hub, in a folder of its own."""
        line = (f"env HF_HUB_OFFLINE=0 hf download {hub} --local-dir", model)
        self.add(name, f"Download {hub}.", *line, makes=[model])

    def train(self, name: str, method: str, data: Path, policy: Path, run: Path, overrides: str) -> None:
        """A training run of veRL; `method` is that of scripts/train_METHOD.sh."""
        settings, variables = f"data.seed={self._seed} {overrides}", "env COBALT_JUDGE_PAPER=true "
        paths = ("--data_dir", data, "--model", policy, "--output_dir", run, f"--profile {self._profile}")
        line = (f"{variables * (self._profile == 'paper')}bash scripts/train_{method}.sh", *paths, settings)
        self.add(name, f"Train the policy ({method}).", *line, makes=[run / "model", run / METRICS])
        chosen: dict[str, Any] = dict(zip(("data", "rollout", "estimator"), _CHOICES[method], strict=True))
        training = TrainingSettings(data, str(policy), run, tuple(settings.split()), scale=self._profile, **chosen)
        self.steps[-1] = replace(self.steps[-1], training=training)

    def train_offline(self, name: str, estimator: str, data: Path, policy: Path, run: Path, *settings: Word) -> None:
        """A run of offline training."""
        paths = ("--data_dir", data, "--model", policy, "--output_dir", run)
        line = ("bash scripts/train_offline_rl.sh", *paths, f"--estimator {estimator} data.seed={self._seed}")
        self.add(name, f"Train offline ({estimator}).", *line, *settings, makes=[run / "model", run / METRICS])

    def export(self, name: str, run: Path, step: int, model: Path) -> None:
        """The policy of a training run after a number of steps, as a folder of its own."""
        line = ("python -m cobalt.training.export --run_dir", run, f"--step {step} --output_dir", model)
        self.add(name, f"Export the policy after {step} steps.", *line, makes=[model])

    def report(
        self, name: str, runs: Mapping[str, Path], folder: Path, events: Mapping[str, Path] | None = None
    ) -> None:
        """Tables and plots of evaluated runs, by their names; `events` are files with their hacking events."""
        hacking = ("--hacking", *_named(events)) if events else ()
        line = ("python -m cobalt.report", _named(runs), hacking, "-o", folder)
        self.add(name, f"Compare {', '.join(runs)}.", *line, makes=[folder / "report.md"], shown=True)

    def curves(self, run: Path, folder: Path) -> None:
        """A page with the curves and rollouts of a training run, as `cobalt watch` shows them."""
        line = ("python -m cobalt.report.watch", run, "-o", folder / f"{run.name}.html")
        self.add(f"{run.name}_page", "Write the page of a training run.", *line, makes=line[-1:])

    def study(self, name: str, folder: Path, arguments: Mapping[str, Any], closing: str) -> Study:
        """The study of these steps."""
        return Study(name, folder, arguments, tuple(self.steps), closing, inputs=self._inputs)


def _named(paths: Mapping[str, Path]) -> tuple[str, ...]:
    return tuple(f"{name}={path}" for name, path in paths.items())
