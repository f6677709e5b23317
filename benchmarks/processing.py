"""Speed and memory of process_multi_turn_taco.py on synthetic trajectories of realistic length.

    python benchmarks/processing.py [--problems 6000] [--samples 16]

Writes an evaluated file like that of a run at the paper's scale (6,000 problems, 16 trajectories, 3 turns, thinking in
the raw responses: about a megabyte for each problem; `synthetic.py`). Then it trains a byte-level BPE tokenizer of
32,000 tokens and runs the script in a process of its own. The figures are the script's time and peak memory, without
the making of the file.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from synthetic import library_sources, write_evaluation

from cobalt.cli import run_script

TURNS = 3
SCRIPT = Path(__file__).parent.parent / "preproc" / "process_multi_turn_taco.py"


@dataclass(frozen=True)
class Arguments:
    """Measure the processing of synthetic trajectories."""

    problems: int = 6000
    """Number of problems in the file."""
    samples: int = 16
    """Number of trajectories for each problem."""
    folder: Path | None = None
    """Folder for the file, which is removed afterwards; a temporary folder by default."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        _save_tokenizer(library_sources(), folder / "model")
        trajectories, prompts = folder / "evaluation.jsonl", folder / "prompts.jsonl"
        write_evaluation(trajectories, arguments.problems, arguments.samples, TURNS)
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


def _save_tokenizer(sources: str, folder: Path) -> None:
    """Train and save a tokenizer of the same kind, and about the same compression, as a large model's."""
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


if __name__ == "__main__":
    run_script(Arguments, main)
