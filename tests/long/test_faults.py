"""Faults in every part (`tests/long/faults.py`): processes killed, resources exhausted, wrong answers, a full disk."""

import asyncio
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import threading

import faults
import pytest
from support import ROOT

from cobalt.stage.errors import ServiceDown, UserError
from cobalt.stage.records import RecordFile, read_records

LONG = "COBALT_LONG_TESTS" in os.environ
OF_SANDBOXES = [part.replace(" ", "") for part in faults.SANDBOX_PARTS]
ROWS = [name for name, row in faults.ROWS.items() if name not in OF_SANDBOXES and (LONG or not row.long)]


def finished_rows(names):
    """The finished rows, by name, and what the command said."""
    folder = ROOT / "runs" / f"test_faults_{os.getpid()}"  # not in /tmp, of which some rows have one of their own
    command = [sys.executable, "tests/long/faults.py", "--rows", ",".join(names), "--output_dir", str(folder)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    records = {record["id"]: record for record in read_records(folder / "rows.jsonl")}
    shutil.rmtree(folder)
    return records, finished.stdout + finished.stderr


@pytest.fixture(scope="module")
def rows():
    return finished_rows(ROWS)


@pytest.mark.sandbox
@pytest.mark.slow
def test_a_sandbox_that_loses_a_part_loses_no_verdict_and_the_run_goes_on():
    records, said = finished_rows(OF_SANDBOXES)
    assert {name: record["state"] for name, record in records.items()} == dict.fromkeys(OF_SANDBOXES, "held"), said


@pytest.mark.services
@pytest.mark.sandbox
@pytest.mark.timeout(5400 if LONG else 900)
@pytest.mark.parametrize("name", ROWS)
def test_a_fault_loses_nothing_and_the_run_goes_on(rows, name):
    records, said = rows
    if f"{name}: not run: " in said:
        pytest.skip(said.partition(f"{name}: not run: ")[2].partition("\n")[0])
    assert name in records, said
    assert records[name]["state"] == "held"


@contextlib.contextmanager
def files_of_at_most(count):
    """Imitate a disk that is full when a file has so many bytes, by the kernel's limit on file sizes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_that_does_not_fit_leaves_no_torn_line_and_the_file_goes_on(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as output:
        output.append({"id": 0})
        with files_of_at_most(1000):
            with pytest.raises(UserError, match=r"cannot write .*r\.jsonl: File too large"):
                output.append({"id": 1, "text": "x" * 2000})
            assert path.read_text() == '{"id": 0}\n'
            output.append({"id": 2})
        output.append({"id": 1, "text": "x" * 2000})
    assert [record["id"] for record in read_records(path)] == [0, 2, 1]


def test_a_result_that_cannot_be_sorted_stays_as_it_is(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as output:
        for identifier in (1, 0):
            output.append({"id": identifier, "text": "x" * 2000})
    before = path.read_bytes()
    with files_of_at_most(1000), pytest.raises(UserError, match="r.jsonl"):
        RecordFile(path).sort([0, 1])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    RecordFile(path).sort([0, 1])
    assert [record["id"] for record in read_records(path)] == [0, 1]


async def test_a_full_disk_ends_a_run_in_one_sentence_and_keeps_what_is_finished(tmp_path):
    from cobalt.stage.run import Each

    (tmp_path / "input").write_text("")
    path = tmp_path / "r.jsonl"

    async def work(item):
        return {"id": item, "text": "x" * 300}

    async def run():
        with Each(path, {}, [tmp_path / "input"]) as output:
            return await output.make(range(20), int, work, concurrency=4)

    with files_of_at_most(2000), pytest.raises(UserError, match="cannot write"):
        await run()
    assert 0 < len(read_records(path)) < 20
    assert await run() == 0
    assert [record["id"] for record in read_records(path)] == list(range(20))


async def test_a_record_that_is_being_written_when_the_run_ends_is_written_whole(tmp_path):
    from cobalt.stage.run import Each

    (tmp_path / "input").write_text("")
    writing, ended = threading.Event(), threading.Event()

    class SlowDisk(Each):
        def append(self, record):
            writing.set()
            assert ended.wait(60)
            super().append(record)

    async def work(item):
        if item == 0:
            return {"id": 0}
        await asyncio.to_thread(writing.wait)
        asyncio.get_running_loop().call_later(0.2, ended.set)
        raise ServiceDown("the judge is gone")

    with SlowDisk(tmp_path / "r.jsonl", {}, [tmp_path / "input"]) as output:
        with pytest.raises(ServiceDown):
            await output.make([0, 1], int, work, concurrency=2)
        assert read_records(output.path) == [{"id": 0}]
