"""The loops: protocol and schema of each stage, on recorded responses and the real judge; what a run continues.

A recorded first turn is continued under the settings that it was made with, or the difference is named.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import FakeEngine, FakeJudge, square_problem, write_lines

from cobalt.engine.replay import ReplayEngine
from cobalt.episode import ALL_PUBLIC_PASSED, load_prompts
from cobalt.hacking.perturbation import PerturbationSettings, perturb
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns
from cobalt.rollout.multi_turn import RepairSettings, number_of_samples, repair
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.errors import InfrastructureError, RequestRefused, ServiceDown, UserError
from cobalt.stage.manifest import made_by, manifest_path
from cobalt.stage.records import read_records
from cobalt.stage.run import Each, errors_path

RIGHT = "<think>square it</think>\n```python\nprint(int(input()) ** 2)\n```"
DOUBLE = "<think>double it</think>\n```python\nprint(int(input()) * 2)\n```"  # right for 2 only
CRASH = "```python\nraise ValueError('no')\n```"
NO_CODE = "I do not know."
SETTINGS = {"num_completions": 2, "max_tokens": 64, "seed": 0}


def replay(tmp_path, turns):
    return ReplayEngine(write_lines(tmp_path / "recorded.jsonl", [{"id": 0, "raw_responses": turns}]))


@pytest.mark.sandbox
async def test_programs_are_judged_answered_by_the_first_failing_public_test_and_judged_on_the_hidden_ones(tmp_path):
    # The answer is longer than the history's cap: the program must come from the whole response all the same.
    long = "<think>t</think>\n" + "a" * 7000 + "\n```python\nprint(int(input()) ** 2)\n```"
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    turns = [[DOUBLE, long, CRASH, NO_CODE], [RIGHT, CRASH, RIGHT, NO_CODE], [RIGHT] * 4]
    first = SampleSettings(problems, tmp_path / "s.jsonl", **SETTINGS | {"num_completions": 4})
    later = RepairSettings(first.output_file, tmp_path / "m.jsonl", max_tokens=64, turns=2, enable_thinking=True)
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        assert not (await sample(first, replay(tmp_path, turns), judge)).failed
        assert not (await repair(later, replay(tmp_path, turns), judge)).failed
        assert not (await evaluate_turns(TurnsSettings(later.output_file, tmp_path / "e.jsonl"), judge)).failed
    [record] = read_records(tmp_path / "e.jsonl")
    passing = [[True, False, False, False], [True] * 4, [False] * 4, [False] * 4]
    assert [result["passing"] for result in record["exec_results"]] == passing
    kinds = ["wrong_answer", "passed", "runtime_error", "no_code"]
    assert [result["verdicts"][1]["kind"] for result in record["exec_results"]] == kinds
    assert (record["responses"], record["raw_responses"]) == (turns[0], turns)
    assert record["public_pass_rates"] == [[0.5, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0] * 4]
    assert record["all_pass_rates"] == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    assert record["hidden_verdicts"][1][1] == ["runtime_error", "runtime_error"]
    assert not any("<think>" in message["content"] for one in record["conversations"] for message in one)
    repaired = record["conversations"][0]
    assert [message["role"] for message in repaired] == ["system", "user"] + ["assistant", "user"] * 3
    assert "Input:\n3\nProgram's Output:\n6\nExpected Output:\n9" in repaired[3]["content"]
    assert ALL_PUBLIC_PASSED in repaired[5]["content"] and ALL_PUBLIC_PASSED in repaired[7]["content"]


async def test_a_malformed_record_ends_an_evaluation_and_what_was_finished_before_it_is_kept(tmp_path):
    records = [square_problem(number, raw_responses=[[RIGHT]]) for number in range(2)]
    path = write_lines(tmp_path / "m.jsonl", [*records, square_problem(2)])
    with pytest.raises(UserError, match="record 2"):
        await evaluate_turns(TurnsSettings(path, tmp_path / "e.jsonl", concurrency=1), FakeJudge(True))
    assert [record["id"] for record in read_records(tmp_path / "e.jsonl")] == [0, 1]


@pytest.mark.parametrize("error", [KeyError("planted"), ServiceDown("planted"), RequestRefused("planted")])
async def test_a_defect_a_lost_service_or_a_refused_key_ends_the_run_and_is_not_a_failed_problem(tmp_path, error):
    async def work(item):
        if item == 2:
            raise error
        return {"id": item}

    with pytest.raises(type(error), match="planted"), Each(tmp_path / "r.jsonl", {}) as output:
        await output.make(range(4), int, work, concurrency=1)
    assert output.ids == [0, 1]
    assert not errors_path(output.path).exists()
    with Each(output.path, {}) as output, pytest.raises(UserError, match="id 0"):  # which this input does not have
        await output.make(range(1, 2), int, work, concurrency=1)


def device_engine(device, failing=()):
    """An engine on a device, which fails for some problems."""
    about = {"model": "m"} | ({"device": device} if device else {})
    return FakeEngine(lambda call: InfrastructureError("gone") if call.problem_id in failing else RIGHT, **about)


def seeds_of(engine):
    return [settings.seed for _, settings, _ in engine.asked]


@pytest.mark.parametrize(
    ("samples", "device", "seeded"),
    [
        ("auto", "cpu", True),
        ("auto", "gpu", False),
        ("auto", None, True),
        ("seeded", "gpu", True),
        ("unseeded", "cpu", False),
    ],
)
async def test_samples_have_seeds_where_these_cost_nothing_or_are_asked_for(tmp_path, samples, device, seeded):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    engine = device_engine(device)
    run = RepairSettings(problems, tmp_path / "m.jsonl", **SETTINGS, turns=1, samples=samples)
    assert not (await repair(run, engine, FakeJudge(True))).failed
    assert len(seeds_of(engine)) == 6  # two problems: a call for both samples, then one for each
    assert len(set(seeds_of(engine))) == (6 if seeded else 1)
    assert (None in seeds_of(engine)) is not seeded
    manifest = json.loads(manifest_path(run.output_file).read_text())
    assert manifest["arguments"]["generation"]["seed"] == (0 if seeded else None)


@pytest.mark.parametrize(("began", "moved"), [("cpu", "gpu"), ("gpu", "cpu")])
async def test_a_run_that_resumes_on_another_device_goes_on_as_it_began(tmp_path, began, moved):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    first, second = device_engine(began, failing=[1]), device_engine(moved)
    run = SampleSettings(problems, tmp_path / "s.jsonl", **SETTINGS)
    assert (await sample(run, first, FakeJudge(True))).failed == 1
    other = SampleSettings(problems, run.output_file, **SETTINGS, samples="unseeded" if began == "cpu" else "seeded")
    with pytest.raises(UserError, match=r"generation\.seed"):
        await sample(other, second, FakeJudge(True))
    assert not (await sample(run, second, FakeJudge(True))).failed
    assert {seed is None for engine in (first, second) for seed in seeds_of(engine)} == {began == "gpu"}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_tokens": 32}, r"generation\.max_tokens"),
        ({"seed": 1}, r"generation\.seed"),
        ({"prompts": "pocket"}, "prompts"),
        ({"turns": 2}, "turns"),
        ({"samples": "unseeded"}, r"generation\.seed"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"truncated_thinking": "drop"}, "truncated_thinking"),
        ({"chat_template_thinking": "off"}, r"generation\.chat_template_thinking"),
    ],
)
async def test_a_run_of_other_settings_is_refused_before_services_are_asked(tmp_path, changed, named):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    run = RepairSettings(problems, tmp_path / "m.jsonl", **SETTINGS, turns=1, enable_thinking=True)
    assert (await repair(run, device_engine("cpu", failing=[1]), FakeJudge(True))).failed == 1
    with pytest.raises(UserError, match=named):
        await repair(replace(run, **changed), None, FakeJudge(True))  # whose settings name no engine


# --- a recorded first turn


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
    assert len(json.loads(manifest_path(result).read_text())["resumed"]) == 3  # not those that had nothing to do
    output = tmp_path / "multi.jsonl"
    later = RepairSettings(result, output, **SETTINGS, turns=1, ids=("2",))
    assert not (await repair(later, named_engine(), FakeJudge(True))).failed
    assert [record["id"] for record in read_records(output)] == [2]


@pytest.mark.parametrize(
    ("settings", "engine", "more", "named"),
    [
        # These decide no response of a first turn.
        ({"seed": 7}, {"seed": 5, "private": False, "device": "cpu", "name": "m-1"}, {}, None),
        ({"temperature": 1.0}, {}, {}, "generation.temperature was 0.6, now 1.0"),
        ({"top_p": 0.5}, {}, {}, "generation.top_p was 0.95, now 0.5"),
        ({"max_tokens": 65}, {}, {}, "generation.max_tokens was 64, now 65"),
        ({"chat_template_thinking": "off"}, {}, {}, "generation.chat_template_thinking was 'default', now 'off'"),
        ({}, {}, {"prompts": "pocket"}, "prompts.system.jinja"),
        ({}, {"model": "other"}, {}, "engine.model was 'm', now 'other'"),
        ({}, {"max_model_len": 9}, {}, "engine.max_model_len was None, now 9"),
        ({"temperature": 1.0}, {"model": "b"}, {"allow": ("temperature",)}, "settings (engine.model was 'm', now 'b')"),
        (
            *({"temperature": 1.0}, {"model": "b"}, {"allow": ("temperature", "engine")}),
            {"generation.temperature": 0.6, "engine.model": "m"},
        ),
    ],
)
async def test_a_first_turn_of_other_settings_is_refused_unless_they_may_differ_which_the_manifest_says(
    single, settings, engine, more, named
):
    later = continued(single, engine=named_engine(**engine), settings=SETTINGS | settings, **more)
    if not isinstance(named, str):
        assert (await later).get("first_turn") == named
        return
    with pytest.raises(UserError) as refused:
        await later
    assert named in str(refused.value)
    assert not single.with_name("multi.jsonl").exists()


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
    settings = RepairSettings(single, single.with_name("multi.jsonl"), turns=1, temperature=1.0, replay_file=replayed)
    assert not (await repair(settings, judge=FakeJudge(True))).failed
    assert [record["raw_responses"][1] for record in read_records(settings.output_file)] == [["c", "d"]] * 2
