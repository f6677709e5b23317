"""Rows of data sets: local files and data sets by name give the same rows, one at a time."""

import gzip
import json
import subprocess
import sys
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from support import square_problem

from cobalt.datasets.sources import hub_file, hub_rows, local_rows
from cobalt.problems.problem import load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.records import encode_record, iterate_records
from cobalt.stage.rows import LARGEST_ROW, LONGEST_NUMBER, MOST_EXPANSION, read_rows

ROWS = [{"id": number, "solutions": ["a", "b"], "question": "é" * number} for number in range(40)]


@pytest.mark.slow
def test_a_data_set_by_name_streams_the_rows_of_its_files_and_one_out_of_reach_names_a_flag(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "train.parquet")
    rows = list(hub_rows(str(tmp_path), "train", "main"))
    assert [row for _, row in rows] == ROWS
    assert rows[3][0].endswith("row 4")
    local = list(local_rows(tmp_path / "train.parquet"))
    assert ([row for _, row in local], local[3][0]) == (ROWS, f"{tmp_path / 'train.parquet'}, row 4")
    with pytest.raises(UserError, match="validation.*--input_file"):
        list(hub_rows(str(tmp_path), "validation", "main"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UserError, match="nobody/nothing .*--input_file"):
        list(hub_rows("nobody/nothing", "train", "main"))
    with pytest.raises(UserError, match=r"x\.jsonl.*nobody/nothing .*--input_file"):
        hub_file("nobody/nothing", "x.jsonl", "main")


def write_parquet(path, columns, **settings):
    """Write a table of rows, or of columns by name."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = pyarrow.Table.from_pylist(columns) if isinstance(columns, list) else pyarrow.table(columns)
    parquet.write_table(table, path, **settings)
    return path


def write(path, rows):
    """The rows in the form that the name of the file says."""
    if path.suffix == ".parquet":
        return write_parquet(path, rows)
    name = path.name.removesuffix(".gz")
    text = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


FORMS = {"a.jsonl": "line", "a.jsonl.gz": "line", "a.json": "item", "a.json.gz": "item", "a.parquet": "row"}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_problem_file_gives_the_same_problems_and_names_a_bad_row(tmp_path, name):
    records = [square_problem(number) for number in range(20)]
    path = write(tmp_path / name, records)
    assert [problem.record for problem in load_problems(path)] == records
    other = path.rename(tmp_path / "by another name")
    assert list(iterate_records(other)) == records
    write(path, records[:1] * 2)
    with pytest.raises(UserError, match=f"{name}, {FORMS[name]} 2: id 0"):
        load_problems(path)


def test_values_of_a_parquet_file_that_json_lacks_are_written_as_text(tmp_path):
    moment = datetime(2026, 1, 2, 3, 4, 5)
    row = {"price": Decimal("1.50"), "raw": b"\xffa", "took": timedelta(seconds=1), "when": [moment]}
    path = write_parquet(tmp_path / "rows.parquet", [row | {"at": {"day": moment}}])
    [(_, decoded)] = local_rows(path)
    assert json.loads(encode_record(decoded)) == decoded
    assert (decoded["price"], decoded["raw"], decoded["when"]) == ("1.50", "\ufffda", [moment.isoformat()])


LINES = b'{"id": 1}\n{"id": 2}\n'


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.jsonl", LINES.decode().encode("utf-16"), "UTF-8"),
        ("r.jsonl", '{"id": "é"}\n'.encode("latin-1"), "UTF-8"),
        ("r.jsonl.gz", gzip.compress(gzip.compress(LINES, mtime=0), mtime=0), "UTF-8"),
        ("r.jsonl.gz", gzip.compress(LINES * 1000, mtime=0)[:30], ""),
        ("r.jsonl.gz", gzip.compress(LINES + b'{"id":\n', mtime=0), "line 3: .*JSON"),
        ("r.jsonl", b"PAR1" + b"\0" * 20, "Parquet"),
        ("r.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("r.jsonl", b"<!DOCTYPE html>\n", "HTML"),
        ("r.json", json.dumps({"id": 1}, indent=2).encode(), "line 1: .*array"),
        ("r.jsonl", b'"id"\n', "line 1: .*array"),
        *(("r.json", content, "") for content in (b"[1, 2]", b"[{]", b"[", b'[{"id": 1}, 2]')),
        *(("r.jsonl", content, "cut") for content in (b'{"id": "\xc3', b'{"id": 1}\n{"id": 2')),
        ("r.jsonl", b'{"id": ' + b"1" * (LONGEST_NUMBER + 1) + b"}\n", f"line 1: .*{LONGEST_NUMBER}"),
    ],
)
def test_a_file_in_another_form_is_named_with_what_to_do(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}.*{says}") as caught:
        list(read_rows(tmp_path / name))
    assert says in ("", "cut") or "cut" not in str(caught.value)


def test_integers_beyond_pythons_limit_and_numbers_that_json_lacks_come_back_as_json(tmp_path):
    limit = sys.get_int_max_str_digits()
    long = "12345678901" * 1000
    path = tmp_path / "r.jsonl"
    path.write_text(f'{{"id": 1, "n": [-{long}, {{"{long}": {long}}}], "x": [NaN, Infinity, 1.5], "y": NaN}}\n')
    [(_, row)] = read_rows(path)
    assert (row["n"][0] % 10**11, row["y"]) == (10**11 - 12345678901, None)
    written = encode_record(row).decode()
    assert f'[-{long}, {{"{long}": {long}}}]' in written
    path.write_text(written)
    assert [again for _, again in read_rows(path)] == [row | {"x": [None, float("inf"), 1.5]}]
    json.loads(written, parse_int=len, parse_constant=pytest.fail)
    assert sys.get_int_max_str_digits() == limit
    with pytest.raises(ValueError, match=str(LONGEST_NUMBER)):
        encode_record({"id": 10 ** (LONGEST_NUMBER + 1)})


# Files from anybody


READ = """
import re, resource, sys
from pathlib import Path
from cobalt.stage.errors import UserError
from cobalt.stage.rows import read_rows
try:
    rows = [row for _, row in read_rows(Path(sys.argv[1]))]
    print("read")
except UserError as error:
    print(error)
# Linux counts what this process had when it started the command as the command's own `ru_maxrss`.
own = int(re.search("VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1])
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10)
"""
MIB = b"x" * (1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head", "piece", "named"),
    [
        ("line.jsonl.gz", b'{"id": 0}\n{"id": "', MIB, "line 2"),
        ("array.json.gz", b'[{"id": "', MIB, f" {LARGEST_ROW >> 20} MiB"),
        ("lines.jsonl.gz", b"", b'{"id": "' + MIB + b'"}\n', f" {MOST_EXPANSION} "),
        ("many.parquet", b"", b"", f" {MOST_EXPANSION} "),
    ],
)
def test_a_small_file_does_not_take_the_memory_of_what_it_unpacks_to(tmp_path, name, head, piece, named):
    path = tmp_path / name
    if piece:
        path.write_bytes(gzip.compress(head) + gzip.compress(piece) * 800 + gzip.compress(b'"}]'))
    else:
        arrow = pytest.importorskip("pyarrow")
        text = arrow.DictionaryArray.from_arrays(arrow.array([0] * 2000, arrow.int32()), [MIB.decode()])
        write_parquet(path, {"id": text}, compression="zstd")
    assert path.stat().st_size < 16 << 20
    ended = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=120, check=True)
    said, most = ended.stdout.splitlines()
    assert name in said and named in said
    assert int(most) < 3 * LARGEST_ROW


def test_a_row_of_a_parquet_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "wide.parquet", {"id": ["a", "a" * 2000]})
    monkeypatch.setattr("cobalt.stage.rows.LARGEST_ROW", 1000)
    rows = read_rows(path)
    assert next(rows) == ("row 1", {"id": "a"})
    with pytest.raises(UserError, match=r"wide\.parquet, row 2"):
        next(rows)


def test_a_file_may_shrink_as_text_does(tmp_path):
    assert MOST_EXPANSION * 4 < 1032  # gzip's best; a bomb comes near it
    lines = [json.dumps({"id": number, "text": f"{number} " * 2000}) for number in range(200)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert len(list(read_rows(path))) == 200


@pytest.mark.slow
def test_a_record_that_could_not_be_read_again_is_not_written():
    with pytest.raises(UserError, match="'large'"):
        encode_record({"id": "large", "text": "x" * LARGEST_ROW})
