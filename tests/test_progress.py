"""Progress in a log file: whole lines now and then and one at the end, no bar; and the time that a rollout has left."""

import asyncio
import io
import logging
import re
import sys

import pytest
from support import FakeEngine, FakeJudge, square_problem, write_lines

from cobalt.engine import Call, GenerationSettings
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.shared import CountingEngine
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


either = pytest.mark.parametrize("terminal", [False, True])


@pytest.fixture
def error(terminal, monkeypatch, caplog):
    """A function that puts a terminal, or a file, in the place of standard error, which it returns."""
    caplog.set_level(logging.INFO, "cobalt.stage.progress")

    def replaced():
        monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
        return sys.stderr

    return replaced


@either
def test_a_long_loop_logs_now_and_then_and_at_the_end_where_there_is_no_terminal(error, terminal, monkeypatch, caplog):
    written, now = error(), iter(range(1000, 10**6, 2))  # the clock goes on whenever it is looked at
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(now)))
    assert list(progress.track(range(40), total=40, desc="work", unit="item")) == list(range(40))
    said = caplog.messages
    assert bool(said) != terminal == ("\r" in written.getvalue())
    if not terminal:
        assert 2 < len(said) < 40
        assert re.fullmatch(r"work: 40 of 40 items \[\d\d:\d\d<00:00\]", said[-1]) and "<00:00" not in said[0]


@either
async def test_a_run_is_shown_while_nothing_finishes_and_at_its_end(error, terminal, monkeypatch, caplog):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    written = error()
    states, last = iter([(0, 8, "first"), *[(0, 8, "then")] * 3]), (8, 8, "last")
    all_shown = asyncio.Event()

    def state():
        following = next(states, last)
        if following is last:
            all_shown.set()
        return following

    async with progress.ticking(state, desc="work", unit="response"):
        await all_shown.wait()
    shown = written.getvalue().split("\r") if terminal else caplog.messages
    assert bool(caplog.messages) != terminal
    assert len([line for line in shown if "0 of 8 responses" in line and "then" in line]) >= 3
    assert "8 of 8 responses" in shown[-1] and "last" in shown[-1]


async def test_a_rollout_counts_responses_and_the_time_left(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    engine = CountingEngine(FakeEngine("no program"), 12)
    settings = GenerationSettings(temperature=1, top_p=1, max_tokens=8, n=2, seed=0)
    await engine.generate([], settings, Call("a", 0))
    clock[0] = 100.0  # two responses in 100 seconds, and ten are left
    done, total, words = engine.standing()
    assert (done, total) == (2, 12) and words.endswith("about 08:20 left")


@pytest.mark.parametrize(("turns", "responses"), [(0, 6), (2, 18)])
async def test_the_last_line_of_a_rollout_counts_all_responses(tmp_path, monkeypatch, caplog, turns, responses):
    caplog.set_level(logging.INFO, "cobalt.stage.progress")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    files = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(3)]), tmp_path / "r.jsonl"
    if turns:
        await repair(RepairSettings(*files, num_completions=2, turns=turns), FakeEngine("none", model="m"), FakeJudge())
    else:
        await sample(SampleSettings(*files, num_completions=2), FakeEngine("none", model="m"), FakeJudge())
    assert f"{responses} of {responses} responses" in caplog.messages[-1]
