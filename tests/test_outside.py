"""The outside of the project is what `tests/data/outside` says: flags, variables, routes, results and manifests.

`python tests/outside.py --write` renews the first three; its page says when that is right. The README of that folder
says how each stage is covered.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import outside
import pytest
import yaml
from outside_stages import (
    STAGES,
    TRAINING,
    of_this_machine,
    provider,
    put,
    put_training,
    slug,
    touched,
    variables_of,
    workplace,
)
from pyarrow import parquet
from support import needs_api

pytestmark = pytest.mark.slow

STAGES_OF_OLD = outside.DATA / "stages"

CASES = {"half": ("half", False), "same": ("whole", False), "changed": ("whole", True)}
"""Of a stage's command: what lies in its folder, and whether a setting differs."""

MEASURED = ("cpu_seconds", "wall_seconds", "peak_memory_bytes", "queue_seconds", "run_seconds", "marked")
"""What differs from run to run, and what the tests add."""


def recorded(name):
    return json.loads((outside.DATA / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def flags():
    return outside.flags()


@pytest.mark.parametrize("command", recorded("flags"))
def test_a_command_has_the_flags_aliases_kinds_and_defaults_that_it_had(command, flags):
    assert flags.get(command) == recorded("flags")[command]


def test_every_command_is_in_the_snapshot(flags):
    assert flags.keys() == recorded("flags").keys()


def test_the_apps_have_the_routes_that_they_had():
    assert outside.routes() == recorded("routes")


def test_the_documents_name_the_variables_that_they_named_and_the_apps_have_the_settings_that_they_had():
    assert outside.environment() == recorded("environment")


def test_each_variable_that_the_documents_name_is_read():
    assert set(recorded("environment")["documented"]) <= outside.read_by_code()


@dataclass(frozen=True)
class Ran:
    """What a command left in its folder."""

    code: object
    said: str
    folder: Path


def run_all(commands, **variables):
    """What commands left in their folders, in order; a command is (folder, words)."""
    commands = list(commands)
    ended = outside.run_commands(commands, **variables)
    return [Ran(code, said, folder) for (folder, _), (code, _, said) in zip(commands, ended, strict=True)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run the commands of the stages with the needs of one, on what the recorded commit left; of that one, by case."""

    @cache
    def run_those_with(api):  # so that a machine without its package can run the others
        commands, keys = [], []
        for stage in (stage for stage in STAGES if stage.api is api):
            for case, (start, extra) in CASES.items():
                folder = workplace(tmp_path_factory.mktemp(slug(stage)) / case, outside.DATA)
                put(STAGES_OF_OLD / slug(stage) / start, folder)
                if case == "half" and stage.kept is not None:
                    _mark_first(folder / stage.results[0])
                commands.append((folder, [*stage.command.split(), *(stage.changed.split() if extra else ())]))
                keys.append((stage.name, case))
        with provider() as asked:
            return dict(zip(keys, run_all(commands, **variables_of(asked.url)), strict=True))

    return lambda stage: {case: run_those_with(stage.api)[stage.name, case] for case in CASES}


each_stage = pytest.mark.parametrize(
    "stage",
    [pytest.param(stage, id=slug(stage), marks=[pytest.mark.sandbox, *[needs_api] * stage.api]) for stage in STAGES],
)


def _mark_first(result):
    """Give the first record a field of its own, which it loses if it is made again."""
    first, *others = result.read_text(encoding="utf-8").splitlines(keepends=True)
    result.write_text(json.dumps(json.loads(first) | {"marked": True}) + "\n" + "".join(others), encoding="utf-8")


def _content(path):
    """The records of a file without what is measured, or its bytes."""
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        return table.schema.to_string(), table.to_pylist()
    if path.suffix == ".jsonl":
        return [_without_measured(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return path.read_bytes()


def _without_measured(value):
    if isinstance(value, dict):
        return {name: _without_measured(item) for name, item in value.items() if name not in MEASURED}
    return [_without_measured(item) for item in value] if isinstance(value, list) else value


def _made_from(path):
    content = json.loads(of_this_machine(path.read_text(encoding="utf-8")))
    return {name: content.get(name) for name in ("arguments", "inputs", "sources", "summary")}


@each_stage
def test_what_the_recorded_commit_left_half_done_becomes_the_result_of_a_run_without_a_break(stage, ran):
    half, old = ran(stage)["half"], STAGES_OF_OLD / slug(stage) / "whole"
    assert half.code == 0, half.said
    for name in stage.results:
        assert _content(half.folder / name) == _content(old / name), name
    assert not list(half.folder.rglob("*.part"))
    if stage.kept is not None:  # what was finished is not made again
        marked = [json.loads(line) for line in (half.folder / stage.results[0]).read_text("utf-8").splitlines()]
        assert sum(record.get("marked", False) for record in marked) == 1 < len(marked)


@each_stage
def test_the_manifest_of_a_result_says_what_it_said(stage, ran):
    half, again, old = ran(stage)["half"].folder, ran(stage)["same"].folder, STAGES_OF_OLD / slug(stage) / "whole"
    # The record that is marked changes what is made of the result.
    own = {Path(name).with_suffix(".run.json") for name in stage.results}
    manifests = [path.relative_to(old) for path in old.rglob("*.run.json")]
    manifests = [path for path in manifests if path in own or stage.kept is None]
    assert manifests
    for name in manifests:
        assert _made_from(half / name) == _made_from(again / name) == _made_from(old / name), name


@each_stage
def test_a_finished_result_is_kept_written_again_or_refused_as_it_was(stage, ran):
    for case in ("same", "changed"):
        again = ran(stage)[case]
        assert {"code": again.code, "written": touched(stage, again.folder)} == recorded("outcomes")[stage.name][case]
    for name in stage.results:
        whole = STAGES_OF_OLD / slug(stage) / "whole" / name
        assert _content(ran(stage)["same"].folder / name) == _content(whole), name


@pytest.mark.sandbox
def test_contextual_prompts_with_perturbed_copies_and_those_for_evaluation_are_the_recorded_ones(tmp_path):
    folder = workplace(tmp_path / "recorded", outside.DATA)
    words = "preproc/process_multi_turn_taco.py -i run/evaluation.jsonl --model policy --prompts pocket"
    results = {"prompts.jsonl": "", "test_prompts.jsonl": "--is_test --num_turns 2"}
    run_all((folder, f"{words} --perturbed_ratio 0.5 -o {name} {more}".split()) for name, more in results.items())
    for name in results:
        assert (folder / name).read_bytes() == (folder / "run" / name).read_bytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same training, and one with another rate, each on the recorded folder; no Ray answers, so nothing trains."""
    folders = [put_training(tmp_path_factory.mktemp("training") / name, outside.DATA) for name in ("same", "changed")]
    extra = [[], ["actor_rollout_ref.actor.optim.lr=0.5"]]
    commands = [(folder, [*TRAINING.split(), *more]) for folder, more in zip(folders, extra, strict=True)]
    return run_all(commands, RAY_ADDRESS="127.0.0.1:1")


def test_a_training_goes_on_from_its_last_checkpoint(trained):
    same, _ = trained
    run = same.folder / "run"
    assert (run / "config.yaml").exists(), same.said
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert Path(config["trainer"]["resume_from_path"]) == run / "checkpoints/global_step_2"
    assert (run / "metrics.jsonl").read_bytes() == (outside.DATA / "training/run/metrics.jsonl").read_bytes()
    assert len(json.loads((run / "metrics.run.json").read_text())["resumed"]) == 1


def test_a_training_with_another_setting_is_refused_and_changes_nothing(trained):
    _, changed = trained
    assert changed.code == 2
    assert "actor_rollout_ref.actor.optim.lr" in changed.said
    assert not (changed.folder / "run/config.yaml").exists()
    old = put_training(changed.folder.parent / "old", outside.DATA)
    before = (old / "run/metrics.run.json").read_text().replace(str(old), str(changed.folder))
    assert (changed.folder / "run/metrics.run.json").read_text() == before
