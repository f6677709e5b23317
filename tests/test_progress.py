"""Progress in a log file: whole lines now and then and one at the end, no bar."""

import logging

import pytest

from cobalt import progress


@pytest.fixture
def lines(monkeypatch, caplog):
    """The lines that are logged, while standard error is not a terminal and each item takes ten seconds."""
    caplog.set_level(logging.INFO, "cobalt.progress")
    now = iter(range(1000, 10**6, 10))
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(now)))
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "cobalt.progress"]


def test_a_long_loop_logs_now_and_then_and_at_the_end(lines, capsys):
    assert list(progress.track(range(40), total=40, desc="work", unit="item")) == list(range(40))
    said = lines()
    assert 2 < len(said) < 40
    assert "40 of 40 items" in said[-1] and "left" not in said[-1]
    assert "left" in said[0]
    assert "\r" not in capsys.readouterr().err


def test_work_that_is_counted_by_hand_ends_with_a_line_even_if_it_was_short(lines):
    with progress.track(total=3, initial=1, desc="work", unit="item") as bar:
        bar.update(1)
    [last] = lines()
    assert "2 of 3 items" in last


def test_a_loop_of_unknown_length_says_how_far_it_is(lines):
    with progress.track(desc="work", unit="row") as bar:
        bar.update(7)
    assert "7 rows" in lines()[-1]
