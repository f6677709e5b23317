"""`cobalt try`: sample, repair, evaluate, report and viewer for a file of problems, with one engine and one judge."""

import dataclasses
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic.dataclasses import dataclass

from cobalt.datasets.split_tests import split_problem_file
from cobalt.engine.model_check import check_model, model_path
from cobalt.engine.model_name import fingerprint
from cobalt.engine.opening import EngineOnUse, engine_urls
from cobalt.judge.opening import open_judge
from cobalt.problems.problem import load_problems
from cobalt.report.runs import read_run
from cobalt.report.terminal import turn_table
from cobalt.report.viewer.page import write_viewer
from cobalt.report.write import write_report
from cobalt.rollout.evaluate import TurnsOutcome, TurnsSettings, evaluate_turns
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.shared import SamplingFlags
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.manifest import check_made_with
from cobalt.stage.run import Flag, Outcome, quoted
from cobalt.stage.serve_state import Services
from cobalt.stage.service_flags import EngineFlags, EngineKind, JudgeFlags


@dataclass(frozen=True)
class _Files:
    problems: tyro.conf.Positional[Path]
    """Problems: a file (JSONL, JSON array or Parquet, also compressed by gzip)."""
    output_dir: Annotated[Path, Flag(None, "-o")] = Path("runs/try")
    """Folder of the results."""
    num_completions: Annotated[int, Flag(None, "-n")] = 4
    """Samples for each problem."""


@dataclass(frozen=True)
class Arguments(SamplingFlags, EngineFlags, JudgeFlags, _Files):
    """Run everything on a file of problems: draw programs, let the model repair them, measure them on hidden tests.

    A problem needs `id`, `question` and `test_cases` ({"inputs": [...], "outputs": [...]}). Where a problem has neither
    `public_test_cases` nor `hidden_test_cases`, its first tests become public (--public_tests) and the rest hidden.
    The engine is vLLM in this process (--model) or behind a URL (--engine_url), and so is the judge. A running `cobalt
    serve` is used where nothing else is named. Running the same command again continues.
    """

    model: str | None = None
    """Model folder or hub name; it needs a chat template."""
    engine_kind: EngineKind | None = field(default=None, init=False)
    """No flag: a provider's model has `cobalt sample`, `repair` and `evaluate`."""

    turns: int = 3
    """Turns of repair after the first program."""
    public_tests: int = 4
    """Number of tests that become public in a problem without a split; at least one test stays hidden."""
    limit: int | None = None
    """Work on the first so many problems alone."""

    def services(self) -> Services:
        """The services that the steps need."""
        return "judge and engine"

    def result(self, name: str) -> Path:
        """A file of the output folder."""
        return self.output_dir / name

    def sample_settings(self) -> SampleSettings:
        """The settings of the first turn.

        Raises:
            UserError: a flag is out of range.
        """
        return SampleSettings(self.result("problems.jsonl"), self.result("single_turn.jsonl"), **self._of_both())

    def repair_settings(self) -> RepairSettings:
        """The settings of the later turns; see `sample_settings`."""
        return RepairSettings(
            self.result("single_turn.jsonl"), self.result("multi_turn.jsonl"), turns=self.turns, **self._of_both()
        )

    def _of_both(self) -> dict[str, Any]:
        names = [field.name for base in (SamplingFlags, JudgeFlags) for field in dataclasses.fields(base)]
        names += ["model", "engine_url", "engine", "num_completions"]
        return {name: getattr(self, name) for name in names if name != "ids"}


async def main(arguments: Arguments) -> Outcome:
    """Check the input and run every step that is not finished, with one engine and one judge."""
    sampling, repairing = arguments.sample_settings(), arguments.repair_settings()
    if arguments.model is not None and not engine_urls(arguments.engine_url):
        check_model(arguments.model)
        # A finished run starts no engine that would notice that it is of another model.
        for settings in (sampling, repairing):
            check_made_with(settings.output_file, {"engine": _identity(arguments.model)})
    source = dataclasses.replace(sampling, input_file=arguments.problems, limit=arguments.limit, ids=arguments.ids)
    chosen = source.chosen(load_problems(source.input_file))
    source.check_wording(chosen)
    by = {"limit": arguments.limit, "ids": arguments.ids}
    split_problem_file(arguments.problems, sampling.input_file, arguments.public_tests, chosen, **by)
    evaluation = arguments.result("evaluation.jsonl")
    async with open_judge(arguments.judge_url, arguments.judge) as judge:
        async with EngineOnUse(sampling.opened) as engine:
            sampled = await sample(sampling, engine, judge)
            repaired = sampled if sampled.failed else await repair(repairing, engine, judge)
        if repaired.failed:
            return repaired
        measured = await evaluate_turns(TurnsSettings(repairing.output_file, evaluation), judge)
    return measured if measured.failed else _reported(arguments, repaired, measured)


def _identity(model: str) -> dict[str, str]:
    """Identity of a model in this process, for manifests; the model is not loaded for it."""
    path = model_path(model)
    return {"model": path.resolve().name, "fingerprint": fingerprint(path.resolve())} if path else {"model": model}


def _reported(arguments: Arguments, repaired: Outcome, measured: TurnsOutcome) -> Outcome:
    """Write report and viewer; the outcome of the whole."""
    name, evaluation = arguments.output_dir.name, arguments.result("evaluation.jsonl")
    evaluated = read_run(name, evaluation)
    report = write_report([evaluated], arguments.result("report"))
    page = arguments.result("view.html")
    write_viewer({name: evaluation}, page)
    return Outcome(
        tables=[
            turn_table(measured.metrics, title=f"Pass@1 by turn, hidden tests: {evaluated.model}"),
            *repaired.tables,
            f"tables and plots: {report}",
        ],
        wrote=f"{page}, which shows every program and verdict in a browser",
        next="run it with another --model and another -o, then compare both:"
        f" cobalt report {quoted(arguments.output_dir)} OTHER -o report"
        " (runs with other --turns or -n compare with --allow turns samples)",
    )
