"""Number of verdicts on recorded programs that change under the settings of the paper's judge.

    python benchmarks/paper_guard.py --data_dir ../shared/data

Every recorded program (`recorded_response`, `human_solutions`, `generated_solutions`; MBPP's reference programs with
their assertions) is judged under this judge's defaults, and once more under each setting of the paper's judge: its
guard, its limit on a suite, its limit on waiting, no imports of graders, and all of its rules. Programs whose verdicts
differ are listed.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.episode import extract_code
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite
from cobalt.stage.cli import run_script
from cobalt.stage.rows import read_rows

SETTINGS: dict[str, dict[str, Any]] = {
    "paper_guard=true": {"paper_guard": True},
    "suite_seconds=27": {"suite_seconds": 27.0},
    "wall_seconds=4": {"wall_seconds": 4.0},
    "prelude=none": {"prelude": "none"},
    "paper=true": {"paper": True},
}
FILES = ("taco5_recorded.jsonl", "apps_train3.jsonl", "mbpp.jsonl")

Program = tuple[str, str, TestSuite]
Passing = list[list[bool]]


@dataclass(frozen=True)
class Arguments:
    """Judge recorded programs under the settings of the paper's judge and count the verdicts that change."""

    data_dir: Path
    """Folder with taco5_recorded.jsonl, apps_train3.jsonl and mbpp.jsonl."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    programs = [item for name in FILES for item in _programs(arguments.data_dir / name)]
    before = asyncio.run(_judge(programs, {}))
    solved, tests = sum(map(all, before)), sum(map(len, before))
    print(f"{len(programs)} programs, {tests} tests; {solved} programs pass all of theirs by default")
    for name, settings in SETTINGS.items():
        after = asyncio.run(_judge(programs, settings))
        changed = [index for index, passing in enumerate(before) if passing != after[index]]
        lost = sum(all(before[index]) for index in changed)
        print(f"{name}: other verdicts for {len(changed)} programs, of which {lost} passed all tests by default")
        for index in changed:
            passed = f"{sum(before[index])} tests passed by default, {sum(after[index])} with it"
            print(f"    {programs[index][0]}: {passed}")
    return 0


async def _judge(programs: list[Program], settings: dict[str, Any]) -> Passing:
    """Tests that each program passes."""
    async with LocalJudge(JudgeSettings(**settings)) as judge:
        results = await asyncio.gather(*(judge.judge(code, suite) for _, code, suite in programs))
    return [result.passing for result in results]


def _programs(path: Path) -> Iterator[Program]:
    for row, record in read_rows(path):
        if "test_list" in record:
            parts = [record["test_setup_code"], record["code"], *record["test_list"]]
            yield f"{path.name}, task {record['task_id']}", "\n".join(parts) + "\n", TestSuite(("",), ("",))
            continue
        suite = TestSuite.parse(record["test_cases"])
        texts = [extract_code(record.get("recorded_response", "")), *record.get("human_solutions", [])]
        texts += [item["code"] for item in record.get("generated_solutions", [])]
        for number, code in enumerate(text for text in texts if text is not None):
            yield f"{path.name}, {row}, program {number}", code, suite


if __name__ == "__main__":
    run_script(Arguments, main)
