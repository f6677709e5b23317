"""Rows of data sets: local files and data sets by name give the same rows, one at a time."""

import gzip
import hashlib
import json
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from support import square_problem, write_lines

from cobalt.datasets.sources import hub_file, hub_rows, local_rows
from cobalt.errors import UserError
from cobalt.manifest import file_digest
from cobalt.problem import load_problems
from cobalt.records import encode_record, iterate_records
from cobalt.rows import read_rows

ROWS = [{"id": number, "solutions": ["a", "b"], "question": "é" * number} for number in range(40)]


@pytest.mark.slow
def test_a_data_set_by_name_streams_the_rows_of_its_files(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "train.parquet")
    rows = list(hub_rows(str(tmp_path), "train", "main", "give a file"))
    assert [row for _, row in rows] == ROWS
    assert rows[3][0].endswith("row 4")
    assert [row for _, row in local_rows(tmp_path / "train.parquet")] == ROWS
    with pytest.raises(UserError, match="cannot stream .*: give a file"):
        list(hub_rows(str(tmp_path), "validation", "main", "give a file"))


@pytest.mark.slow
def test_unreachable_data_sets_name_the_file_to_give(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UserError, match="cannot stream nobody/nothing .*: give a file"):
        list(hub_rows("nobody/nothing", "train", "main", "give a file"))
    with pytest.raises(UserError, match=r"cannot download x\.jsonl of nobody/nothing .*: give a file"):
        hub_file("nobody/nothing", "x.jsonl", "main", "give a file")


@pytest.mark.parametrize("bytes_left", [0, 3, 100, 4000])
def test_a_truncated_parquet_file_is_refused(tmp_path, bytes_left):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:bytes_left] if bytes_left < 4000 else b"PAR1" + path.read_bytes()[8:])
    with pytest.raises(UserError, match=r"rows\.parquet"):
        list(local_rows(path))


def test_json_lines_are_numbered(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", ROWS)
    assert [row for _, row in local_rows(path)] == ROWS
    assert [where for where, _ in local_rows(path)][2] == f"{path}, line 3"


def test_a_bad_line_of_a_compressed_file_is_named_by_that_file(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": 1}\n{"id":\n'))
    rows = local_rows(path)
    assert next(rows) == (f"{path}, line 1", {"id": 1})
    with pytest.raises(UserError, match=rf"^{path}, line 2: not valid JSON"):
        next(rows)


def write(path, rows):
    """The rows in the form that the name of the file says."""
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    name = path.name.removesuffix(".gz")
    text = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


FORMS = ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.parquet"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_problem_file_gives_the_same_problems(tmp_path, name):
    records = [square_problem(number) for number in range(20)]
    path = write(tmp_path / name, records)
    assert [problem.record for problem in load_problems(path)] == records
    digest = hashlib.sha256()
    assert list(iterate_records(path, digest=digest)) == records
    assert digest.hexdigest() == file_digest(path)


@pytest.mark.parametrize("name", FORMS)
def test_a_bad_row_is_named_in_every_form(tmp_path, name):
    path = write(tmp_path / name, [square_problem(1), square_problem(1)])
    place = {"a.parquet": "row 2", "a.json": "item 2", "a.json.gz": "item 2"}.get(name, "line 2")
    with pytest.raises(UserError, match=f"{name}, {place}: id 1"):
        load_problems(path)


@pytest.mark.parametrize("content", [b"[1, 2]", b"[{]", b"[", b'[{"id": 1}, 2]'])
def test_an_array_of_something_else_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json"):
        list(read_rows(path))


@pytest.mark.parametrize(
    "content", [b"plain", gzip.compress(b'{"id": 1}\n' * 1000, mtime=0)[:30]], ids=["plain", "cut"]
)
def test_a_broken_gzip_file_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.jsonl\.gz"):
        list(read_rows(path))


def test_values_of_a_parquet_file_that_json_lacks_are_written_as_text(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    moment = datetime(2026, 1, 2, 3, 4, 5)
    row = {
        "price": Decimal("1.50"),
        "raw": b"\xffa",
        "took": timedelta(seconds=1),
        "when": [moment],
        "at": {"day": moment},
    }
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    (found,) = (row for _, row in local_rows(tmp_path / "rows.parquet"))
    assert json.loads(encode_record(found)) == found
    assert (found["price"], found["raw"], found["when"]) == ("1.50", "\ufffda", [moment.isoformat()])
