"""The table of pages whose seeds ran on different machines (`studies/pooled_pages.py`)."""

import math

import pytest
from support import ROOT

from cobalt.stage.errors import UserError
from studies.pooled_pages import Arguments, main, pooled_table


def write_page(root, name, seeds, kl, lower, upper, reached="0.5"):
    """A page with base and one method: Pass@1 of its last seed, and a difference with an interval around its middle."""
    folder = root / name
    folder.mkdir()
    passes = ["method,turn,pass_at_1," + ",".join(f"seed_{seed}" for seed in range(seeds)) + ",kl"]
    gains = ["method,turn,difference,lower,upper"]
    for turn in (0, 8):
        passes.append(f"base,{turn},0.25{',0.25' * seeds},0.0")
        passes.append(f"SFT,{turn},{reached}{',0.5' * (seeds - 1)},{reached},{kl}")
        gains.append(f"SFT,{turn},{(lower + upper) / 2},{lower},{upper}")
    (folder / "offline.csv").write_text("\n".join(passes))
    (folder / "offline_gain_base.csv").write_text("\n".join(gains))
    (folder / "offline_gain_sft.csv").write_text("\n".join(gains).replace("SFT", "base"))
    return folder


def columns(folders):
    """The cells of SFT by the heads of their columns; where two columns have a head, it is the first one."""
    table = pooled_table(folders)
    return dict(reversed([*zip(table.header, table.rows[1], strict=True)]))


def test_a_page_counts_with_its_seeds_and_widths_of_independent_pages_add_in_squares(tmp_path):
    folders = [write_page(tmp_path, "a", 2, "0.03", -0.3, -0.1), write_page(tmp_path, "b", 1, "0.06", -0.8, -0.2)]
    gain, half = (2 * 20 + 50) / 3, math.hypot(2 * 10, 30) / 3
    cells = columns(folders)
    assert cells["less base"] == f"{gain:+.1f} ({gain - half:+.1f} to {gain + half:+.1f})"
    assert (cells["KL, by page"], cells["mean KL"]) == ("0.03 / 0.06", "0.040")


def test_a_divergence_that_a_page_does_not_have_is_not_made_up(tmp_path):
    folders = [write_page(tmp_path, "a", 2, "0.03", -0.3, -0.1), write_page(tmp_path, "b", 1, "", -0.8, -0.2)]
    cells = columns(folders)
    assert not any(letter.isdigit() for letter in cells["KL, by page"] + cells["mean KL"])


@pytest.mark.parametrize(("last", "known"), [("0.49", True), ("0.2", False)])
def test_gains_of_seeds_that_differ_do_not_tell_the_sign_over_runs(tmp_path, last, known):
    """The seeds of the first page gain 25 points each; with a third that loses 5, other runs may go either way."""
    folders = [write_page(tmp_path, "a", 2, "0", -0.3, -0.2), write_page(tmp_path, "b", 1, "0", -0.3, -0.2, last)]
    assert ("cannot tell" not in columns(folders)["over runs"]) is known


def test_the_table_of_three_seeds_is_that_of_the_command(capsys):
    assert main(Arguments((ROOT / "docs/RESULTS", ROOT / "docs/RESULTS_seed2"))) == 0
    page = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(rows) > 12
    assert [line for line in rows if line not in page] == []


def test_a_folder_without_its_files_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(UserError, match="offline.csv"):
        pooled_table([tmp_path])
