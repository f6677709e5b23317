"""Files with any damage are read or refused in one sentence that names them.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from test_sources import ROWS, write_parquet

from cobalt.stage.errors import UserError
from cobalt.stage.rows import read_rows


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_parquet_file_with_any_damage_is_read_or_refused_in_one_sentence(tmp_path, compression):
    pytest.importorskip("pyarrow")
    import pyarrow

    path = write_parquet(tmp_path / "flipped.parquet", pyarrow.Table.from_pylist(ROWS), compression=compression)
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
