"""Progress in a log file: whole lines now and then and one at the end, no bar; and the time that a rollout has left."""

import asyncio
import itertools
import logging
import random
import re
import selectors

import pytest
from support import FakeJudge, square_problem, write_lines

from cobalt.engine import Completion
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage import progress
from cobalt.stage.errors import InfrastructureError


@pytest.fixture
def lines(monkeypatch, caplog):
    """The lines that are logged, while standard error is not a terminal and each item takes ten seconds."""
    caplog.set_level(logging.INFO, "cobalt.stage.progress")
    now = iter(range(1000, 10**6, 10))
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(now)))
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "cobalt.stage.progress"]


def test_a_long_loop_logs_now_and_then_and_at_the_end(lines, capsys):
    assert list(progress.track(range(40), total=40, desc="work", unit="item")) == list(range(40))
    said = lines()
    assert 2 < len(said) < 40
    assert "40 of 40 items" in said[-1] and "left" not in said[-1]
    assert "left" in said[0]
    assert "\r" not in capsys.readouterr().err


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, so that hours pass at once and always alike."""

    def __init__(self):
        self.seconds = 0.0
        loop = self

        class Jumping(selectors.DefaultSelector):
            def select(self, timeout=None):
                loop.seconds += timeout or 0.0
                return super().select(0)

        super().__init__(Jumping())

    def time(self):
        return self.seconds

    def run_in_executor(self, executor, function, *arguments):
        result = self.create_future()
        result.set_result(function(*arguments))
        return result


class SlowEngine:
    """An engine that writes ten tokens a second in each response; the lengths are drawn, and a limit cuts them off."""

    def __init__(self, draw, failing=()):
        self.draw, self.failing, self.numbers = draw, failing, random.Random(0)

    async def generate(self, conversation, settings, call):
        lengths = [int(min(settings.max_tokens, self.draw(self.numbers))) for _ in range(settings.n)]
        await asyncio.sleep(max(lengths) / 10)
        if call.problem_id in self.failing:
            raise InfrastructureError("gone")
        return [
            Completion(
                text="no program",
                finish_reason="length" if length == settings.max_tokens else "stop",
                completion_tokens=length,
            )
            for length in lengths
        ]

    async def describe(self):
        return {"model": "m", "device": "cpu"}


@pytest.fixture
def rollout(lines, tmp_path):
    """A function that runs a rollout in virtual time; it returns the lines, each with its time, and the last time."""

    def run(engine, problems, turns, max_tokens=8192, *, n=4):
        source = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(problems)])
        generation = {"num_completions": n, "max_tokens": max_tokens}
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            at = []
            noting = logging.Handler()
            noting.emit = lambda record: at.append((runner.get_loop().time(), record.getMessage()))
            logging.getLogger("cobalt.stage.progress").addHandler(noting)
            try:
                if turns:
                    run = RepairSettings(source, tmp_path / "m.jsonl", **generation, turns=turns)
                    runner.run(repair(run, engine, FakeJudge()))
                else:
                    run = SampleSettings(source, tmp_path / "s.jsonl", **generation)
                    runner.run(sample(run, engine, FakeJudge()))
            finally:
                logging.getLogger("cobalt.stage.progress").removeHandler(noting)
            return at, runner.get_loop().time()

    return run


def counted(line):
    """How many responses a line says are done, of how many."""
    return tuple(map(int, re.search(r"(\d+) of (\d+)", line).groups()))


def seconds(text):
    """The seconds of `1:02:03` or `02:03`."""
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


def test_a_rollout_says_how_far_it_is_every_half_minute_even_if_nothing_finishes(rollout):
    said, end = rollout(SlowEngine(lambda numbers: 2950), 2, 0)
    assert end == 295
    moments = [0.0, *[moment for moment, _ in said]]
    assert len(said) == 10 and max(after - before for before, after in itertools.pairwise(moments)) <= 30
    assert [counted(line) for _, line in said] == [(0, 8)] * 9 + [(8, 8)]
    assert "23,600 tokens" in said[-1][1] and "left" not in said[-1][1]


@pytest.mark.parametrize("turns", [0, 3])
def test_the_time_left_is_right_within_a_factor_of_two(rollout, turns):
    said, end = rollout(SlowEngine(lambda numbers: numbers.uniform(500, 2500)), 300, turns)
    looked_at = 0
    for moment, line in said[:-1]:
        done, total = counted(line)
        rest = end - moment
        if total / 10 <= done <= 0.8 * total:
            left = seconds(re.findall(r"\d+(?::\d\d)+", line)[-1])
            assert rest / 2 <= left <= 2 * rest, f"{line}: {rest:.0f} s were left"
            looked_at += 1
    assert looked_at > 2


def test_responses_of_a_problem_that_failed_are_not_waited_for(rollout):
    said, _ = rollout(SlowEngine(lambda numbers: 1000, failing=[1]), 3, 2, n=2)
    assert counted(said[0][1]) == (0, 18) and counted(said[-1][1]) == (12, 12)


def test_a_terminal_has_a_bar_that_moves_while_nothing_finishes(rollout, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    said, _ = rollout(SlowEngine(lambda numbers: 600), 1, 0)
    assert said == []
    drawn = capsys.readouterr().err.split("\r")
    assert len({text for text in drawn if "0 of 4 responses" in text}) > 30
