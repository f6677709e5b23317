"""The benchmark of a training step (`benchmarks/step.py`): its bare sides are bare, and its figures add up.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import ROOT

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

pytestmark = pytest.mark.slow


@pytest.fixture
def step(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import step

    yield step
    for name in ("step", "timed"):
        sys.modules.pop(name, None)


def arguments(step, tmp_path, **others):
    return step.Arguments(tmp_path, "model", tmp_path / "out", [], **others)


def texts_of(value):
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts_of(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    ("scale", "quick", "judged"), [("pocket", False, False), ("pocket", True, True), ("paper", True, False)]
)
def test_a_bare_side_has_nothing_of_this_project_but_what_it_says(step, tmp_path, scale, quick, judged):
    from omegaconf import OmegaConf

    from cobalt.training.configuration import VERL_ADDITIONS, compose
    from cobalt.training.machine import trains_on_cpu

    settings = step.settings_of(arguments(step, tmp_path, scale=scale), tmp_path / "run")
    ours = compose(settings)
    on_cpu = trains_on_cpu(ours)
    further = step.bare_overrides(quick=quick, on_cpu=on_cpu, judged=judged)
    bare = compose(step.settings_of(arguments(step, tmp_path, scale=scale), tmp_path / "run", further))
    sections = {name: value for name, value in OmegaConf.to_container(bare, resolve=True).items() if name != "cobalt"}
    named = [text for text in texts_of(sections) if "cobalt" in text or str(VERL_ADDITIONS) in text]
    engine = ["cobalt_verl.cpu.shared_prompts"] if quick and on_cpu else []
    executor = ["cobalt.engine.vllm_executor.BoundExecutor"] if on_cpu else []
    assert sorted(set(named) - {"cobalt"}) == sorted(engine + executor)  # "cobalt" is the name of the project in logs
    assert bare.reward.custom_reward_function.name == ("judged_score" if judged else "compute_score")
    same = ("data", "algorithm", "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size")
    assert all(OmegaConf.select(ours, key) == OmegaConf.select(bare, key) for key in same)


def write_run(step, run: Path, reward: float, seconds: float):
    """Logs of four steps of a second more each than their phases take."""
    from torch.utils.tensorboard import SummaryWriter

    timings = dict.fromkeys(step.PHASES.values(), 0.5) | {"gen": 1.0 + reward, "reward_wait": reward}
    with SummaryWriter(str(run / "tensorboard")) as writer:
        for number in range(1, 5):
            logged = 1000.0 + seconds * number
            writer.add_scalar("perf/total_num_tokens", 600, number, walltime=logged)
            writer.add_scalar("timing_s/step", seconds - 0.5, number, walltime=logged)
            for name, value in timings.items():
                writer.add_scalar(f"timing_s/{name}", value, number, walltime=logged)


def test_phases_and_the_rest_are_the_whole_step_and_warm_up_does_not_count(step, tmp_path):
    write_run(step, tmp_path, reward=0.25, seconds=6.0)
    rows = step.steps_of(tmp_path)
    assert len(rows) == 2
    for row in rows:
        assert row["generate"] == pytest.approx(1.0)
        assert row["step"] == pytest.approx(6.0) == pytest.approx(sum(row[name] for name in (*step.PHASES, "rest")))


def test_the_cost_is_what_the_step_is_longer_for_the_same_tokens(step, tmp_path):
    rows = {}
    of_sides = ((step.BARE, 8.0), (step.QUICK, 4.5), (step.JUDGED, 6.0), (step.PLAIN, 4.75), (step.OURS, 5.0))
    for side, seconds in of_sides:
        write_run(step, tmp_path / side, reward=0.0, seconds=seconds)
        rows[side] = step.steps_of(tmp_path / side)
    text = step.table(rows, {side: [30.0] for side in rows})
    assert f"adds to {step.JUDGED}: -20.0 % of its step" in text
    assert f"adds to {step.QUICK}: 10.0 % of its step for the same tokens, its judge 5.0 %" in text
    assert f"to {step.BARE}: 1.60" in text
    assert "| tokens a second | 75 | 133 | 100 | 126 | 120 |" in text


def test_start_up_ends_where_the_first_step_begins(step, tmp_path):
    write_run(step, tmp_path, reward=0.0, seconds=6.0)
    assert step.first_step_began(tmp_path) == pytest.approx(1000.5)
    rows = {step.APART: step.steps_of(tmp_path), step.OURS: step.steps_of(tmp_path)}
    text = step.table(rows, {step.APART: [40.0, 50.0], step.OURS: [31.0]})
    assert "| start-up | 45 s | 31 s |" in text


@pytest.mark.parametrize("wrong", [{"sides": ()}, {"sides": ("ours", "ours")}, {"steps": 2}, {"rounds": 0}])
def test_what_cannot_be_measured_is_refused(step, tmp_path, wrong):
    from cobalt.stage.errors import UserError

    with pytest.raises(UserError):
        step.main(arguments(step, tmp_path, **wrong))


@pytest.mark.parametrize(("program", "share"), [("print(int(input()) + 1)", 1.0), ("print(2)", 0.5), ("1 / 0", 0.0)])
def test_verls_own_judge_reads_the_tests_of_this_projects_rows(monkeypatch, program, share):
    from cobalt.problems.problem import TestSuite

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import plain_verl

    tests = TestSuite(("1\n", "5\n"), ("2\n", "6\n")).to_json()
    score = plain_verl.judged_score("pocket", f"Add one.\n```python\n{program}\n```", tests, {})
    sys.modules.pop("plain_verl")
    assert score == share
