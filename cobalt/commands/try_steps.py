"""The steps of `cobalt try` on running services: sample, repair, evaluate, report, viewer, and the table at the end."""

import asyncio
import shlex
from dataclasses import dataclass

import tyro
from pydantic import TypeAdapter
from rich.console import Console

from cobalt.commands import try_problems
from cobalt.rollout.evaluate import TurnsOutcome, TurnsSettings, evaluate_turns
from cobalt.rollout.multi_turn import repair
from cobalt.rollout.single_turn import sample
from cobalt.stage.entry import run_command
from cobalt.stage.run import Outcome


@dataclass(frozen=True)
class Arguments:
    """Run the steps of `cobalt try` with the services that are running. `cobalt try` starts this."""

    settings: tyro.conf.Positional[str]
    """The arguments of `cobalt try`, as JSON."""


def main(given: Arguments) -> int:
    """Run every step that is not finished, and return the exit code."""
    from cobalt.report.plots import plot_turns
    from cobalt.report.runs import read_run
    from cobalt.report.terminal import turn_table
    from cobalt.report.viewer.page import write_viewer
    from cobalt.report.write import write_report

    arguments = TypeAdapter(try_problems.Arguments).validate_json(given.settings)
    evaluation = arguments.result("evaluation.jsonl")

    async def run() -> tuple[Outcome, TurnsOutcome] | None:
        """The three steps that need services, in one event loop; None if problems failed."""
        if (await sample(arguments.sample_settings())).failed:
            return None
        repaired = await repair(settings := arguments.repair_settings())
        if repaired.failed:
            return None
        measured = await evaluate_turns(TurnsSettings(settings.output_file, evaluation))
        return None if measured.failed else (repaired, measured)

    outcomes = asyncio.run(run())
    if outcomes is None:
        return 1
    repaired, measured = outcomes
    plot_turns({arguments.output_dir.name: measured.metrics}, arguments.result("pass_at_1.png"))
    evaluated = read_run(arguments.output_dir.name, evaluation)
    report = write_report([evaluated], arguments.result("report"))
    page = arguments.result("view.html")
    write_viewer({arguments.output_dir.name: evaluation}, page)
    console = Console(highlight=False)
    console.print(turn_table(measured.metrics, title=f"Pass@1 by turn, hidden tests: {evaluated.model}"))
    for line in repaired.tables:
        console.print(line, markup=False, soft_wrap=True)
    console.print(
        f"every program and verdict: {page} (opens in a browser)\n"
        f"tables and plots: {report}\n"
        f"next: run it with another --model and another -o, then compare both:"
        f" cobalt report {shlex.quote(str(arguments.output_dir))} OTHER -o report"
        " (runs with other --turns or -n compare with --allow turns samples)",
        markup=False,
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    run_command("cobalt.commands.try_steps")
