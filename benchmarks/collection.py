"""Speed of sampling and of multi-turn collection, compared with vLLM alone.

    python benchmarks/collection.py [--problems 100] [--turns 2]
    python benchmarks/collection.py --model models/smollm2 --problems_file data/mbpp_train.jsonl --prompts program \
        --problems 40 --turns 0 --samples 4 --max_tokens 256 --rounds 3

The real loop (vLLM and the judge in this process) runs over problems, and the tokens that it generates per second are
counted from the first request to the last record. Then, in a new process with the machine to itself, vLLM's own offline
`LLM.generate` gets every prompt of that run at once and must generate completions of the same lengths, with the same
type, cache, blocks and largest batch. No sample has a seed on either side. Both are warmed up first, and their
start does not count. The result is the ratio of the two rates, of each round and its median. It shows what the order of
turns, the judge and the records cost, on one machine.
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
from statistics import median
from typing import Any

from cobalt.engine import Engine
from cobalt.engine.opening import open_vllm_or_url
from cobalt.engine.vllm_settings import VllmSettings
from cobalt.episode import Message, first_messages, load_prompts
from cobalt.episode.record import decode_first_turns, read_trajectories
from cobalt.judge import Judge, open_judge
from cobalt.problems.problem import Problem, load_problems
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.cli import run_script
from cobalt.stage.records import iterate_records


@dataclass(frozen=True)
class Arguments:
    """Compare multi-turn collection with offline generation for the same prompts and lengths."""

    pocket: Path = Path("pocket/seed0")
    """The pocket world (python -m cobalt.pocket), which has the model and the problems where none are named."""
    model: Path | None = None
    """Folder of another model."""
    problems_file: Path | None = None
    """Other problems."""
    prompts: str = "pocket"
    """Prompt set."""
    problems: int = 100
    """Number of problems to use; eight more warm up."""
    turns: int = 2
    """Turns after the first; the paper collects with 2. 0: `cobalt sample`."""
    samples: int = 16
    """Of each problem."""
    max_tokens: int = 512
    """Of a completion."""
    rounds: int = 1
    """Pairs of runs."""
    threads: int | None = None
    """Threads of this project's engine, which shares the cores with the judge; by default those that it chooses."""
    offline_threads: int = len(os.sched_getaffinity(0))
    """Threads of the offline engine; by default all cores."""
    kv_cache_gib: int = 4
    """Cache of both engines."""

    def engine(self) -> VllmSettings:
        """The settings of this project's engine."""
        model = str((self.model or self.pocket / "model").resolve())
        return VllmSettings(model=model, dtype="float32", cpu_threads=self.threads, kv_cache_gib=self.kv_cache_gib)


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    lines = (arguments.problems_file or arguments.pocket / "data" / "dev.jsonl").read_text().splitlines(keepends=True)
    ratios = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "warm.jsonl").write_text("".join(lines[-8:]))
            (folder / "problems.jsonl").write_text("".join(lines[: arguments.problems]))
            seconds = asyncio.run(_measured(arguments, folder))
            conversations, lengths = _requests(folder / "m.jsonl", arguments)
            requests = folder / "requests.json"
            requests.write_text(json.dumps([conversations, lengths]))
            offline_tokens, offline_seconds = _offline(arguments, requests)
        tokens = sum(lengths)
        loop_rate, offline_rate = tokens / seconds, offline_tokens / offline_seconds
        ratios.append(loop_rate / offline_rate)
        print(f"completions                  {len(lengths)}, {tokens / len(lengths):.0f} tokens each")
        print(f"this project, with the judge {loop_rate:.0f} tokens/s ({seconds:.1f} s)")
        print(f"offline LLM.generate         {offline_rate:.0f} tokens/s ({offline_seconds:.1f} s)")
        print(f"ratio                        {ratios[-1]:.2f}", flush=True)
    print(f"median of {len(ratios)} rounds           {median(ratios):.2f}")
    return 0


def _offline(arguments: Arguments, requests: Path) -> tuple[int, float]:
    """Tokens and seconds of vLLM alone, in a process of its own."""
    settings = arguments.engine()
    variables = {
        "OMP_NUM_THREADS": str(arguments.offline_threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    script = str(Path(__file__).with_name("offline_generate.py"))
    finished = subprocess.run(
        [sys.executable, script, settings.model_dump_json(), str(requests)],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # vLLM prints to stdout as well, even when its process ends.
    [answer] = [line for line in finished.stdout.splitlines() if line.startswith("[") and line.endswith("]")]
    tokens, seconds = json.loads(answer)
    return int(tokens), float(seconds)


async def _measured(arguments: Arguments, folder: Path) -> float:
    """Seconds of a collection after one to warm up."""
    chosen = arguments.engine().model_dump(exclude_unset=True, exclude_none=True)
    model = chosen.pop("model")
    settings = [f"{key}={value}" for key, value in chosen.items()]
    async with open_vllm_or_url(model=model, settings=settings) as engine, open_judge() as judge:
        await _collect(folder / "warm.jsonl", folder / "w.jsonl", arguments, engine, judge)
        started = time.perf_counter()
        await _collect(folder / "problems.jsonl", folder / "m.jsonl", arguments, engine, judge)
        return time.perf_counter() - started


async def _collect(problems: Path, output: Path, arguments: Arguments, engine: Engine, judge: Judge) -> None:
    run: dict[str, Any] = {
        "input_file": problems,
        "output_file": output,
        "num_completions": arguments.samples,
        "max_tokens": arguments.max_tokens,
        "enable_thinking": True,
        "prompts": arguments.prompts,
        "samples": "unseeded",
        "concurrency": len(load_problems(problems)),
    }
    if arguments.turns:
        outcome = await repair(RepairSettings(turns=arguments.turns, **run), engine, judge)
    else:
        outcome = await sample(SampleSettings(**run), engine, judge)
    if outcome.failed:
        raise SystemExit("a problem failed; nothing was measured")


def _requests(path: Path, arguments: Arguments) -> tuple[list[list[Message]], list[int]]:
    """Every prompt of a run, and the number of tokens of its completion."""
    requests: list[tuple[int, list[Message], int]] = []
    if not arguments.turns:
        prompts = load_prompts(arguments.prompts)
        for record in iterate_records(path):
            turns = decode_first_turns(record) or []
            messages = list(first_messages(Problem.parse(record), prompts))
            requests += [(0, messages, turn.completion_tokens or 0) for turn in turns]
    else:
        for group in read_trajectories(path):
            of_problem = [
                (index, list(trajectory.context(index)), turn.completion_tokens or 0)
                for trajectory in group.trajectories
                for index, turn in enumerate(trajectory.turns)
            ]
            requests += sorted(of_problem, key=lambda request: request[0])
    generated = [(conversation, length) for _, conversation, length in requests if length]
    return [conversation for conversation, _ in generated], [length for _, length in generated]


if __name__ == "__main__":
    run_script(Arguments, main)
