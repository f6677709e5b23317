"""Online multi-turn training but for its agent loop: advantages in veRL, batches, rows."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyarrow import parquet
from support import composed, result_of, square_problem, write_lines

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
    """Trajectory 0 is one row with feedback between its turns; trajectory 1 has a row for each turn, out of order.

    Among them are the rows of another prompt, with another number of tests: each has the advantages that it has alone.
    """
    (a, b), (c, d) = HAND
    (first, second), (third, fourth) = HAND_ADVANTAGES
    pairs = [
        (("u_1_1", [1, 1, 1, 1], 0.0, {"turns": [turn(0, 4, d)], "solved": True}), [fourth] * 4 + [0, 0]),
        (
            ("u_0_0", [1, 1, 0, 0, 0, 1], 0.0, {"turns": [turn(0, 2, a), turn(5, 6, b)], "solved": False}),
            [first, first, 0, 0, 0, second],
        ),
        (("u_1_0", [1, 1, 1], 0.0, {"turns": [turn(0, 3, c)], "solved": True}), [third] * 3 + [0, 0, 0]),
        (("pad9_0_0", [0], 0.0, None), [0] * 6),
    ]
    other, solved = [[[0, 1]], [[1, 1], [0, 0], [1, 1]]], [False, True]
    settings = equations.VerpoSettings(**HAND_CONSTANTS)
    alone = equations.advantages([np.array(path, float) for path in other], solved, settings)
    for session, path in enumerate(other):
        for index, passed in enumerate(path):
            record = {"turns": [turn(0, 1, passed)], "solved": solved[session]}
            pairs.append(((f"v_{session}_{index}", [1], 0.0, record), [alone[session][index], 0, 0, 0, 0, 0]))
    rows, expected = zip(*pairs[::2], *pairs[1::2], strict=True)
    advantages = verl_advantages(rows, "verpo", verpo=HAND_CONSTANTS)
    assert advantages.numpy() == pytest.approx(np.array(expected), abs=1e-6)


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


@pytest.mark.parametrize(
    ("scale", "ranks", "updates", "multiple"),
    # pocket: lcm(8 samples, micro-batches of 64 and 32); paper: lcm(2 x 16 samples, 2 x 4 x 2, 4 x 8)
    [("pocket", 1, 1, 64), ("paper", 4, 2, 32)],
)
def test_a_step_has_the_updates_of_single_turn_training_however_many_rows_there_are(
    scale, ranks, updates, multiple, monkeypatch
):
    from cobalt_verl.trainers.episodes import EpisodeTrainer
    from cobalt_verl.trainers.sync import CobaltTrainer

    trainer = object.__new__(EpisodeTrainer)
    trainer.config = composed("d", "m", "o", data="episodes", rollout="multi_turn", scale=scale)
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


# --- rows


def rows_of(files, folder, policy, prompts="pocket", **rules):
    train, validation = files
    more = {"model_name": policy, "max_prompt_length": 512, "prompts": prompts} | rules
    convert_single_turn(SingleTurnRowsSettings(train_file=train, validation_file=validation, local_dir=folder, **more))


def test_rows_say_how_an_episode_goes_on(tmp_path, policy):
    files = [write_lines(tmp_path / f"{name}.jsonl", [square_problem(name)]) for name in "tv"]
    rules = {"enable_thinking": True, "truncated_thinking": "drop"}
    rows_of(files, tmp_path / "episodes", policy, episodes=True, **rules)
    rows_of(files, tmp_path / "plain", policy)
    folders = (tmp_path / "episodes", tmp_path / "plain")
    [row], [plain] = (parquet.read_table(folder / "train.parquet").to_pylist() for folder in folders)
    assert row["extra_info"]["episode"] == rules | {"public_tests": [0, 1], "prompts": "pocket"}
    assert "episode" not in plain["extra_info"] and plain["prompt"] == row["prompt"]


@pytest.mark.parametrize("inputs", [[], ["9\n"]])
def test_a_problem_whose_public_tests_cannot_give_feedback_is_refused(tmp_path, policy, inputs):
    public = json.dumps({"inputs": inputs, "outputs": inputs})
    train = write_lines(tmp_path / "t.jsonl", [square_problem("t", public_test_cases=public)])
    validation = write_lines(tmp_path / "v.jsonl", [square_problem("v")])
    with pytest.raises(UserError, match="t.jsonl: .*'t': .*'public_test_cases'"):
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
    with pytest.raises(UserError):
        every.positions_of(TestSuite(("a", "a"), ("1", "2")))
    assert result_of(True, False, False).select([2, 0]).feedback == ["test 2 fails", ""]
    assert result_of(True, False, False).select([2, 0]).passing == [False, True]


def test_the_default_constants_of_the_configuration_are_those_of_the_equations():
    config = composed("d", "m", "o", data="episodes", rollout="multi_turn", estimator="verpo")
    assert equations.VerpoSettings(**config.algorithm.verpo) == equations.PUBLISHED
