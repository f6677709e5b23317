"""Online multi-turn training but for its agent loop: advantages in veRL, batches, configurations, rows, scripts."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from chat_tokenizers import save_policy
from pyarrow import parquet
from support import ROOT, composed, refused_training, result_of, square_problem, write_lines

from cobalt.episode.prompt_set import BUILT_IN
from cobalt.problems.problem import TestSuite
from cobalt.reward import verpo as equations
from cobalt.selection.verl_rows import SingleTurnRowsSettings, convert_single_turn
from cobalt.stage.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

# The group of tests/test_reward.py: its second trajectory is solved.
HAND = [[[1, 0, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 1]]]
HAND_CONSTANTS = {"alpha": 2.0, "beta": 0.5, "gamma": 0.9, "sigma": 0.25, "sigma_floor": 1e-3, "delta": 0.0}
HAND_ADVANTAGES = [[-0.5046681, -0.3990689], [0.3053319, 0.5984051]]


def turn(start, stop, passed):
    return {"start": start, "stop": stop, "passed": None if passed is None else [bool(p) for p in passed]}


def verl_advantages(rows, estimator, metrics=None, **algorithm):
    """The advantages of hand-made rows by veRL's own dispatch; a row is (key, mask, reward, record or None)."""
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    import cobalt_verl.estimators.verpo  # noqa: F401  # registers, as the plugin makes it
    from cobalt_verl.episodes import BATCH, METRICS, batch_rows

    keys, masks, _, records = zip(*rows, strict=True)
    masks = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, masks)), batch_first=True)
    rewards = torch.zeros(masks.shape)
    for index, (_, mask, reward, _) in enumerate(rows):
        rewards[index, len(mask) - 1] = reward
    uids = np.array([key.split("_")[0] for key in keys], dtype=object)
    data = DataProto.from_dict({"token_level_rewards": rewards, "response_mask": masks}, {"uid": uids})
    tags = [{"is_padding": record is None} for record in records]
    extra = [{"episode": records[0] if record is None else record} for record in records]  # as veRL copies it
    shown, measured = BATCH.set(batch_rows(keys, tags, extra)), METRICS.set({} if metrics is None else metrics)
    try:
        config = OmegaConf.create(algorithm)
        return compute_advantage_for_multi_trajectories(data, list(keys), estimator, config=config).batch["advantages"]
    finally:
        BATCH.reset(shown)
        METRICS.reset(measured)


def test_the_advantages_of_a_group_computed_by_hand_stand_on_the_tokens_of_each_turn():
    """Trajectory 0 is one row with feedback between its turns; trajectory 1 has a row for each turn, out of order."""
    (a, b), (c, d) = HAND
    rows = [
        ("u_1_1", [1, 1, 1, 1], 0.0, {"turns": [turn(0, 4, d)], "solved": True}),
        ("u_0_0", [1, 1, 0, 0, 0, 1], 0.0, {"turns": [turn(0, 2, a), turn(5, 6, b)], "solved": False}),
        ("u_1_0", [1, 1, 1], 0.0, {"turns": [turn(0, 3, c)], "solved": True}),
        ("pad9_0_0", [0], 0.0, None),
    ]
    advantages = verl_advantages(rows, "verpo", verpo=HAND_CONSTANTS)
    (first, second), (third, fourth) = HAND_ADVANTAGES
    expected = [
        [fourth] * 4 + [0, 0],
        [first, first, 0, 0, 0, second],
        [third] * 3 + [0, 0, 0],
        [0] * 6,
    ]
    assert advantages.numpy() == pytest.approx(np.array(expected), abs=1e-6)


def test_groups_are_compared_within_themselves():
    """Two prompts with unlike numbers of tests, their rows mixed: each has the advantages that it has alone."""
    other = [[[0, 1]], [[1, 1], [0, 0], [1, 1]]]
    rows, alone = [], {}
    for uid, group in (("u", HAND), ("v", other)):
        solved = [all(path[-1]) for path in group]
        values = equations.advantages([np.array(p, float) for p in group], solved)
        for session, path in enumerate(group):
            for place, passed in enumerate(path):
                key = f"{uid}_{session}_{place}"
                rows.append((key, [1], 0.0, {"turns": [turn(0, 1, passed)], "solved": solved[session]}))
                alone[key] = values[session][place]
    mixed = rows[::2] + rows[1::2]
    defaults = {"alpha": 2.0, "beta": 1.0, "gamma": 0.995, "sigma": None, "sigma_floor": 1e-3, "delta": 1e-6}
    advantages = verl_advantages(mixed, "verpo", verpo=defaults)
    assert advantages[:, 0].tolist() == pytest.approx([alone[key] for key, *_ in mixed], abs=1e-6)


def test_verpo_tells_the_share_of_prompts_from_which_it_learns_nothing():
    """Nothing from programs that pass the same tests, or one each of two that are equally hard."""
    groups = {"u": [[1, 0], [1, 0]], "v": [[1, 0], [0, 1]], "w": [[1, 0], [0, 0]], "x": [[1, 1], [1, 0]]}
    rows = [
        (f"{uid}_{session}_0", [1], 0.0, {"turns": [turn(0, 1, passed)], "solved": all(passed)})
        for uid, group in groups.items()
        for session, passed in enumerate(group)
    ]
    metrics = {}
    advantages = verl_advantages(rows, "verpo", metrics, verpo=HAND_CONSTANTS)
    assert (advantages.abs().sum(dim=1).reshape(-1, 2).sum(dim=1) > 1e-6).tolist() == [False, False, True, True]
    assert metrics == {"reward/equal_verpo_groups": 0.5}


def test_outcomes_of_public_tests_alone_are_refused():
    rows = [(f"u_{n}_0", [1], 0.0, {"turns": [turn(0, 1, None)], "solved": False}) for n in range(2)]
    with pytest.raises(ValueError, match="judge_every_turn"):
        verl_advantages(rows, "verpo", verpo=HAND_CONSTANTS)


def test_grpo_counts_each_trajectory_once_and_leaves_what_was_shown_out():
    """Rewards 1, 0 and 0.5: the mean is 0.5 and the deviation 0.5, however many rows a trajectory has."""
    record = {"turns": [turn(0, 1, None)], "solved": False}
    rows = [
        ("u_0_0", [1], 1.0, record), ("u_0_1", [1, 1], 1.0, record), ("u_0_2", [1], 1.0, record),
        ("u_1_0", [1, 0, 1], 0.0, record), ("u_2_0", [1], 0.5, record), ("pad_0_0", [0], 0.0, None),
    ]  # fmt: skip
    advantages = verl_advantages(rows, "grpo")
    expected = [[1, 0, 0], [1, 1, 0], [1, 0, 0], [-1, 0, -1], [0, 0, 0], [0, 0, 0]]
    assert advantages.numpy() == pytest.approx(np.array(expected), abs=1e-5)


def trainer_of(scale):
    from cobalt_verl.trainers.episodes import EpisodeTrainer

    trainer = object.__new__(EpisodeTrainer)
    trainer.config = composed("d", "m", "o", data="episodes", rollout="multi_turn", scale=scale)
    return trainer


@pytest.mark.parametrize(
    ("scale", "ranks", "updates", "multiple"),
    # pocket: lcm(8 samples, micro-batches of 64 and 32); paper: lcm(2 x 16 samples, 2 x 4 x 2, 4 x 8)
    [("pocket", 1, 1, 64), ("paper", 4, 2, 32)],
)
def test_a_step_has_the_updates_of_single_turn_training_however_many_rows_there_are(
    scale, ranks, updates, multiple, monkeypatch
):
    from cobalt_verl.trainers.sync import CobaltTrainer

    trainer = trainer_of(scale)
    assert trainer._get_required_batch_multiple(ranks) == multiple
    actor, samples = trainer.config.actor_rollout_ref.actor, trainer.config.actor_rollout_ref.rollout.n
    configured, seen = actor.ppo_mini_batch_size, []
    monkeypatch.setattr(
        CobaltTrainer, "_update_actor", lambda self, batch, metrics: seen.append(actor.ppo_mini_batch_size * samples)
    )
    for rows in (multiple, 3 * multiple, 7 * multiple):
        trainer._update_actor(SimpleNamespace(keys=["k"] * rows), {})
        assert seen.pop() * updates == rows
        assert (rows // updates // ranks) % actor.ppo_micro_batch_size_per_gpu == 0
    assert actor.ppo_mini_batch_size == configured


def test_the_rewards_of_a_step_count_each_trajectory_once():
    from cobalt_verl.episodes import last_keys

    assert last_keys(["u_0_0", "u_0_10", "u_0_9", "v_1_0", "u_1_0"]) == ["u_0_10", "v_1_0", "u_1_0"]


# --- rows, checks, scripts


def rows_of(files, folder, policy, prompts="pocket", **rules):
    train, validation = files
    more = {"model_name": policy, "max_prompt_length": 512, "prompts": prompts} | rules
    convert_single_turn(SingleTurnRowsSettings(train_file=train, validation_file=validation, local_dir=folder, **more))


@pytest.fixture(scope="module")
def world(tmp_path_factory, policy):
    """Rows that begin episodes, rows that do not, and a model folder whose file of weights is empty."""
    folder = tmp_path_factory.mktemp("online")
    (folder / "model").mkdir()
    save_policy(folder / "model", "chatml", kind="qwen3")
    files = [
        write_lines(folder / f"{name}.jsonl", [square_problem(f"{name}{n}") for n in range(count)])
        for name, count in (("train", 160), ("validation", 4))
    ]
    rows_of(files, folder / "episodes", policy, episodes=True, enable_thinking=True, truncated_thinking="drop")
    rows_of(files, folder / "plain", policy)
    return folder


def errors_of(world, *overrides, rows="episodes", **choices):
    chosen = {"data": "episodes", "rollout": "multi_turn", "scale": "pocket"} | choices
    return refused_training(lambda: composed(world / rows, world / "model", world / "out", *overrides, **chosen))


def test_rows_say_how_an_episode_goes_on(world):
    row = parquet.read_table(world / "episodes" / "train.parquet").to_pylist()[3]
    assert row["extra_info"]["episode"] == {
        "public_tests": [0, 1], "prompts": "pocket", "enable_thinking": True, "truncated_thinking": "drop",
    }  # fmt: skip
    plain = parquet.read_table(world / "plain" / "train.parquet").to_pylist()[3]
    assert "episode" not in plain["extra_info"] and plain["prompt"] == row["prompt"]


@pytest.mark.parametrize(("inputs", "message"), [([], "no public tests"), (["9\n"], "is not among all tests")])
def test_a_problem_whose_public_tests_cannot_give_feedback_is_refused(tmp_path, policy, inputs, message):
    public = json.dumps({"inputs": inputs, "outputs": inputs})
    train = write_lines(tmp_path / "t.jsonl", [square_problem("t", public_test_cases=public)])
    validation = write_lines(tmp_path / "v.jsonl", [square_problem("v")])
    with pytest.raises(UserError, match=message):
        rows_of([train, validation], tmp_path, policy, episodes=True)


def test_a_folder_of_prompts_is_named_by_its_whole_path(tmp_path, policy, monkeypatch):
    shutil.copytree(BUILT_IN / "pocket", tmp_path / "mine")
    (tmp_path / "pocket").mkdir()  # a name that comes with the package stays one
    monkeypatch.chdir(tmp_path)
    files = [write_lines(tmp_path / f"{name}.jsonl", [square_problem(name)]) for name in "tv"]
    for prompts, named in (("mine", str(tmp_path / "mine")), ("pocket", "pocket")):
        folder = tmp_path / f"rows_{prompts}"
        rows_of(files, folder, policy, prompts=prompts, episodes=True)
        [row] = parquet.read_table(folder / "train.parquet").to_pylist()
        assert row["extra_info"]["episode"]["prompts"] == named


def test_tests_are_found_among_others_and_results_are_read_there():
    every = TestSuite(("a", "b", "a", "c"), ("1", "2", "1", "3"))
    assert every.positions_of(TestSuite(("c", "a"), ("3", "1"))) == [3, 0]
    with pytest.raises(UserError, match="is not among"):
        every.positions_of(TestSuite(("a", "a"), ("1", "2")))
    with pytest.raises(UserError, match="that call"):
        TestSuite(("1", "2"), ("1", "2")).positions_of(TestSuite(("1",), ("1",), "f"))
    assert result_of(True, False, False).select([2, 0]).feedback == ["test 2 fails", ""]
    assert result_of(True, False, False).select([2, 0]).passing == [False, True]


@pytest.mark.parametrize("estimator", ["grpo", "verpo"])
def test_the_pocket_scale_has_nothing_to_refuse(world, estimator):
    for rollout in ("multi_turn", "multi_turn_until_solved"):
        assert errors_of(world, rollout=rollout, estimator=estimator) == []


@pytest.mark.parametrize(
    ("overrides", "choices", "message"),
    [
        (["cobalt.multi_turn.turns=0"], {}, "turns is 0"),
        (["cobalt.multi_turn.reward=mean"], {}, "reward is 'mean'"),
        (["cobalt.multi_turn.stop=soon"], {}, "stop is 'soon'"),
        (["+cobalt.multi_turn.horizon=3"], {}, "horizon"),
        (["cobalt.multi_turn=3"], {}, "cobalt.multi_turn is 3"),
        ([], {"rows": "plain"}, "episode"),
        ([], {"estimator": "verpo", "rollout": "single_turn"}, "use the rollout multi_turn"),
        (["cobalt.judge_every_turn=false"], {"estimator": "verpo"}, "cobalt.judge_every_turn=true"),
        (["algorithm.verpo.gamma=2"], {"estimator": "verpo"}, "gamma is 2"),
        (["algorithm.adv_estimator=verpo"], {}, "cobalt.judge_every_turn=true"),
        (["algorithm.use_kl_in_reward=true"], {"estimator": "verpo"}, "use_kl_in_reward"),
        (["actor_rollout_ref.rollout.n=1"], {"estimator": "verpo"}, "verpo compares at least 2 samples"),
        (["algorithm.adv_estimator=rloo"], {}, "algorithm.adv_estimator 'rloo'"),
        (["data.max_prompt_length=32700"], {}, "is more than the 32768 tokens"),
    ],
)
def test_a_setting_that_would_harm_is_refused(world, overrides, choices, message):
    found = errors_of(world, *overrides, **choices)
    assert any(message in error for error in found), found


def test_the_default_constants_of_the_configuration_are_those_of_the_equations():
    config = composed("d", "m", "o", data="episodes", rollout="multi_turn", estimator="verpo")
    assert equations.VerpoSettings(**config.algorithm.verpo) == equations.PUBLISHED


@pytest.mark.parametrize("profile", ["pocket", "paper"])
@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("train_grpo_mt.sh", ["adv_estimator: grpo", "turns: 3", "stop: never", "clip_ratio_high: 0.4"]),
        ("train_verpo_mt.sh", ["adv_estimator: verpo", "turns: 4", "stop: all_passed", "clip_ratio_high: 0.28"]),
    ],
)
def test_verl_itself_accepts_the_scripts_in_a_dry_run(world, tmp_path, script, lines, profile):
    finished = subprocess.run(
        ["bash", f"scripts/{script}", "--profile", profile, "--data_dir", world / "episodes", "--model",
         world / "model", "--output_dir", tmp_path / "o", "--print_config"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    said = {line.strip() for line in finished.stdout.splitlines()}
    loop = "default_agent_loop: " + {"pocket": "seeded_multi_turn", "paper": "multi_turn"}[profile]
    length = {"pocket": "max_prompt_length: 1024", "paper": "max_prompt_length: 10240"}[profile]
    assert {*lines, loop, length} <= said
    assert not (tmp_path / "o").exists()
