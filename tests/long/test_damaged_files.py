"""Files with any damage are read or refused in one sentence that names them.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import io
import random
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from test_codenet import METADATA, SOURCE
from test_sources import ROWS, write_parquet

from cobalt.datasets import codenet_files
from cobalt.stage.errors import UserError
from cobalt.stage.rows import read_rows


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_with_any_damage_is_read_or_refused_in_one_sentence(tmp_path, mode, form):
    members = METADATA | SOURCE | {f"data/p00000/Python/{'s' * 200}.py": b"1"}
    archive = tmp_path / "flipped.tar"
    with tarfile.open(archive, mode, format=form) as output:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = len(content), {"comment": "c"}
            output.addfile(member, io.BytesIO(content))
    whole, refused = archive.read_bytes(), 0
    used = len(whole.rstrip(b"\0")) + 64
    rng = random.Random(1)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 20])):
            damaged[rng.randrange(min(used, len(whole)))] = rng.choice([0, 255, rng.randrange(256)])
        archive.write_bytes(damaged[: rng.choice([len(whole), len(whole), rng.randrange(used)])])
        try:
            codenet_files.read_descriptions([archive])
            dict(codenet_files.read_sources([archive], ["p00000"]))
        except UserError as error:
            refused += 1
            assert str(archive) in str(error)
    assert 50 < refused < 400


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_parquet_file_with_any_damage_is_read_or_refused_in_one_sentence(tmp_path, compression):
    path = write_parquet(tmp_path / "flipped.parquet", ROWS, compression=compression)
    whole, refused = path.read_bytes(), 0
    rng = random.Random(3)
    for _ in range(20):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 2, 20])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(whole), len(whole), rng.randrange(len(whole))])])
        try:
            list(read_rows(path))
        except UserError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert refused > 5
