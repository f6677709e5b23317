"""Speed of multi-turn collection, compared with vLLM alone.

    python benchmarks/collection.py [--problems 100] [--turns 2]

The real loop (vLLM and the judge in this process) runs over pocket problems, and the tokens that it
generates per second are counted from the first request to the last record. Then, in a new process with the machine to
itself, vLLM's own offline `LLM.generate` gets every prompt of that run at once and must generate completions of the
same lengths. Both are warmed up first. The result is the ratio of the two rates. It shows what the order of turns, the
judge and the records cost, in one run on one machine.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cobalt.engine import Engine
from cobalt.engine.opening import open_vllm_or_url
from cobalt.episode import Message
from cobalt.episode.record import read_trajectories
from cobalt.judge import Judge, open_judge
from cobalt.problems.problem import load_problems
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.stage.cli import run_script


@dataclass(frozen=True)
class Arguments:
    """Compare multi-turn collection with offline generation for the same prompts and lengths."""

    pocket: Path = Path("pocket/seed0")
    """The pocket world (python -m cobalt.pocket)."""
    problems: int = 100
    """Number of its development problems to use."""
    turns: int = 2
    """Turns after the first; the paper collects with 2."""
    offline_threads: int = len(os.sched_getaffinity(0))
    """Threads of the offline engine; by default all cores."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = (arguments.pocket / "data" / "dev.jsonl").read_text().splitlines(keepends=True)
        (folder / "warm.jsonl").write_text("".join(lines[:8]))
        (folder / "problems.jsonl").write_text("".join(lines[: arguments.problems]))
        model = str((arguments.pocket / "model").resolve())
        seconds = asyncio.run(_measured(model, folder, arguments.turns))
        conversations, lengths = _requests(folder / "m.jsonl")
        (folder / "requests.json").write_text(json.dumps([conversations, lengths]))
        threads = {
            "OMP_NUM_THREADS": str(arguments.offline_threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        finished = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("offline_generate.py")),
                model,
                str(folder / "requests.json"),
            ],
            env=os.environ | threads,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    # vLLM prints to stdout as well, even when its process ends.
    [answer] = [line for line in finished.stdout.splitlines() if line.startswith("[") and line.endswith("]")]
    offline_tokens, offline_seconds = json.loads(answer)
    tokens = sum(lengths)
    loop_rate, offline_rate = tokens / seconds, offline_tokens / offline_seconds
    print(f"completions                  {len(lengths)}, {tokens / len(lengths):.0f} tokens each")
    print(f"collection loop              {loop_rate:.0f} tokens/s ({seconds:.1f} s)")
    print(f"offline LLM.generate         {offline_rate:.0f} tokens/s ({offline_seconds:.1f} s)")
    print(f"ratio                        {loop_rate / offline_rate:.2f}")
    return 0


async def _measured(model: str, folder: Path, turns: int) -> float:
    """Seconds of a collection after one to warm up."""
    async with open_vllm_or_url(model=model, settings=["dtype=float32"]) as engine, open_judge() as judge:
        await _collect(folder / "warm.jsonl", folder / "w.jsonl", turns, engine, judge)
        started = time.perf_counter()
        await _collect(folder / "problems.jsonl", folder / "m.jsonl", turns, engine, judge)
        return time.perf_counter() - started


async def _collect(problems: Path, output: Path, turns: int, engine: Engine, judge: Judge) -> None:
    run = RepairSettings(
        input_file=problems,
        output_file=output,
        num_completions=16,
        max_tokens=512,
        turns=turns,
        enable_thinking=True,
        prompts="pocket",
        concurrency=len(load_problems(problems)),
    )
    if (await repair(run, engine, judge)).failed:
        raise SystemExit("a problem failed; nothing was measured")


def _requests(path: Path) -> tuple[list[list[Message]], list[int]]:
    """Every prompt of a run, and the number of tokens of its completion."""
    conversations, lengths = [], []
    for group in read_trajectories(path):
        requests = [
            (place, trajectory.context(place), turn.completion_tokens)
            for trajectory in group.trajectories
            for place, turn in enumerate(trajectory.turns)
            if turn.completion_tokens
        ]
        for _, conversation, length in sorted(requests, key=lambda request: request[0]):
            conversations.append(conversation)
            lengths.append(length)
    return conversations, lengths


if __name__ == "__main__":
    run_script(Arguments, main)
