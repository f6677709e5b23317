"""Training tokens a second of the offline trainer against veRL's own SFT trainer, on the same responses, in turns.

    python benchmarks/offline_training.py --data_dir GROUPS --model MODEL --output_dir runs/offline_benchmark

GROUPS is a folder of preproc/preproc_judged.py, whose accepted responses both trainers learn (the estimator sft). Each
trainer runs with few and with more steps, and the difference leaves out the start. Tokens are those of prompts and
responses. `--engine shared` gives the offline trainer this project's engine for CPUs, which computes a prompt that
responses share once; `--engine verl` gives both trainers veRL's own.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from timed import seconds

from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.stage.cli import run_script
from cobalt.training.configuration import process_environment

_MAX_LENGTH = 1536
_MICRO_BATCH_TOKENS = 8192
_GROUPS = 16


@dataclass(frozen=True)
class Arguments:
    """Compare the two trainers on a CPU."""

    data_dir: Path
    """Groups."""
    model: Path
    """The policy."""
    output_dir: Path
    """Folder for the runs; replaced."""
    engine: Literal["shared", "verl"] = "shared"
    """Engine of the offline trainer."""
    steps: int = 20
    """Further steps that are timed."""
    rounds: int = 2
    """Measurements of each trainer."""


def offline(arguments: Arguments, run: Path, steps: int) -> tuple[float, float]:
    """Seconds and tokens of a run of the offline trainer."""
    command = [sys.executable, "-m", "cobalt.training.offline", "--data_dir", str(arguments.data_dir)]
    command += ["--model", str(arguments.model), "--output_dir", str(run), "--estimator", "sft"]
    command += [f"data.train_batch_size={_GROUPS}", f"trainer.total_training_steps={steps}", "trainer.total_epochs=999"]
    command += ["data.val_files=null", "trainer.save_freq=-1", f"data.max_token_len_per_gpu={_MICRO_BATCH_TOKENS}"]
    verls_own = arguments.engine == "verl"
    command += ["model.external_lib=null"] if verls_own else []
    took = seconds(command, {"VERL_ENGINE_DEVICE": "cuda"} if verls_own else {}, run.with_suffix(".log"))
    lines = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return took, sum(line["training/tokens"] for line in lines)


def supervised(arguments: Arguments, run: Path, steps: int, rows: Path, batch: int) -> float:
    """Seconds of a run of veRL's SFT trainer."""
    settings = {
        "data.train_files": rows,
        "data.val_files": "null",
        "data.train_batch_size": batch,
        "data.max_length": _MAX_LENGTH,
        "data.max_token_len_per_gpu": _MICRO_BATCH_TOKENS,
        "data.num_workers": 0,
        "model.path": arguments.model.resolve(),
        "model.enable_gradient_checkpointing": "false",
        "model.use_remove_padding": "false",
        "+model.override_config.attn_implementation": "sdpa",
        "engine.strategy": "fsdp2",
        "engine.use_torch_compile": "false",
        "+engine.mixed_precision": "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
        "trainer.device": "cpu",
        "trainer.logger": "[console]",
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": 999,
        "trainer.save_freq": -1,
        "trainer.default_local_dir": run.resolve(),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
    command += ["-m", "verl.trainer.sft_trainer", *(f"{key}={value}" for key, value in settings.items())]
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "VERL_ENGINE_DEVICE": "cuda"}
    return seconds(command, process_environment(run, on_cpu=True) | threads, run.with_suffix(".log"))


def write_rows(data: Path, file: Path) -> tuple[int, int]:
    """The accepted responses as rows of veRL's SFT trainer; how many there are, and how many groups."""
    import pyarrow
    from pyarrow import parquet

    messages, groups = [], 0
    for group in read_groups(data / "train.jsonl"):
        groups += 1
        for response in group.responses:
            if response.status is Status.ACCEPTED:
                messages.append([*group.messages, {"role": "assistant", "content": response.text}])
    parquet.write_table(pyarrow.table({"messages": messages}), file)
    return len(messages), groups


def main(arguments: Arguments) -> int:
    """Measure both in turns and print tokens a second and their ratio."""
    shutil.rmtree(arguments.output_dir, ignore_errors=True)
    arguments.output_dir.mkdir(parents=True)
    rows = arguments.output_dir / "rows.parquet"
    responses, groups = write_rows(arguments.data_dir, rows)
    batch = round(_GROUPS * responses / groups)
    few, more = 2, 2 + arguments.steps
    ours, theirs = [], []
    for number in range(arguments.rounds):
        folder = arguments.output_dir / str(number)
        folder.mkdir()
        short, begun = offline(arguments, folder / "offline_few", few)
        long, tokens = offline(arguments, folder / "offline_more", more)
        ours.append((tokens - begun) / (long - short))
        per_response = tokens / (more * batch)
        short = supervised(arguments, folder / "sft_few", few, rows, batch)
        long = supervised(arguments, folder / "sft_more", more, rows, batch)
        theirs.append(arguments.steps * batch * per_response / (long - short))
    print(
        f"{batch} responses a step, {per_response:.0f} tokens each, {arguments.steps} steps, {arguments.rounds} rounds"
    )
    print(f"offline trainer {median(ours):,.0f} tokens a second, veRL's SFT trainer {median(theirs):,.0f}")
    print(f"ratio {median(ours) / median(theirs):.2f}")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
