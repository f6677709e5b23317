"""Evaluated trajectories from recorded programs for real problems, to run the data chain without a model.

    python benchmarks/recorded_chain.py --data_dir ../shared/data --output_dir runs/recorded

Every turn of every trajectory is a program that was recorded for the problem, drawn at random (`recorded_response`,
`human_solutions`, `generated_solutions`). No model repairs anything, so the pass rates measure no model. The real loop
and a local judge judge the programs and make the feedback. The shortest tests of each problem are made public: four, or
one if there are fewer than eight. If a problem has only one test, it is both public and hidden.
"""

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.cli import run_script
from cobalt.engine import GenerationSettings
from cobalt.engine.replay import ReplayEngine
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problem import TestSuite
from cobalt.rollout.evaluate import run_evaluation
from cobalt.rollout.multi_turn import MultiTurnSettings, run_multi_turn
from cobalt.rows import read_rows


@dataclass(frozen=True)
class Arguments:
    """Build multi_turn.jsonl and evaluation.jsonl from recorded programs."""

    data_dir: Path
    """Folder with taco5_recorded.jsonl and apps_train3.jsonl."""
    output_dir: Path
    """Folder for the results."""
    samples: int = 16
    """Number of trajectories for each problem."""
    turns: int = 3
    """Number of programs in each trajectory."""
    seed: int = 0
    """Seed of the choice of programs."""


def main(arguments: Arguments) -> int:
    """Build the files, and return the exit code."""
    rng = random.Random(arguments.seed)
    problems, recorded = [], []
    for name in ("taco5_recorded.jsonl", "apps_train3.jsonl"):
        for _, record in read_rows(arguments.data_dir / name):
            pool = _responses(record)
            problems.append(_with_public_tests(record))
            draw = [[rng.choice(pool) for _ in range(arguments.samples)] for _ in range(arguments.turns)]
            recorded.append({"id": record["id"], "raw_responses": draw})
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    files = {name: arguments.output_dir / f"{name}.jsonl" for name in ("problems", "recorded")}
    for name, rows in (("problems", problems), ("recorded", recorded)):
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return asyncio.run(_run(arguments, files["problems"], files["recorded"]))


async def _run(arguments: Arguments, problems: Path, recorded: Path) -> int:
    multi_turn = arguments.output_dir / "multi_turn.jsonl"
    run = MultiTurnSettings(
        input_file=problems,
        output_file=multi_turn,
        generation=GenerationSettings(n=arguments.samples, seed=arguments.seed),
        turns=arguments.turns - 1,
    )
    async with LocalJudge(JudgeSettings()) as judge:
        failed = await run_multi_turn(run, ReplayEngine(recorded, arguments.samples), judge)
        failed += await run_evaluation(multi_turn, arguments.output_dir / "evaluation.jsonl", judge)
    return 1 if failed else 0


def _responses(record: dict[str, Any]) -> list[str]:
    """The recorded programs of a problem, as responses with one code block."""
    programs = list(record.get("human_solutions", []))
    programs += [item["code"] for item in record.get("generated_solutions", [])]
    responses = [f"```python\n{program}\n```" for program in programs]
    return responses + ([record["recorded_response"]] if "recorded_response" in record else [])


def _with_public_tests(record: dict[str, Any]) -> dict[str, Any]:
    """The problem without its recorded programs, with some of its tests public."""
    suite = TestSuite.parse(record["test_cases"])
    order = sorted(range(len(suite)), key=lambda index: (len(suite.inputs[index]), index))
    public = order[: 4 if len(suite) >= 8 else 1]
    hidden = [index for index in range(len(suite)) if index not in public] or public
    split = {
        name: TestSuite(tuple(suite.inputs[i] for i in indices), tuple(suite.outputs[i] for i in indices)).to_json()
        for name, indices in (("public_test_cases", public), ("hidden_test_cases", hidden))
    }
    kept = ("id", "difficulty", "source", "question", "test_cases")
    return {name: record[name] for name in kept if name in record} | split


if __name__ == "__main__":
    run_script(Arguments, main)
