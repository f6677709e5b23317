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
from chat_tokenizers import save_policy
from support import executable, scripts_alone, square_problem, trajectory_record, write_lines

from cobalt.stage.errors import InfrastructureError, UserError
from studies import gpu_report as gpu
from studies import gpu_smoke, quickstart
from studies.dry_run import dry_run

METRICS = Path(__file__).parent / "data" / "gpu_smoke" / "metrics.jsonl"


def recorded():
    """The metrics of the recorded run's two steps of training."""
    lines = [json.loads(line)["metrics"] for line in METRICS.read_text().splitlines()]
    return [metrics for metrics in lines if "timing_s/step" in metrics]


# --- the plan


@pytest.mark.parametrize("model", [None, "Qwen/Qwen3-0.6B"])
def test_the_plan_has_every_part_of_the_method_and_ends_with_the_report(model):
    planned = gpu_smoke.study(None, 0, model)
    names = [step.name for step in planned.steps]
    parts = ["ft_training", "ft_collection", "prompts", "cobalt_rows", "cobalt_training", "cobalt_evaluation"]
    assert [name for name in names if name in parts] == parts
    assert names[-1] == "gpu_report" and planned.steps[-1].shown
    assert ("base_model" in names) == (model is not None)
    [ft, cobalt] = [step.training for step in planned.steps if step.training]
    assert (ft.scale, cobalt.scale) == (gpu_smoke.PROFILE,) * 2
    assert cobalt.model == str(ft.output_dir / "model")


def test_a_model_of_the_hub_does_not_think_in_collection_cutting_and_training():
    planned = gpu_smoke.study(None, 0, "Qwen/Qwen3-0.6B")
    for step in planned.steps:
        line = " ".join(step.command)
        if step.training:
            assert "+data.apply_chat_template_kwargs.enable_thinking=false" in step.training.overrides
        elif step.services or "preproc/" in line:
            assert "--chat_template_thinking off" in line


def test_a_model_in_a_folder_is_taken_from_there_and_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    planned = gpu_smoke.study(tmp_path / "out", 0, str(tmp_path))
    assert planned.inputs == (tmp_path,)
    [ft, _] = [step.training for step in planned.steps if step.training]
    assert ft.model == str(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="config.json"):
        gpu_smoke.study(tmp_path / "out", 0, str(tmp_path))


def test_a_world_for_another_model_has_problems_and_no_seed_model(tmp_path):
    from cobalt.pocket import build_pocket_world

    sizes = {"train": 2, "dev": 2, "test": 2}
    world = build_pocket_world(tmp_path, 0, sizes, open_share=0.5, problems_only=True)
    assert len(world.train.read_text().splitlines()) == 2
    assert not world.model.exists()


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "Qwen/Qwen3-0.6B"},
        {"gpus": 2},
        {"profile": "gpu-smoke", "gpus": 0},
        {"profile": "gpu-smoke", "fast": True},
    ],
)
def test_flags_that_contradict_the_profile_are_refused(flags):
    with pytest.raises(UserError):
        quickstart.study(quickstart.Arguments(**flags))


# --- the dry run


@pytest.mark.slow
def test_a_dry_run_shows_every_command_and_checks_both_configurations(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    shown = []
    planned = replace(gpu_smoke.study(None, 0, "Qwen/Qwen3-0.6B", 4), root=tmp_path)
    dry_run(planned, shown.append)
    assert [text.split()[1] for text in shown] == [f"{step.name}:" for step in planned.steps]
    for step, text in zip(planned.steps, shown, strict=True):
        assert step.command[-1] in text
    checked = [record.getMessage() for record in caplog.records if "4 GPUs;" in record.getMessage()]
    assert ["ft_training" in checked[0], "cobalt_training" in checked[1], len(checked)] == [True, True, 2]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dry_run_names_the_step_whose_configuration_is_wrong_and_checks_rows_that_are_there(tmp_path):
    import pyarrow
    from pyarrow import parquet

    def planned(*overrides):
        whole = gpu_smoke.study(None, 0, None)
        [step] = [step for step in whole.steps if step.name == "ft_training"]
        training = replace(step.training, overrides=(*step.training.overrides, *overrides))
        return replace(whole, root=tmp_path, steps=(replace(step, training=training, needs=()),))

    for path in (tmp_path / "runs/gpu_smoke/ft_data", tmp_path / "pocket/gpu_smoke_seed0/model"):
        path.mkdir(parents=True)
    save_policy(tmp_path / "pocket/gpu_smoke_seed0/model", "qwen3")
    with pytest.raises(UserError, match=r"step ft_training: .*train\.parquet"):
        dry_run(planned(), lambda text: None)
    row = {
        "data_source": "d", "prompt": [{"role": "user", "content": "u"}],
        "reward_model": {"style": "rule", "ground_truth": square_problem(0)["test_cases"]},
        "extra_info": {"index": 0, "prev_best_pass_rate": 0.0},
    }  # fmt: skip
    for split in ("train", "validation"):
        file = tmp_path / "runs/gpu_smoke/ft_data" / f"{split}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([row] * 16), file)
    dry_run(planned(), lambda text: None)
    with pytest.raises(UserError, match="step ft_training: .*GPUs"):
        dry_run(planned("trainer.n_gpus_per_node=3"), lambda text: None)


@pytest.mark.slow
def test_a_dry_run_finds_what_does_not_fit_and_an_attention_that_is_not_installed(tmp_path, monkeypatch):
    from transformers import Qwen3Config

    from cobalt.training import installed, machine

    monkeypatch.setattr(machine, "visible_gpus", list)
    monkeypatch.setattr(installed, "package_version", lambda package: "" if package == "flash-attn" else "1")
    Qwen3Config(architectures=["Qwen3ForCausalLM"], vocab_size=1000).save_pretrained(tmp_path / "base")
    planned = replace(gpu_smoke.study(None, 0, str(tmp_path / "base")), root=tmp_path)

    def with_setting(setting):
        steps = [replace(step, training=None) if step.name == "cobalt_training" else step for step in planned.steps]
        place = [step.name for step in steps].index("ft_training")
        training = replace(steps[place].training, overrides=(*steps[place].training.overrides, setting))
        steps[place] = replace(steps[place], training=training)
        return replace(planned, steps=tuple(steps))

    with pytest.raises(UserError, match="step ft_training: .*GPU, .*--force"):
        dry_run(with_setting("cobalt.gpu_memory_gib=2"), lambda text: None)
    flash = "+actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2"
    with pytest.raises(UserError, match="step ft_training: .*flash-attn"):
        dry_run(with_setting(flash), lambda text: None)


# --- the report


def test_the_figures_of_a_training_run_are_those_of_its_metrics(tmp_path):
    shutil.copy(METRICS, tmp_path / "metrics.jsonl")
    figures = gpu.training_figures(tmp_path)
    first, last = recorded()
    assert figures.steps == 1, "the first step compiles"
    by_name = {phase.name: phase for phase in figures.phases}
    assert by_name["update"] == gpu.Phase("update", last["timing_s/update_actor"], 548, "prompts and responses")
    generation = by_name["generation, with the judge"]
    assert generation.tokens == 8 * 37.75, "eight samples of this length"
    assert generation.rate == pytest.approx(302 / last["timing_s/gen"])
    assert by_name["weights to vLLM"].rate is None
    worst = max(metrics["training/rollout_probs_diff_max"] for metrics in (first, last))
    assert figures.agreement["largest difference"] == worst
    assert figures.agreement["correlation"] == min(
        metrics["training/rollout_actor_probs_pearson_corr"] for metrics in (first, last)
    )
    divergences = [metrics["rollout_corr/kl"] for metrics in (first, last)]
    assert figures.agreement["KL(vLLM, actor), nats a token"] == max(divergences, key=abs)
    peak = max(metrics["actor/perf/max_memory_reserved_gb"] for metrics in (first, last))
    assert figures.memory["actor, reserved by torch"] == peak


def test_a_run_of_one_step_is_timed_by_it_and_one_without_the_actors_log_probs_has_no_agreement(tmp_path):
    metrics = {k: v for k, v in recorded()[0].items() if "rollout_" not in k and "old_log_prob" not in k}
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "metrics": metrics}])
    figures = gpu.training_figures(tmp_path)
    assert (figures.steps, figures.agreement) == (1, {})
    assert "log-probs of the actor" not in {phase.name for phase in figures.phases}
    write_lines(tmp_path / "metrics.jsonl", [{"step": 0, "metrics": {"val-core/pocket/acc/mean@1": 0.0}}])
    with pytest.raises(UserError, match="no step of training"):
        gpu.training_figures(tmp_path)


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
    executable(tmp_path / "nvidia-smi", "echo 'NVIDIA X, 81559 MiB, 9.0, 580.1'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    samples = tmp_path / "memory.csv"
    samples.write_text("2026/01/01 00:00:00.000, 1024\n2026/01/01 00:00:02.000, 3072\n")
    page = tmp_path / "page.md"
    assert gpu.main(gpu.Arguments(study, page, samples)) == 0
    text = page.read_text()
    for part in (
        "NVIDIA X, 81559 MiB, 9.0, 580.1", "| flash-attn | ", "| vllm | ", "some/model, seed 7", "3.0 GiB",
        "| base_evaluation | 10.0 | 100 (responses) | 10 |", "## Training run ft_training", "| largest difference | ",
        "| generation, with the judge | 0.8 | 302 (responses) | 399 |", "| actor, reserved by torch | 0.7 |",
        "| difference of a response's mean log-prob, nats | ", "| KL(vLLM, actor), nats a token | ",
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


def test_a_folder_or_samples_of_something_else_are_refused(study, tmp_path):
    with pytest.raises(UserError):
        gpu.study_figures(tmp_path)
    for content in ("", "no numbers\n"):
        (tmp_path / "memory.csv").write_text(content)
        with pytest.raises(UserError, match=r"memory\.csv"):
            gpu.peak_memory(tmp_path / "memory.csv")
    (study / "steps.run.json").unlink()
    with pytest.raises(UserError, match=r"steps\.run\.json"):
        gpu.study_figures(study)


# --- the scripts


@pytest.fixture
def checkout(tmp_path):
    return scripts_alone(tmp_path)


def run(checkout, script, *arguments, path=""):
    finished = subprocess.run(
        ["bash", str(checkout / "scripts" / script), *arguments],
        cwd=checkout, env=os.environ | {"PATH": f"{path}{os.environ['PATH']}"}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    log = checkout / "log"
    return finished, log.read_text().splitlines() if log.exists() else []


def listing(checkout, script):
    """A PATH whose nvidia-smi is a script."""
    executable(checkout / "bin" / "nvidia-smi", script)
    return f"{checkout}/bin:"


def test_with_a_gpu_the_check_runs_the_profile_writes_the_page_and_ends_its_sampling(checkout):
    sampler = 'if [ "$1" = -L ]; then echo "GPU 0: X"; else echo $$ >sampler; echo "t, 5"; exec sleep 600; fi'
    path = listing(checkout, sampler)
    finished, log = run(checkout, "gpu_check.sh", "--model", "a/b", "out", "3", path=path)
    assert finished.returncode == 0, finished.stderr
    assert log == [
        "setup --profile gpu",
        "-m studies.quickstart --profile gpu-smoke --model a/b out 3",
        "-m studies.gpu_report out --memory_file out/gpu_memory.csv --output_file docs/gpu_report_b.md",
    ]
    if (checkout / "sampler").exists():  # it may be ended before it begins
        with pytest.raises(ProcessLookupError):
            os.kill(int((checkout / "sampler").read_text()), 0)


def test_each_model_and_number_of_gpus_has_a_folder_and_a_page_of_its_own(checkout):
    path = listing(checkout, '[ "$1" = -L ] && echo "GPU 0: X"')
    cases = {
        (): ("runs/gpu_smoke", "docs/gpu_report.md"),
        ("--model=Qwen/Qwen3-0.6B",): ("runs/gpu_smoke_Qwen3-0.6B", "docs/gpu_report_Qwen3-0.6B.md"),
        ("--gpus", "4", "--model=a/b"): ("runs/gpu_smoke_b_4_gpus", "docs/gpu_report_b_4_gpus.md"),
    }
    for given, (folder, page) in cases.items():
        finished, log = run(checkout, "gpu_check.sh", *given, path=path)
        assert finished.returncode == 0, finished.stderr
        assert (log[-1].split()[2], log[-1].split()[-1]) == (folder, page)
    assert "-m studies.quickstart --profile gpu-smoke --gpus 4 --model a/b runs/gpu_smoke_b_4_gpus 0" in log
    assert gpu_smoke.study(None, 0, "a/b", 4).folder == Path("runs/gpu_smoke_b_4_gpus")
    assert gpu_smoke.study(None, 0, "Qwen/Qwen3-0.6B").folder == Path("runs/gpu_smoke_Qwen3-0.6B")


@pytest.mark.parametrize(
    ("listed", "flags"),
    [
        ("exit 9", []),
        ("echo 'No devices were found'", []),
        ("echo 'GPU 0: X'", ["--gpus", "many"]),
        ("echo 'GPU 0: X'", ["--gpus"]),
        ("echo 'GPU 0: X'", ["--gpu", "2"]),
    ],
)
def test_without_a_gpu_or_with_a_wrong_flag_the_check_ends_with_one_sentence_and_code_2(checkout, listed, flags):
    finished, log = run(checkout, "gpu_check.sh", *flags, path=listing(checkout, listed))
    assert (finished.returncode, finished.stderr.count("\n"), log) == (2, 1, [])
    assert finished.stderr.startswith("error: ")
