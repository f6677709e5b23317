"""`cobalt try`: services, sample, repair, evaluate, report and viewer for a file of problems.

This module checks the input and starts the services; `cobalt.commands.try_steps` is the command that uses them.
"""

import dataclasses
import json
import sys
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic.dataclasses import dataclass

from cobalt.episode import TruncatedThinking
from cobalt.rollout.multi_turn import RepairSettings
from cobalt.rollout.single_turn import SampleSettings
from cobalt.stage.run import Flag


@dataclass(frozen=True)
class Arguments:
    """Run everything on a file of problems: draw programs, let the model repair them, measure them on hidden tests.

    A problem needs `id`, `question` and `test_cases` ({"inputs": [...], "outputs": [...]}). Where a problem has neither
    `public_test_cases` nor `hidden_test_cases`, its first tests become public (--public_tests) and the rest hidden.
    Starts the judge and an engine on this machine, and stops them at the end. Running the same command again continues.
    """

    problems: tyro.conf.Positional[Path]
    """Problems: a file (JSONL, JSON array or Parquet, also compressed by gzip)."""
    model: str
    """Model folder or hub name; it needs a chat template."""
    output_dir: Annotated[Path, Flag(None, "-o")] = Path("runs/try")
    """Folder of the results."""
    num_completions: Annotated[int, Flag(None, "-n")] = 4
    """Samples for each problem."""
    turns: int = 3
    """Turns of repair after the first program."""
    public_tests: int = 4
    """Number of tests that become public in a problem without a split; at least one test stays hidden."""
    limit: int | None = None
    """Work on the first so many problems alone."""
    ids: tuple[str, ...] = ()
    """Work on the problems with these ids alone; of them the first, with a limit."""
    prompts: str | None = None
    """Prompt set: paper (the default), pocket, program, or a folder with system.jinja, first_turn.jinja and
    feedback.jinja. Refused if problems have the field instruction in other words."""
    max_tokens: int = 8192
    """Maximum number of tokens in one response."""
    temperature: float = 0.6
    """Sampling temperature."""
    top_p: float = 0.95
    """Nucleus sampling probability."""
    enable_thinking: bool = False
    """Show later turns only the answer of each response, without the thinking."""
    truncated_thinking: TruncatedThinking = "keep"
    """With enable_thinking, what later turns see of a response that was cut off inside its thinking."""
    seed: int = 0
    """Seed of the run."""
    judge: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the judge, as key=value; may be given several times."""
    engine: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the engine, as key=value, such as max_model_len=4096; may be given several times."""

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
        names = ("num_completions", "temperature", "top_p", "max_tokens", "prompts", "seed")
        return {name: getattr(self, name) for name in (*names, "enable_thinking", "truncated_thinking")}


def main(arguments: Arguments) -> int:
    """Check the input, start the services and run the steps; returns the exit code."""
    from cobalt.datasets.split_tests import split_problem_file
    from cobalt.problems.problem import load_problems
    from cobalt.serving import services

    sampling, repair = arguments.sample_settings(), arguments.repair_settings()  # a wrong flag is found before all else
    beside = services.Arguments(
        command=[sys.executable, "-m", "cobalt.commands.try_steps", for_steps(arguments)],
        model=arguments.model,
        judge=arguments.judge,
        engine=arguments.engine,
    )
    described = services.check(beside)
    for settings in (sampling, repair):
        settings.check_earlier(described)
    source = dataclasses.replace(sampling, input_file=arguments.problems, limit=arguments.limit, ids=arguments.ids)
    chosen = source.chosen(load_problems(source.input_file))
    source.check_wording(chosen)
    split_problem_file(arguments.problems, arguments.result("problems.jsonl"), arguments.public_tests, chosen)
    sampling.with_input()
    return services.run_beside_services(beside)


def for_steps(arguments: Arguments) -> str:
    """The arguments as JSON, without those of the services, which may hold a secret."""
    values = dataclasses.asdict(arguments) | {"judge": [], "engine": []}
    return json.dumps(values, default=str)
