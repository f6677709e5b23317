"""A plan as command lines: steps in order, each a line that says itself what the step needs.

`Lines.add` takes any line; the other methods have the lines that studies share.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cobalt.report.curves import METRICS
from cobalt.report.runs import EVALUATION
from cobalt.training.configuration import TrainingSettings
from studies.plan import Services, Step

EVENTS = "events.jsonl"
"""The hacking events in a folder of scripts/multi_turn.sh with impossible feedback."""

VALIDATION_PROMPTS = "validation_prompts.jsonl"

POCKET = "--prompts pocket --enable_thinking --truncated_thinking drop --max_tokens 512"
"""How policies of the pocket world are sampled."""

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


def row_files(folder: Path) -> tuple[Path, Path]:
    """The rows for veRL in a folder."""
    return folder / "train.parquet", folder / "validation.parquet"


def length(steps: int, *, save_every: int | None = None, validate_every: int | None = None) -> str:
    """Settings of a training run: its steps, and those between checkpoints (None: the last) and validations (None)."""
    saved, validation = save_every or steps, f"trainer.test_freq={validate_every}" if validate_every else NO_VALIDATION
    return f"trainer.total_training_steps={steps} trainer.total_epochs={steps} trainer.save_freq={saved} {validation}"


class Lines:
    """Steps in order.

    Args:
        seed: Of samples and of the order of training.
        inputs: Files and folders that are there before.
        sampling: Flags of sampling, of every policy.
        data_source: In the rows for veRL.
        services: Settings of the engine and of the judge (`Services`) of steps that have a model.
        prefix: Of the names of all steps.
    """

    def __init__(
        self,
        seed: int,
        *,
        inputs: Iterable[Path] = (),
        sampling: str = POCKET,
        data_source: str | None = "pocket",
        services: Mapping[str, tuple[str, ...]] | None = None,
        prefix: str = "",
    ) -> None:
        self.steps: list[Step] = []
        self._made, self._services, self._prefix = list(inputs), services or {}, prefix
        self._shared = {"seed": seed, "sampling": tuple(sampling.split())}
        self._source = f"--data_source {data_source}" if data_source else ""

    def add(
        self,
        name: str,
        purpose: str,
        line: str,
        *files: Path,
        model: Path | None = None,
        needs: tuple[Path, ...] | None = None,
        shown: bool = False,
        **values: Any,
    ) -> None:
        """A step, which needs all of the words of its line, and all that lies in them, that earlier steps have made.

        Args:
            name: Of the step.
            purpose: What it does, in a sentence.
            line: Its command. It is split into words before the names in braces are replaced, so that paths may have
                blanks.
            files: What it makes.
            model: Of the engine that it needs, with a judge; None: it needs neither.
            needs: What it needs, where its line names more; None: see above.
            shown: Whether its output is shown on the terminal.
            values: What stands for the names in the line; a tuple for a word that is one name has several words.
        """
        words = tuple(_words(line, self._shared | values))
        read = {model, *(Path(part) for word in words for part in (word, word.partition("=")[2].strip("'")) if part)}
        if needs is None:
            needs = tuple(path for path in self._made if not read.isdisjoint((path, *path.parents[:-1])))
        services = Services(model, **self._services) if model else None
        self.steps.append(Step(f"{self._prefix}{name}", purpose, words, files, needs, services, shown))
        self._made += files

    def world(self, world: Path, flags: str) -> None:
        """A pocket world and its seed model, which a later step measures."""
        files = (*(problems(world, split) for split in ("train", "dev", "test")), world / "model")
        line = f"python -m cobalt.pocket --output_dir {{world}} --seed {{seed}} {flags}"
        purpose = "Make the problems of the pocket world and train its seed model (base)."
        self.add("pocket_world", purpose, line, *files, world=world)

    def head(self, name: str, use: str, count: int, source: Path, file: Path) -> None:
        """The first `count` lines of a file, as a file of their own."""
        line = "bash -c {script} first_problems {count} {source} {file}"
        self.add(name, f"Choose {use}.", line, file, script=_HEAD, count=count, source=source, file=file)

    def write(self, name: str, purpose: str, source: Path, run: Path, model: Path, flags: str) -> None:
        """Trajectories of a model on a file of problems, evaluated on hidden tests.

        With `--perturbed` among the flags feedback comes from impossible tests, and hacking events are extracted.
        """
        line = f"bash scripts/multi_turn.sh {{source}} {{run}} {{sampling}} --seed {{seed}} {flags}"
        files = (run / EVALUATION, *((run / EVENTS,) if "--perturbed" in flags.split() else ()))
        self.add(name, purpose, line, *files, model=model, source=source, run=run)

    def sample(self, name: str, purpose: str, source: Path, file: Path, model: Path, flags: str) -> None:
        """Judged first programs of a model on a file of problems."""
        line = "python run_single_turn_vllm.py --input_file {source} --output_file {file} {sampling} --seed {seed}"
        self.add(name, purpose, f"{line} {flags}", file, model=model, source=source, file=file)

    def rows(
        self, name: str, kind: str, train: Path, validation: Path, folder: Path, policy: Path, flags: str = ""
    ) -> None:
        """Rows for veRL, of problems (`kind` "single") or of contextual prompts ("multi")."""
        line = f"python preproc/verl_preproc_{kind}_turn.py --train_file {{train}} --validation_file {{validation}}"
        line += f" --local_dir {{folder}} --model_name {{policy}} {flags} {self._source}"
        paths: dict[str, Any] = {"train": train, "validation": validation, "folder": folder, "policy": policy}
        self.add(name, "Write the rows for veRL.", line, *row_files(folder), **paths)

    def prompts(self, name: str, run: Path, file: Path, policy: Path, flags: str, **values: Any) -> None:
        """Contextual prompts from the trajectories of a run; prompts are measured by the tokens of `policy`."""
        line = f"python preproc/process_multi_turn_taco.py --input_file {{source}} --output_file {{file}} {flags}"
        values |= {"source": run / EVALUATION, "file": file, "policy": policy}
        self.add(name, "Cut the trajectories into contextual prompts.", line + " --model_name {policy}", file, **values)

    def cut(self, name: str, train_run: Path, dev_run: Path, folder: Path, policy: Path) -> None:
        """Rows for GRPO on the partial trajectories of a run, validated on those of `dev_run`."""
        purpose = "Select trajectories, cut them into contextual prompts and write these as rows for veRL."
        files = (folder / "prompts.jsonl", folder / VALIDATION_PROMPTS, *row_files(folder))
        paths = tuple(map(str, (train_run, dev_run, folder, policy)))
        self.add(name, purpose, "bash scripts/cut_trajectories.sh {paths}", *files, paths=paths)

    def perturb(self, name: str, run: Path, file: Path) -> None:
        """The problems of a run's trajectories, with two public tests of each made impossible."""
        purpose = "Make two public tests of each problem of FT's trajectories impossible."
        line = "python preproc/run_perturbation.py -i {source} -o {file}"
        self.add(name, purpose, line, file, source=run / EVALUATION, file=file)

    def train(
        self,
        name: str,
        purpose: str,
        method: str,
        data: Path,
        policy: Path,
        run: Path,
        overrides: str,
        *,
        profile: str = "pocket",
        environment: str = "",
    ) -> None:
        """A training run of veRL; `method` is that of scripts/train_METHOD.sh."""
        line = f"{environment} bash scripts/train_{method}.sh --data_dir {{data}} --model {{policy}}"
        line += f" --output_dir {{run}} --profile {profile} data.seed={{seed}} {overrides}"
        self.add(name, purpose, line, run / "model", run / METRICS, data=data, policy=policy, run=run)
        step = self.steps[-1]
        chosen: dict[str, Any] = dict(zip(("data", "rollout", "estimator"), _CHOICES[method], strict=True))
        settings = step.command[step.command.index("--profile") + 2 :]
        training = TrainingSettings(data, str(policy), run, settings, scale=profile, **chosen)
        self.steps[-1] = replace(step, training=training)

    def train_offline(
        self, name: str, estimator: str, data: Path, policy: Path, run: Path, settings: str, **values: Any
    ) -> None:
        """A run of offline training."""
        line = "bash scripts/train_offline_rl.sh --data_dir {data} --model {policy} --output_dir {run}"
        line += f" --estimator {estimator} data.seed={{seed}} {settings}"
        values |= {"data": data, "policy": policy, "run": run}
        self.add(name, f"Train offline ({estimator}).", line, run / "model", run / METRICS, **values)

    def export(self, name: str, run: Path, step: int, model: Path) -> None:
        """The policy of a training run after a number of steps, as a folder of its own."""
        line = f"python -m cobalt.training.export --run_dir {{run}} --step {step} --output_dir {{model_dir}}"
        self.add(name, f"Export the policy after {step} steps.", line, model, run=run, model_dir=model)

    def report(
        self, name: str, purpose: str, runs: Mapping[str, Path], folder: Path, events: Mapping[str, Path] | None = None
    ) -> None:
        """Tables and plots of evaluated runs, by their names; `events` are files with their hacking events."""
        hacking = ("--hacking", *_named(events)) if events else ()
        line, file = "python -m cobalt.report {runs} {hacking} -o {folder}", folder / "report.md"
        self.add(name, purpose, line, file, shown=True, runs=_named(runs), hacking=hacking, folder=folder)

    def curves(self, run: Path, folder: Path) -> None:
        """A page with the curves and rollouts of a training run, as `cobalt watch` shows them."""
        name, file = run.name, folder / f"{run.name}.html"
        line = "python -m cobalt.report.watch {run} -o {file}"
        self.add(f"{name}_page", "Write the page of a training run.", line, file, run=run, file=file)


def _words(line: str, values: Mapping[str, object]) -> Iterator[str]:
    for word in line.split():
        value = values.get(word[1:-1])
        if isinstance(value, tuple):
            yield from value
        else:
            yield word.format(**values)


def _named(paths: Mapping[str, Path]) -> tuple[str, ...]:
    return tuple(f"{name}={path}" for name, path in paths.items())
