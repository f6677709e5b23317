"""The steps of `cobalt try` on running services: sample, repair, evaluate, report, viewer, and the table at the end."""

import asyncio
import shlex

from rich.console import Console

from cobalt.commands.try_problems import Arguments
from cobalt.rollout.flags import sampling
from cobalt.rollout.multi_turn import MultiTurnSettings
from cobalt.rollout.single_turn import SingleTurnSettings
from cobalt.stage.entry import run_command


def rollout_settings(arguments: Arguments) -> tuple[SingleTurnSettings, MultiTurnSettings]:
    """The settings of both rollouts.

    Raises:
        UserError: a flag is out of range.
    """
    generation = sampling(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        max_tokens=arguments.max_tokens,
        n=arguments.num_completions,
        seed=arguments.seed,
    )
    first = SingleTurnSettings(
        arguments.result("problems.jsonl"),
        arguments.result("single_turn.jsonl"),
        generation,
        prompts=arguments.prompts,
    )
    later = MultiTurnSettings(
        first.output_file,
        arguments.result("multi_turn.jsonl"),
        generation,
        turns=arguments.turns,
        enable_thinking=arguments.enable_thinking,
        truncated_thinking=arguments.truncated_thinking,
        prompts=arguments.prompts,
    )
    return first, later


def main(arguments: Arguments) -> int:
    """Run every step that is not finished, and return the exit code."""
    from cobalt.commands.ending import CutOff
    from cobalt.commands.eval_multi_turn import measure
    from cobalt.engine.vllm_client import ServeEngine
    from cobalt.episode.record import read_trajectories
    from cobalt.judge import ServeJudge
    from cobalt.report.plots import plot_turns
    from cobalt.report.runs import recorded_model
    from cobalt.report.turns import turn_table
    from cobalt.report.viewer.page import write_viewer
    from cobalt.report.write import write_report
    from cobalt.rollout.evaluate import run_evaluation
    from cobalt.rollout.multi_turn import run_multi_turn
    from cobalt.rollout.single_turn import run_single_turn

    first, later = rollout_settings(arguments)
    evaluation = arguments.result("evaluation.jsonl")

    async def run() -> int:
        """The three steps that need services, in one event loop; returns how many problems failed."""
        engine, judge = ServeEngine(), ServeJudge()
        return (
            await run_single_turn(first, engine, judge)
            or await run_multi_turn(later, engine, judge)
            or await run_evaluation(later.output_file, evaluation, judge, concurrency=later.concurrency)
        )

    if asyncio.run(run()):
        return 1
    metrics, _ = measure(evaluation)
    plot_turns({arguments.output_dir.name: metrics}, arguments.result("pass_at_1.png"))
    report = write_report({arguments.output_dir.name: evaluation}, arguments.result("report"))
    page = arguments.result("view.html")
    write_viewer({arguments.output_dir.name: evaluation}, page)
    console = Console(highlight=False)
    console.print(turn_table(metrics, title=f"Pass@1 by turn, hidden tests: {recorded_model(evaluation)}"))
    cut = CutOff(later.output_file)
    for group in read_trajectories(later.output_file):
        for trajectory in group.trajectories:
            cut.count(trajectory.turns)
    cut.say()
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
