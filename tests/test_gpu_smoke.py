"""The smoke profile for one GPU: its plan, its configurations and its report, without a GPU.

`tests/data/gpu_smoke/metrics.jsonl` is what a training run of this project wrote, on a CPU.
"""

import json
import logging
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import executable, scripts_alone, trajectory_record, write_lines

from cobalt.stage.errors import InfrastructureError, UserError
from studies import gpu_report as gpu
from studies import quickstart
from studies.flags import dry_run

METRICS = Path(__file__).parent / "data" / "gpu_smoke" / "metrics.jsonl"


def study_of(model=None, **flags):
    return quickstart.study(quickstart.Arguments(profile="gpu-smoke", model=model, **flags))


# --- the plan


def test_a_model_of_the_hub_does_not_think_in_collection_cutting_and_training():
    planned = study_of("Qwen/Qwen3-0.6B")
    for step in planned.steps:
        line = " ".join(step.command)
        if step.training:
            assert "+data.apply_chat_template_kwargs.enable_thinking=false" in step.training.overrides
            assert step.training.scale == "gpu-smoke"
        elif step.services or "preproc/" in line:
            assert "--chat_template_thinking off" in line


def test_a_world_for_another_model_has_problems_and_no_seed_model(tmp_path):
    from cobalt.pocket import build_pocket_world

    world = build_pocket_world(tmp_path, 0, {"train": 2, "dev": 2, "test": 2}, open_share=0.5, problems_only=True)
    assert len(world.train.read_text().splitlines()) == 2 and not world.model.exists()


def test_a_model_in_a_folder_is_taken_from_there(tmp_path):
    planned = study_of(str(tmp_path))
    assert planned.inputs == (tmp_path,)
    assert planned.steps[-1].name == "gpu_report" and planned.steps[-1].shown
    [ft, cobalt] = [step.training for step in planned.steps if step.training]
    assert (ft.model, cobalt.model) == (str(tmp_path), str(ft.output_dir / "model"))


# --- the dry run


@pytest.mark.slow
def test_a_dry_run_shows_every_command_checks_both_configurations_and_names_the_step_of_a_wrong_one(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    shown = []
    planned = replace(study_of("Qwen/Qwen3-0.6B", gpus=4), root=tmp_path)
    dry_run(planned, shown.append)
    assert [text.split()[1] for text in shown] == [f"{step.name}:" for step in planned.steps]
    for step, text in zip(planned.steps, shown, strict=True):
        assert step.command[-1] in text
    checked = [record.getMessage() for record in caplog.records if "4 x cuda" in record.getMessage()]
    assert ["ft_training" in checked[0], "cobalt_training" in checked[1], len(checked)] == [True, True, 2]
    assert not list(tmp_path.iterdir())
    [step] = [step for step in planned.steps if step.name == "ft_training"]
    training = replace(step.training, overrides=(*step.training.overrides, "trainer.n_gpus_per_node=3"))
    with pytest.raises(UserError, match=r"ft_training: .*ppo_mini_batch_size.*\b3\b"):
        dry_run(replace(planned, steps=(replace(step, training=training),)), shown.append)


# --- the report


@pytest.fixture
def study(tmp_path):
    """A study's folder with an evaluation and a training run, as the steps leave it."""
    folder = tmp_path / "gpu_smoke"
    for name in ("base_evaluation", "ft_training"):
        (folder / name).mkdir(parents=True)
    record = trajectory_record("p", [[(0, 0), (1, 2)], [(1, 1), (2, 2)]], completion_tokens=[[10, 20], [30, 40]])
    write_lines(folder / "base_evaluation" / "evaluation.jsonl", [record])
    shutil.copy(METRICS, folder / "ft_training" / "metrics.jsonl")
    made = {"base_evaluation": "evaluation.jsonl", "ft_training": "metrics.jsonl"}
    steps = [
        {"id": number, "step": name, "command": ["true"], "started": "2026-01-01T00:00:00Z", "seconds": 12.5,
         "services_seconds": 2.5, "needs": {}, "files": {str(folder / name / file): "digest"}}
        for number, (name, file) in enumerate(made.items())
    ]  # fmt: skip
    write_lines(folder / "steps.jsonl", steps)
    (folder / "steps.run.json").write_text(json.dumps({"arguments": {"seed": 7, "model": "some/model"}}))
    return folder


def test_the_page_has_versions_steps_phases_agreement_and_memory(study, tmp_path, monkeypatch, capsys):
    """Of the recorded run's two steps the first one compiles, and is not timed."""
    executable(tmp_path / "nvidia-smi", "echo 'NVIDIA X, 81559 MiB, 9.0, 580.1'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    samples = tmp_path / "memory.csv"
    samples.write_text("2026/01/01 00:00:00.000, 1024\n2026/01/01 00:00:02.000, 3072\n")
    page = tmp_path / "page.md"
    assert gpu.main(gpu.Arguments(study, page, samples)) == 0
    text = page.read_text()
    lines = [json.loads(line)["metrics"] for line in METRICS.read_text().splitlines()]
    steps = [metrics for metrics in lines if "timing_s/step" in metrics]
    last = steps[-1]
    worst = max(metrics["training/rollout_probs_diff_max"] for metrics in steps)
    least = min(metrics["training/rollout_actor_probs_pearson_corr"] for metrics in steps)
    divergence = max((metrics["rollout_corr/kl"] for metrics in steps), key=abs)
    for part in (
        "NVIDIA X, 81559 MiB, 9.0, 580.1", "| flash-attn | ", "| vllm | ", "some/model, seed 7", "3.0 GiB",
        "| base_evaluation | 10.0 | 100 (responses) | 10 |", "## Training run ft_training", "Sums over 1 steps",
        # Eight samples of 37.75 tokens on the average.
        f"| generation, with the judge | {last['timing_s/gen']:.1f} | 302 (responses) | 399 |",
        f"| update | {last['timing_s/update_actor']:.1f} | 548 (prompts and responses) |",
        f"| weights to vLLM | {last['timing_s/update_weights']:.1f} |  |  |", "| actor, reserved by torch | 0.7 |",
        f"| largest difference | {worst:.3g} |", f"| correlation | {least:.3g} |",
        f"| KL(vLLM, actor), nats a token | {divergence:.3g} |",
    ):  # fmt: skip
        assert part in text
    assert "Training run" in capsys.readouterr().out


def test_the_check_fails_where_the_engine_samples_from_another_policy(study, tmp_path):
    metrics = study / "ft_training" / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    for record in records:
        if "training/rollout_probs_diff_mean" in record["metrics"]:
            record["metrics"]["training/rollout_probs_diff_mean"] = 0.2
    write_lines(metrics, records)
    with pytest.raises(InfrastructureError, match="ft_training"):
        gpu.main(gpu.Arguments(study, tmp_path / "page.md"))
    assert "0.2" in (tmp_path / "page.md").read_text()


# --- the scripts


def check(folder, nvidia_smi, flags, setup=""):
    """End of gpu_check.sh with this nvidia-smi and more in the set-up, and what the other scripts are given."""
    scripts_alone(folder)
    with (folder / "scripts" / "setup.sh").open("a") as script:
        script.write(setup)
    executable(folder / "bin" / "nvidia-smi", nvidia_smi)
    finished = subprocess.run(
        ["bash", str(folder / "scripts" / "gpu_check.sh"), *flags.split()],
        cwd=folder, env=os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    log = folder / "log"
    return finished, log.read_text().splitlines() if log.exists() else []


SAMPLER = 'if [ "$1" = -L ]; then echo "GPU 0: X"; else echo $$ >sampler; echo "t, 5"; exec sleep 600; fi'


@pytest.mark.parametrize(
    ("flags", "folder", "page"),
    [
        ("", "runs/gpu_smoke 0", "docs/gpu_report.md"),
        ("--model Qwen/Qwen3-0.6B out 3", "out 3", "docs/gpu_report_Qwen3-0.6B.md"),
        ("--gpus 4 --model a/b", "runs/gpu_smoke_b_4_gpus 0", "docs/gpu_report_b_4_gpus.md"),
    ],
)
def test_with_a_gpu_the_check_runs_the_profile_writes_a_page_and_ends_its_sampling(tmp_path, flags, folder, page):
    passed_on = flags.removesuffix(" out 3").split()
    os.mkfifo(tmp_path / "sampler")
    finished, log = check(tmp_path, SAMPLER, flags, setup="timeout 30 cat sampler >pid")
    assert finished.returncode == 0, finished.stderr
    output = folder.split()[0]
    assert log == [
        "setup --profile gpu",
        " ".join(["-m studies.quickstart --profile gpu-smoke", *passed_on, folder]),
        f"-m studies.gpu_report {output} --memory_file {output}/gpu_memory.csv --output_file {page}",
    ]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    if "--gpus" in passed_on:
        assert str(study_of("a/b", gpus=4).folder) == output


@pytest.mark.parametrize(
    ("listed", "flags"),
    [
        ("exit 9", ""),
        ("echo 'No devices were found'", ""),
        ("echo 'GPU 0: X'", "--gpus many"),
        ("echo 'GPU 0: X'", "--gpus"),
        ("echo 'GPU 0: X'", "--gpu 2"),
    ],
)
def test_without_a_gpu_or_with_a_wrong_flag_the_check_ends_with_one_sentence_and_code_2(tmp_path, listed, flags):
    finished, log = check(tmp_path, listed, flags)
    assert (finished.returncode, finished.stderr.count("\n"), log) == (2, 1, [])
    assert finished.stderr.startswith("error: ")
