"""A recorded first turn is continued under the settings it was made with, or the difference is named."""

import json
from pathlib import Path

import pytest
from support import FakeEngine, FakeJudge, square_problem, write_lines
from test_rollout import SETTINGS

from cobalt.episode import load_prompts
from cobalt.hacking.perturbation import PerturbationSettings, perturb
from cobalt.rollout.multi_turn import RepairSettings, number_of_samples, repair
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import made_by, manifest_path
from cobalt.stage.records import read_records


def named_engine(**about):
    return FakeEngine(lambda call: f"answer {call.turn}", **{"model": "m", "seed": 0} | about)


@pytest.fixture
async def single(tmp_path):
    """A single-turn result of two samples, and the folder that it lies in."""
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    result = tmp_path / "single.jsonl"
    assert not (await sample(SampleSettings(problems, result, **SETTINGS), named_engine(), FakeJudge(True))).failed
    return result


async def continued(source, *, engine=None, settings=SETTINGS, **more):
    """Continue a first turn by one turn; returns the manifest's arguments."""
    output = source.with_name("multi.jsonl")
    run_settings = RepairSettings(source, output, **settings, turns=1, **more)
    assert not (await repair(run_settings, engine or named_engine(), FakeJudge(True))).failed
    return json.loads(manifest_path(output).read_text())["arguments"]


@pytest.mark.parametrize("prompts", [None, "pocket"])
async def test_a_first_message_in_the_words_of_the_prompts_is_sent_and_later_turns_may_name_them(tmp_path, prompts):
    words = load_prompts("pocket").first_turn("Print the square of a number.")
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0, instruction=words)])
    result = tmp_path / "single.jsonl"
    run_settings = SampleSettings(problems, result, **SETTINGS, prompts=prompts)
    assert not (await sample(run_settings, named_engine(), FakeJudge(True))).failed
    assert [record["instruction"] for record in read_records(result)] == [words]
    await continued(result, prompts=prompts)


async def test_a_larger_limit_and_other_ids_add_to_the_same_result_in_the_order_of_the_input(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in (3, 2, "1", 0)])
    result = tmp_path / "single.jsonl"
    choices = ({"limit": 1}, {"ids": ("0", "1"), "limit": 1}, {"limit": 1}, {"limit": 3}, {"ids": ("0",)}, {})
    held = ([3], [3, "1"], [3, "1"], [3, 2, "1"], [3, 2, "1", 0], [3, 2, "1", 0])
    for choice, ids in zip(choices, held, strict=True):
        settings = SampleSettings(problems, result, **SETTINGS, **choice)
        assert not (await sample(settings, named_engine(), FakeJudge(True))).failed
        assert [record["id"] for record in read_records(result)] == ids
    manifest = json.loads(manifest_path(result).read_text())
    worked = [manifest, *manifest["resumed"]]  # a run that has nothing to do is no resumption
    assert [one["problems"] for one in worked] == [
        {"limit": 1}, {"limit": 1, "ids": ["0", "1"]}, {"limit": 3}, {"ids": ["0"]}
    ]  # fmt: skip
    output = tmp_path / "multi.jsonl"
    later = RepairSettings(result, output, **SETTINGS, turns=1, ids=("2",))
    assert not (await repair(later, named_engine(), FakeJudge(True))).failed
    assert [record["id"] for record in read_records(output)] == [2]


async def test_a_first_turn_of_the_same_settings_is_continued_whatever_decides_no_response_of_it(single):
    other = SETTINGS | {"seed": 7}
    arguments = await continued(
        single, settings=other, engine=named_engine(seed=5, private=False, device="cpu", name="m-1")
    )
    assert "first_turn" not in arguments


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"settings": {"temperature": 1.0}}, "generation.temperature was 0.6, now 1.0"),
        ({"settings": {"top_p": 0.5}}, "generation.top_p was 0.95, now 0.5"),
        ({"settings": {"max_tokens": 65}}, "generation.max_tokens was 64, now 65"),
        ({"settings": {"chat_template_thinking": "off"}}, "generation.chat_template_thinking was 'default', now 'off'"),
        ({"prompts": "pocket"}, "prompts.system.jinja"),
        ({"engine": {"model": "other"}}, "engine.model was 'm', now 'other'"),
        ({"engine": {"max_model_len": 9}}, "engine.max_model_len was None, now 9"),
    ],
)
async def test_a_first_turn_of_other_settings_is_refused_before_anything_is_written(single, changes, named):
    engine = named_engine(**changes.pop("engine", {}))
    settings = SETTINGS | changes.pop("settings", {})
    with pytest.raises(UserError) as refused:
        await continued(single, engine=engine, settings=settings, **changes)
    assert named in str(refused.value)
    assert not single.with_name("multi.jsonl").exists()


async def test_a_difference_that_is_allowed_is_in_the_manifest_and_others_are_still_refused(single):
    settings = SETTINGS | {"temperature": 1.0}
    with pytest.raises(UserError, match=r"engine\.model") as refused:
        await continued(single, settings=settings, engine=named_engine(model="b"), allow=("temperature",))
    assert "temperature" not in str(refused.value)
    arguments = await continued(
        single, settings=settings, engine=named_engine(model="b"), allow=("temperature", "engine")
    )
    assert arguments["first_turn"] == {"generation.temperature": 0.6, "engine.model": "m"}


async def test_a_derived_file_keeps_what_made_its_first_turn_even_in_another_folder(single, tmp_path):
    derived = tmp_path / "elsewhere" / "perturbed.jsonl"
    await perturb(PerturbationSettings(single, derived, seed=0))
    single.unlink()
    manifest_path(single).unlink()
    assert [made["stage"] for made in made_by(derived)] == ["perturbation", "single_turn"]
    with pytest.raises(UserError, match=r"generation\.temperature"):
        await continued(derived, settings=SETTINGS | {"temperature": 1.0})
    await continued(derived, public_tests="perturbed")


async def test_of_a_first_turn_without_a_manifest_the_run_says_that_nothing_is_known(single, caplog):
    manifest_path(single).unlink()
    await continued(single, settings=SETTINGS | {"temperature": 1.0})
    assert [record.args[1] for record in caplog.records if record.levelname == "WARNING"] == ["single.run.json"]


@pytest.mark.parametrize(
    ("recorded", "wanted", "samples"),
    [
        *(([0, 0], 3, 3), ([0, 0], 16, 16), ([2, 2], 2, 2), ([2, 2], 16, 2), ([2, 0], 16, 2), ([2, 4], 16, 16)),
        *(([2, 2], 3, None), ([2, 0], 3, None), ([2, 4], 2, None)),
    ],
)
def test_the_inputs_number_of_samples_wins_and_another_one_is_refused(recorded, wanted, samples):
    if samples is not None:
        assert number_of_samples(Path("s.jsonl"), recorded, wanted) == samples
        return
    with pytest.raises(UserError, match=rf"s\.jsonl .* -n {wanted}"):
        number_of_samples(Path("s.jsonl"), recorded, wanted)


async def test_a_replay_may_have_any_settings_and_without_n_has_the_inputs_number_of_samples(single):
    recorded = [{"id": i, "raw_responses": [["a", "b"], ["c", "d"]]} for i in (0, 1)]
    replayed = write_lines(single.with_name("r.jsonl"), recorded)
    given = RepairSettings(single, single.with_name("multi.jsonl"), turns=1, temperature=1.0, replay_file=replayed)
    assert not (await repair(given, judge=FakeJudge(True))).failed
    assert [record["raw_responses"][1] for record in read_records(given.output_file)] == [["c", "d"]] * 2
