"""Result files: nothing finished is lost, nothing is counted twice, and every malformed line is reported."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.stage.errors import UserError
from cobalt.stage.records import RecordFile, read_records
from cobalt.stage.run import whole


def test_records_come_back_in_order_and_ids_zero_and_empty_count_as_done(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as output:
        for identifier in (0, "", "x"):
            output.append({"id": identifier, "value": "é \ud800"})  # half a pair, as models write it
    with RecordFile(path) as output:
        assert output.done == {0, "", "x"}
    assert [record["id"] for record in read_records(path)] == [0, "", "x"]


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_file_cut_anywhere_resumes_with_whole_records_only(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    with RecordFile(path) as output:
        for identifier in range(5):
            output.append({"id": identifier, "text": "x" * 20})
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole))])
    complete = whole[: min(cut, len(whole))].count(b"\n")
    assert len(read_records(path, unfinished=True)) == complete
    with RecordFile(path) as output:
        assert output.done == set(range(complete))
        for identifier in range(complete, 5):
            output.append({"id": identifier, "text": "x" * 20})
    assert path.read_bytes() == whole


def test_an_input_that_ends_inside_a_record_is_an_error_and_one_without_a_last_newline_is_read_whole(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}')
    assert [record["id"] for record in read_records(path)] == [1, 2]
    path.write_text('{"id": 1}\n{"id": 2')
    with pytest.raises(UserError, match=r"line 2: not valid JSON .*cut off"):
        read_records(path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"id": 1}\nnot json\n{"id": 2}\n', "line 2"),
        ('{"id": 1}\n{"id": 2}\n{"id": 1}\n', "line 3: id 1 .*line 1"),
        ('{"value": 1}\n', "field 'id'"),
    ],
)
def test_what_is_wrong_inside_a_file_is_named_by_line_and_field(tmp_path, content, named):
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    for opened in (RecordFile, read_records):
        with pytest.raises(UserError, match=named):
            opened(path)


def test_sorting_gives_the_input_order_whatever_order_records_finished_in(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "c"}\n\n{"id": "a"}\n{"id": "b"}\n{"id"')  # a blank line, and a torn one
    with RecordFile(path) as output:
        output.append({"id": "other"})
        output.append({"id": "0"})
        output.sort(["0", "a", "b", "c"])
    assert [record["id"] for record in read_records(path)] == ["0", "a", "b", "c", "other"]


NO_RESULTS = {
    **{"/dev/null": "not a file", ".": "a folder", "": "a folder"},
    **dict.fromkeys(("r.jsonl.gz", "r.parquet"), "jsonl"),  # which could not be read again
    **{name: f"cannot write .*{name[-9:]}" for name in ("a file/r.jsonl", "x" * 300, "/proc/nothing/r.jsonl")},
}


@pytest.mark.parametrize("name", NO_RESULTS)
def test_a_result_that_cannot_be_written_and_read_again_is_refused_before_the_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("a file").touch()
    with pytest.raises(UserError, match=NO_RESULTS[name]):
        RecordFile(Path(name))
    with pytest.raises(UserError, match=NO_RESULTS[name]), whole(Path(name), {}):
        pytest.fail("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


@pytest.mark.parametrize("content", ["key", '{"id": 1}\n{"id": 2}'])
def test_a_file_to_which_nothing_is_written_keeps_every_byte(tmp_path, content):
    path = tmp_path / "someone_elses"
    path.write_text(content)
    with RecordFile(path):
        pass
    assert path.read_text() == content
    path.unlink()
    with RecordFile(path):
        assert path.exists()
    assert not path.exists(), "a result that got no record"
