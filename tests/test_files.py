"""Paths are checked before the work: what cannot be read or written is named, and no input is ever written over."""

import os

import pytest

from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("{}")
    return path


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_that_can_be_read_and_written_pass_and_nothing_is_left_or_changed(tmp_path, problems):
    old = tmp_path / "old.jsonl"
    old.write_text("torn")
    before = tree(tmp_path)
    check_files([problems, problems], [tmp_path / "new" / "folder" / "r.jsonl", old])
    assert tree(tmp_path) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "a pipe or a device"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "No such file"),
    ],
)
def test_an_input_that_cannot_be_read_is_named(tmp_path, make, message):
    make(tmp_path / "input.jsonl")
    with pytest.raises(UserError, match=rf"cannot read .*input\.jsonl: .*{message}"):
        check_files([tmp_path / "input.jsonl"], [tmp_path / "r.jsonl"])


SPELLINGS = {
    "same": ("problems.jsonl", "problems.jsonl"),
    "dots": ("problems.jsonl", "folder/../problems.jsonl"),
    "link": ("problems.jsonl", "link.jsonl"),
    "hard link": ("problems.jsonl", "hard.jsonl"),
    "linked folder": ("problems.jsonl", "linked/problems.jsonl"),
    "link as input": ("link.jsonl", "problems.jsonl"),
    **{name: (name, "r.jsonl") for name in ("r.run.json", "r.errors.jsonl", "r.calls.jsonl", "r.metrics.json")},
    "part": ("r.jsonl.part", "r.jsonl"),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_result_that_would_replace_an_input_is_refused_under_every_spelling(tmp_path, problems, kind):
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path)
    (tmp_path / "link.jsonl").symlink_to(problems)
    (tmp_path / "hard.jsonl").hardlink_to(problems)
    given, result = (tmp_path / name for name in SPELLINGS[kind])
    other = tmp_path / "other.jsonl"
    for path in (other, given):
        path.touch()
    with pytest.raises(UserError, match="output"):
        check_files([other, given], [tmp_path / "first.jsonl", result])
    assert problems.read_text() == "{}"


def test_two_results_in_one_place_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="named for two results"):
        check_files([], [tmp_path / "r.svg", tmp_path / "link" / "r.svg"])
