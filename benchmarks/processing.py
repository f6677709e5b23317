"""Speed and memory of process_multi_turn_taco.py on synthetic trajectories of realistic length.

    python benchmarks/processing.py [--problems 6000] [--samples 16]

Writes an evaluated file as a run at the paper's scale leaves one (6,000 problems, 16 trajectories, 3 turns, thinking in
the raw responses: about a megabyte for each problem), learns a byte-level BPE tokenizer of 32,000 tokens, and then runs
the script in a process of its own. Its time and its peak memory are the figures; making the file is not in them. Texts
are slices of the standard library's source, so that they have the words and the indentation of programs.
"""

import json
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.cli import run_script
from cobalt.conversation import load_prompts

TURNS = 3
SCRIPT = Path(__file__).parent.parent / "preproc" / "process_multi_turn_taco.py"


@dataclass(frozen=True)
class Arguments:
    """Measure the processing of synthetic trajectories."""

    problems: int = 6000
    """Problems in the file."""
    samples: int = 16
    """Trajectories of a problem."""
    folder: Path | None = None
    """Where the file is made; by default a temporary folder. It is removed afterwards."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    sources = _sources()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        _save_tokenizer(sources, folder / "model")
        trajectories, prompts = folder / "evaluation.jsonl", folder / "prompts.jsonl"
        rng = random.Random(0)
        with trajectories.open("w", encoding="utf-8") as output:
            for number in range(arguments.problems):
                output.write(json.dumps(_record(rng, sources, number, arguments.samples), ensure_ascii=False) + "\n")
        command = [sys.executable, str(SCRIPT), "-i", str(trajectories), "-o", str(prompts)]
        started = time.perf_counter()
        subprocess.run([*command, "--model_name", str(folder / "model")], check=True)
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the script is the only child
        print(f"input                {trajectories.stat().st_size / 1e9:.2f} GB, {arguments.problems} problems")
        print(f"output               {prompts.stat().st_size / 1e9:.2f} GB, {_lines(prompts)} prompts")
        print(f"time                 {seconds:.0f} s on {len(os.sched_getaffinity(0))} cores")
        print(f"CPU time             {used.ru_utime + used.ru_stime:.0f} s")
        print(f"peak memory          {used.ru_maxrss / 1024:.0f} MiB")
    return 0


def _lines(path: Path) -> int:
    with path.open("rb") as handle:
        return sum(1 for _ in handle)


def _sources() -> str:
    """Ten megabytes of the standard library's source."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)[:10_000_000]


def _save_tokenizer(sources: str, folder: Path) -> None:
    """A tokenizer of the kind and about the compression of a large model's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(sources.splitlines(keepends=True), trainer)
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template).save_pretrained(folder)


def _record(rng: random.Random, sources: str, number: int, samples: int) -> dict[str, Any]:
    """One evaluated problem: 4 public and 16 hidden tests; programs get better, worse or neither from turn to turn."""
    prompts = load_prompts("paper")

    def text(characters: int) -> str:
        start = rng.randrange(len(sources) - characters)
        return sources[start : start + characters]

    def length(mean: int) -> int:
        return int(mean * rng.uniform(0.5, 1.5))

    instruction = prompts.first_turn(text(length(1500)))
    tests = [(text(length(400)), text(length(60))) for _ in range(20)]
    passed = [[rng.choice([0, 5, 10, 15, 20, 20]) for _ in range(TURNS)] for _ in range(samples)]
    public = [[4 if count == 20 else count // 5 for count in counts] for counts in passed]
    hidden = [
        [count - of_public for count, of_public in zip(*both, strict=True)] for both in zip(passed, public, strict=True)
    ]
    answers = [[text(length(2500)) for _ in range(TURNS)] for _ in range(samples)]
    feedback = [[prompts.feedback(text(length(700))) for _ in range(TURNS)] for _ in range(samples)]
    conversations = []
    for sample in range(samples):
        messages = [{"role": "system", "content": prompts.system}, {"role": "user", "content": instruction}]
        for turn in range(TURNS):
            messages.append({"role": "assistant", "content": answers[sample][turn]})
            messages.append({"role": "user", "content": feedback[sample][turn]})
        conversations.append(messages)
    raw = [[f"<think>\n{text(length(9000))}\n</think>\n\n{row[turn]}" for row in answers] for turn in range(TURNS)]
    return {
        "id": number,
        "difficulty": "MEDIUM",
        "question": instruction,
        "instruction": instruction,
        "test_cases": _suite(tests),
        "public_test_cases": _suite(tests[:4]),
        "hidden_test_cases": _suite(tests[4:]),
        "responses": raw[0],
        "conversations": conversations,
        "raw_responses": raw,
        "public_pass_rates": [[counts[turn] / 4 for counts in public] for turn in range(TURNS)],
        "public_exec_results": [
            [{"passing": [False] * 4, "feedback": [text(length(500)) for _ in range(4)]} for _ in range(samples)]
            for _ in range(TURNS)
        ],
        "finish_reasons": [["stop"] * samples] * TURNS,
        "all_pass_rates": [[count / 16 for count in counts] for counts in hidden],
        "hidden_verdicts": [[["passed"] * 16] * TURNS] * samples,
    }


def _suite(tests: list[tuple[str, str]]) -> str:
    return json.dumps({"inputs": [given for given, _ in tests], "outputs": [expected for _, expected in tests]})


if __name__ == "__main__":
    run_script(Arguments, main)
