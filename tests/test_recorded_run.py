"""The files of a run are byte for byte those in `tests/data/recorded_run` (made by `recorded_run`)."""

import pytest
from recorded_run import make_files
from support import ROOT

RECORDED = ROOT / "tests/data/recorded_run"


@pytest.fixture(scope="module")
def made(tmp_path_factory, policy):
    folder = tmp_path_factory.mktemp("run")
    make_files(folder, policy)
    return folder


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.iterdir()))
def test_a_file_of_every_stage_is_byte_for_byte_what_it_was(made, name):
    assert (made / name).read_bytes() == (RECORDED / name).read_bytes()
