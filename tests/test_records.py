"""Result files and paths: nothing finished is lost or counted twice, mistakes are named, no input is replaced."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.records import RecordFile, read_records
from cobalt.stage.run import whole


def test_ids_zero_and_empty_count_as_done_and_sorting_gives_the_input_order_whatever_finished_first(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "c"}\n\n{"id": ""}\n{"id": "b"}\n{"id"')  # a blank line, and a torn one
    with RecordFile(path) as output:
        for identifier in ("other", 0):
            output.append({"id": identifier, "value": "é \ud800"})  # half a pair, as models write it
        output.sort([0, "", "b", "c"])
    with RecordFile(path) as output:
        assert output.done == {0, "", "b", "c", "other"}
    assert [record["id"] for record in read_records(path)] == [0, "", "b", "c", "other"]


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_file_cut_anywhere_resumes_with_whole_records_only(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("records") / "r.jsonl"

    def append(first):
        with RecordFile(path) as output:
            assert output.done == set(range(first))
            for identifier in range(first, 5):
                output.append({"id": identifier, "text": "x" * 20})

    append(0)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    assert len(read_records(path, unfinished=True)) == complete
    append(complete)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "named", "opened"),
    [
        ('{"id": 1}\nnot json\n{"id": 2}\n', "line 2", (RecordFile, read_records)),
        ('{"id": 1}\n{"id": 2}\n{"id": 1}\n', "line 3: id 1 .*line 1", (RecordFile, read_records)),
        ('{"value": 1}\n', "line 1: .*'id'", (RecordFile, read_records)),
        ('{"id": 1}\n{"id": 2', "line 2", (read_records,)),
        ('[{"id": 1}]', "r.jsonl .*array", (RecordFile,)),
    ],
)
def test_what_is_wrong_inside_a_file_is_named_by_line_and_field(tmp_path, content, named, opened):
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    for each in opened:
        with pytest.raises(UserError, match=named):
            each(path)


NO_RESULTS = {"/dev/null": "'/dev/null'", ".": r"'\.'", "": r"'\.'"}
NO_RESULTS |= {name: name[-9:] for name in ("a file/r.jsonl", "x" * 300, "/proc/nothing/r.jsonl")}


@pytest.mark.parametrize("name", NO_RESULTS)
def test_a_result_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("a file").touch()
    with pytest.raises(UserError, match=NO_RESULTS[name]):
        RecordFile(Path(name))
    with pytest.raises(UserError, match=NO_RESULTS[name]), whole(Path(name), {}):
        pytest.fail("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


@pytest.mark.parametrize("content", ["key", '{"id": 1}\n{"id": 2}', ""])
def test_a_file_to_which_nothing_is_written_keeps_every_byte_and_one_without_a_record_goes(tmp_path, content):
    path = tmp_path / "someone_elses"
    if content:
        path.write_text(content)
    with RecordFile(path):
        assert path.exists()
    assert (path.read_text() if path.exists() else None) == (content or None)


# Inputs, results, and what the refusal names; "": they are accepted.
PATHS = [
    (["problems.jsonl", "problems.jsonl"], ["new/folder/r.jsonl", "other.jsonl"], ""),
    *(([name], ["r.jsonl"], f"/{name}") for name in ("absent", "nowhere", "folder", "pipe")),
    *(
        (["other.jsonl", "problems.jsonl"], ["first.jsonl", result], f"/{result}")
        for result in ("problems.jsonl", "folder/../problems.jsonl", "link", "hard", "linked/problems.jsonl")
    ),
    (["link"], ["problems.jsonl"], "/problems.jsonl"),
    *(
        ([name], ["r.jsonl"], f"/{name} .*/r.jsonl")
        for name in ("r.run.json", "r.errors.jsonl", "r.calls.jsonl", "r.metrics.json", "r.jsonl.part")
    ),
    ([], ["r.svg", "linked/r.svg"], "linked/r.svg"),
]


@pytest.mark.parametrize(("inputs", "results", "named"), PATHS)
def test_paths_are_checked_under_every_spelling_and_nothing_is_made_or_changed(tmp_path, inputs, results, named):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in {"problems.jsonl", "other.jsonl", *(name for name in inputs if name.startswith("r."))}:
        (tmp_path / name).write_text("torn")
    for name, target in {"linked": "", "link": "problems.jsonl", "nowhere": "absent"}.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    (tmp_path / "hard").hardlink_to(tmp_path / "problems.jsonl")
    before = {*tmp_path.iterdir()}
    with pytest.raises(UserError, match=named) if named else contextlib.nullcontext():
        check_files(*([tmp_path / name for name in names] for names in (inputs, results)))
    assert {*tmp_path.iterdir()} == before
    assert {path.read_text() for path in before if path.is_file()} == {"torn"}
