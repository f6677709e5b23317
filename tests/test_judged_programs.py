"""Groups from programs that are judged already: APPS-like files, and results of this project."""

import itertools
import json

import pytest
from support import ROOT, square_problem, trajectory_record, write_lines

from cobalt.datasets.offline import judged
from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.datasets.offline.judged import NO_PROGRAM, NOT_FINISHED, UNKNOWN_RESULT, judged_groups
from cobalt.datasets.offline.settings import JudgedSettings, RewardLevels
from cobalt.datasets.offline.writing import EQUAL_REWARDS, NONE_ACCEPTED
from cobalt.episode import load_prompts, program_of
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.problems.problem import load_problems
from cobalt.reward import compute_reward
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import manifest_path, recorded_arguments
from cobalt.stage.records import read_records

RECORDED = ROOT / "tests" / "data" / "recorded_run"


def convert(files, tmp_path, name="out", **fields):
    chosen = {"validation_share": 0.0, "group_size": 2, "near_duplicates": 2.0} | fields
    paths = tuple(files) if isinstance(files, list) else (files,)
    settings = JudgedSettings(input_files=paths, output_dir=tmp_path / name, **chosen)
    return judged_groups(settings).summary, list(read_groups(tmp_path / name / "train.jsonl"))


def arguments_of(tmp_path):
    return recorded_arguments(tmp_path / "out" / "train.jsonl")


def statuses(groups):
    return {one.origin: one.status for group in groups for one in group.responses}


def result(*kinds):
    return {
        "passing": [kind == "passed" for kind in kinds],
        "feedback": ["" if kind == "passed" else "wrong" for kind in kinds],
        "verdicts": [{"kind": kind} for kind in kinds],
    }


def apps(generated, solutions=("print(1)", "print(2)", "print(3)", "print(4)")):
    return {"id": 7, "question": "Print.", "human_solutions": list(solutions), "generated_solutions": generated}


RIGHT, WRONG = ["passed"] * 4, ["wrong_answer"] * 4


def single_turn(kinds, **fields):
    """A single-turn record: one response for each list of verdicts."""
    texts = [f"Thinking {index}.\n```python\nprint({index})\n```" for index in range(len(kinds))]
    return square_problem(1, responses=texts, exec_results=[result(*verdicts) for verdicts in kinds], **fields)


NUMBERS = itertools.count()


def attempts(identifier, *kinds, **fields):
    """A single-turn record whose programs are its own."""
    record = single_turn(list(kinds)) | {"id": identifier} | fields
    number = next(NUMBERS)
    return record | {"responses": [text.replace("print", f"print({number});print") for text in record["responses"]]}


SAMPLES = [[(2, 2), (1, 1), (2, 2)], [(1, 1), (1, 1), (2, 1)], [(1, 2), (0, 0), (2, 2)], [(0, 0), (2, 2), (1, 0)]]
"""Passed public and hidden tests, of two each, by sample and turn."""
CODE = "```python\nprint(0)\n```"
THOUGHT = "<think>\nIt is simple.\n</think>\n\n```python\nprint({text})\n```"


def thought_run(samples, failure="wrong_answer"):
    """An evaluated record whose responses have a form without a flaw."""
    record = trajectory_record("t", samples)
    for turn in range(len(samples[0])):
        public = [sample[turn][0] for sample in samples]
        record["raw_responses"][turn] = [THOUGHT.format(text=f"{index}, {turn}") for index in range(len(samples))]
        results = [result(*["passed"] * passed, *[failure] * (2 - passed)) for passed in public]
        record.setdefault("public_exec_results", []).append(results)
    return record


RESULTS = {
    (True, ""): Status.ACCEPTED,
    (False, ""): Status.WRONG_ANSWER,
    (-1, "nameerror"): Status.RUNTIME_ERROR,
    (-1, "timeoutexception"): Status.TIME_LIMIT,
    (-2, "syntaxerror"): Status.COMPILE_ERROR,
}


def test_results_of_apps_become_statuses(tmp_path):
    generated = [
        {"code": f"print('{index}')\r\n", "result": value, "error_type": kind}
        for index, (value, kind) in enumerate([*RESULTS, (None, ""), (1, "x")])
    ]
    record = apps(generated)
    record["instruction"] = record.pop("question")  # which stands for it
    summary, groups = convert(write_lines(tmp_path / "a.jsonl", [record]), tmp_path, source="apps")
    expected = {f"generated_solutions/{index}": status for index, status in enumerate(RESULTS.values())}
    used = {origin: status for origin, status in statuses(groups).items() if origin.startswith("generated")}
    assert used | {"generated_solutions/0": Status.ACCEPTED} == expected
    assert summary["programs"][UNKNOWN_RESULT] == 2
    assert {(group.source, group.problem_id) for group in groups} == {("apps", "7")}
    assert groups[0].id == "7/0"
    assert all("Print." in group.messages[-1]["content"] for group in groups)
    assert all(program_of(one.text) and "\r" not in one.text for group in groups for one in group.responses)


FAILURES = ["wrong_answer", "runtime_error", "compile_error", "time_limit", "memory_limit", "output_limit"]
KINDS = {kind: Status(kind) for kind in FAILURES} | {"wall_limit": Status.TIME_LIMIT}


def test_a_single_turn_result_gives_the_responses_with_the_first_failure_as_status(tmp_path):
    kinds = [RIGHT] * 8 + [["passed", kind, "runtime_error", "passed"] for kind in KINDS]
    _, groups = convert(write_lines(tmp_path / "s.jsonl", [single_turn(kinds)]), tmp_path, prompts="pocket")
    by_origin = statuses(groups)
    for index, status in enumerate(KINDS.values(), 8):
        assert by_origin[f"{index}/0"] is status
    texts = {one.origin: one.text for group in groups for one in group.responses}
    assert texts["8/0"] == "Thinking 8.\n```python\nprint(8)\n```"
    assert [message["role"] for message in groups[0].messages] == ["system", "user"]
    (problem,) = load_problems(tmp_path / "out" / "problems.jsonl")
    assert "responses" not in problem.record
    assert len(problem.hidden_tests) == 2


def test_responses_that_teach_nothing_are_left_out(tmp_path):
    kinds = [RIGHT, WRONG, RIGHT, RIGHT, ["not_run"] * 4, ["no_code"] * 4]
    record = single_turn(
        kinds, finish_reasons=["stop", "stop", "length", "stop", "stop", "stop"], errors=["", "", "", "broken", "", ""]
    )
    record["responses"][5] = "I do not know."
    source = write_lines(tmp_path / "s.jsonl", [record])
    summary, groups = convert(source, tmp_path)
    assert summary["programs"][NOT_FINISHED] == 2
    assert summary["programs"][UNKNOWN_RESULT] == 1
    assert set(statuses(groups)) <= {"0/0", "1/0", "5/0"}
    summary, groups = convert(source, tmp_path, "programs", responses="programs")
    assert summary["programs"][NO_PROGRAM] == 1
    assert summary["programs"][NOT_FINISHED] == 1
    assert "1/0" in statuses(groups)


def test_a_single_turn_result_of_another_prompt_set_is_refused_but_for_its_programs(tmp_path):
    file = write_lines(tmp_path / "s.jsonl", [single_turn([RIGHT, WRONG])])
    convert(file, tmp_path, "without a manifest")
    file = write_lines(tmp_path / "pocket.jsonl", [single_turn([RIGHT, WRONG])])
    manifest_path(file).write_text(json.dumps({"arguments": {"prompts": dict(load_prompts("pocket").digests)}}))
    with pytest.raises(UserError, match=r"pocket\.jsonl.*--prompts"):
        convert(file, tmp_path)
    convert(file, tmp_path, "programs", responses="programs")
    convert(file, tmp_path, "pocket", prompts="pocket")


def test_an_evaluated_run_gives_its_first_responses_and_the_prompt_that_the_model_saw(tmp_path):
    samples = [[(2, 2), (0, 0)], [(2, 1), (2, 2)], [(2, 2), (2, 2)], [(0, 2), (2, 2)]]
    record = thought_run(samples, "time_limit")
    _, groups = convert(write_lines(tmp_path / "e.jsonl", [record]), tmp_path)
    expected = Status.ACCEPTED, Status.WRONG_ANSWER, Status.ACCEPTED, Status.TIME_LIMIT
    assert statuses(groups) == {f"{sample}/0": status for sample, status in enumerate(expected)}
    assert {one.text for group in groups for one in group.responses} == set(record["raw_responses"][0])
    assert list(groups[0].messages) == record["conversations"][0][:2]


def test_an_evaluated_run_can_give_the_programs_of_all_its_turns(tmp_path):
    file = RECORDED / "evaluation.jsonl"
    records = {record["id"]: record for record in read_records(file)}
    _, groups = convert(file, tmp_path, responses="programs")
    origins = {one.origin for group in groups for one in group.responses}
    assert {origin.split("/")[1] for origin in origins} > {"0"}
    for group in groups:
        record = records[group.problem_id]
        for one in group.responses:
            sample, turn = map(int, one.origin.split("/"))
            passed = set(record["hidden_verdicts"][sample][turn]) == {"passed"}
            passed = passed and record["public_pass_rates"][turn][sample] == 1
            assert (one.status is Status.ACCEPTED) == passed
            assert program_of(one.text) == program_of(record["raw_responses"][turn][sample])


def test_every_turn_of_an_evaluated_run_comes_with_the_context_that_the_model_saw_whatever_the_prompt_set(tmp_path):
    record = thought_run(SAMPLES)
    file = write_lines(tmp_path / "e.jsonl", [record])
    _, groups = convert(file, tmp_path, responses="turns")
    assert arguments_of(tmp_path)["prompts"] == judged.OWN_PROMPTS
    assert convert(file, tmp_path, responses="turns", prompts="pocket")[1] == groups
    taken = [one.origin for group in groups for one in group.responses]
    assert {origin.split("/")[1] for origin in taken} == {"0", "1", "2"}
    for group in groups:
        for one in group.responses:
            sample, turn = map(int, one.origin.split("/"))
            assert one.text == record["raw_responses"][turn][sample]
            assert group.prompt(one) == record["conversations"][sample][: 2 + 2 * turn]


def test_recorded_rewards_are_those_of_training_on_the_partial_trajectories(tmp_path):
    record = thought_run(SAMPLES)
    record["raw_responses"][2][2] = THOUGHT.format(text="2, 2") + "\n</think>\n```python\nprint(22)\n```"
    file = write_lines(tmp_path / "e.jsonl", [record])
    summary, groups = convert(file, tmp_path, responses="turns", rewards_from="recorded")
    assert summary["programs"]["read"] == 12
    rewards = {one.origin: one.reward for group in groups for one in group.responses}
    assert len(rewards) >= 8
    for origin, reward in rewards.items():
        sample, turn = map(int, origin.split("/"))
        rates = [sum(passed) / 4 for passed in SAMPLES[sample]]
        text = record["raw_responses"][turn][sample]
        assert reward == compute_reward(text, rates[turn], max(rates[:turn], default=0.0)).total
    # A flaw of the form can cost an accepted response more than another one loses.
    (of_third,) = [group for group in groups if "2/2" in {one.origin for one in group.responses}]
    rewards = {one.status: one.reward for one in of_third.responses}
    assert rewards[Status.ACCEPTED] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("first", "flag", "flawed"),
    [
        (CODE, "auto", False),
        (CODE, "true", True),
        (CODE, "false", False),
        (THOUGHT.format(text=0), "auto", True),
        ("<think>\nIt was cut off", "auto", True),
        (THOUGHT.format(text=0), "false", False),
    ],
)
def test_recorded_rewards_of_a_model_that_does_not_think(tmp_path, first, flag, flawed):
    record = single_turn([RIGHT, ["passed", "wrong_answer", "wrong_answer", "passed"], WRONG])
    record["responses"] = [CODE, CODE.replace("0", "1"), first.replace("0", "2")]
    file = write_lines(tmp_path / "s.jsonl", [record])
    _, groups = convert(file, tmp_path, rewards_from="recorded", require_thinking=flag)
    rewards = {one.origin: one.reward for group in groups for one in group.responses}
    assert rewards["0/0"] == pytest.approx(0.1 if flawed else 1.0)
    assert arguments_of(tmp_path)["require_thinking"] == str(flawed).lower()


def test_a_later_turn_is_as_long_as_its_context_makes_it(tmp_path, policy):
    file = write_lines(tmp_path / "e.jsonl", [thought_run([[(2, 2), (1, 1)], [(1, 1), (2, 2)]])])
    _, groups = convert(file, tmp_path, responses="turns", model_name=str(policy))
    assert {len(group.responses[0].context) for group in groups} == {0, 2}
    counter = PromptTokenCounter(str(policy))
    (second,) = [group for group in groups if group.responses[0].context]
    longest = max(
        counter.count([second.prompt(one)])[0] + counter.count_responses([one.text])[0] for one in second.responses
    )
    for most, turns in ((longest, {0, 2}), (longest - 1, {0})):
        _, groups = convert(file, tmp_path, f"most{most}", responses="turns", model_name=str(policy), max_tokens=most)
        assert {len(group.responses[0].context) for group in groups} == turns


def test_groups_without_contrast_are_kept_and_counted(tmp_path):
    records = [attempts(1, RIGHT, RIGHT), attempts(2, WRONG, WRONG), attempts(3, RIGHT, WRONG), attempts(4, WRONG)]
    records[1]["responses"][1] = "I do not know."
    records[1]["exec_results"][1] = result(*["no_code"] * 4)
    file = write_lines(tmp_path / "s.jsonl", records)
    summary, groups = convert(file, tmp_path, contrast="any")
    assert {group.problem_id for group in groups} == {"1", "2", "3"}
    assert {group.contrast for group in groups} == {"any"}
    assert summary["groups"] == {"in train.jsonl": 3, EQUAL_REWARDS: 1, NONE_ACCEPTED: 1}
    summary, groups = convert(file, tmp_path, "required")
    assert [(group.problem_id, group.contrast) for group in groups] == [("3", "required")]
    assert summary["groups"] == {"in train.jsonl": 1}


def writers(tmp_path, *runs):
    """The results of several models, each in a folder of its own."""
    paths = [tmp_path / f"model{index}" / "result.jsonl" for index in range(len(runs))]
    for path, records in zip(paths, runs, strict=True):
        path.parent.mkdir()
        write_lines(path, records)
    return paths


def test_the_programs_of_several_files_are_one_pool_whose_origins_name_the_file(tmp_path):
    files = writers(tmp_path, [attempts(1, RIGHT), attempts(2, RIGHT)], [attempts(1, WRONG), attempts(2, WRONG)])
    summary, groups = convert(files, tmp_path)
    assert summary["problems"]["read"] == 2
    assert summary["programs"]["read"] == 4
    outcomes = [(group.problem_id, {one.origin: one.status for one in group.responses}) for group in groups]
    expected = {"0:0/0": Status.ACCEPTED, "1:0/0": Status.WRONG_ANSWER}
    assert outcomes == [("1", expected), ("2", expected)]
    with pytest.raises(UserError):  # neither file has contrast alone
        convert(files[0], tmp_path, "alone")
    people = [square_problem(number, human_solutions=["print(int(input()) ** 2)"]) for number in (1, 2)]
    _, groups = convert([write_lines(tmp_path / "people.jsonl", people), files[1]], tmp_path, "p", responses="programs")
    expected = {"0:human_solutions/0": Status.ACCEPTED, "1:0/0": Status.WRONG_ANSWER}
    assert [{one.origin: one.status for one in group.responses} for group in groups] == [expected] * 2


OTHER_TESTS = attempts(2, WRONG, test_cases=square_problem(2)["test_cases"].replace("25", "26"))


@pytest.mark.parametrize(
    ("others", "names"),
    [
        ([], r"\[2, None\]"),
        ([attempts(3, WRONG)], r"\[2, 3\]"),
        ([attempts(2, WRONG), attempts(3, WRONG)], r"\[None, 3\]"),
        ([attempts(2, WRONG, question="Cube it.")], "record 2.*statement"),
        ([OTHER_TESTS], "record 2.*tests"),
        ([attempts(2, WRONG, instruction="Square it.")], "record 2.*prompt"),
    ],
)
def test_files_that_disagree_about_a_problem_are_refused_by_file_and_id(tmp_path, others, names):
    files = writers(tmp_path, [attempts(1, RIGHT), attempts(2, RIGHT)], [attempts(1, WRONG), *others])
    with pytest.raises(UserError, match=rf"model[01].*{names}"):
        convert(files, tmp_path)
    assert not (tmp_path / "out" / "train.jsonl").exists()


TURNS, LEARNED = {"responses": "turns", "rewards_from": "recorded"}, {"rewards_from": "recorded"}
RUN = thought_run([[(2, 2), (1, 1)], [(1, 1), (2, 2)]])


def without(name):
    return {field: value for field, value in RUN.items() if field != name}


REFUSED = [
    ([apps([]) | {"human_solutions": "print(1)"}], {}, r"a\.jsonl.*human_solutions"),
    ([apps([{"result": True}])], {}, r"a\.jsonl.*generated_solutions"),
    ([apps([]) | {"question": None}], {}, r"a\.jsonl.*question"),
    ([apps([]) | {"test_cases": "{"}], {}, r"a\.jsonl.*test_cases"),
    ([{"id": 1, "question": "Print."}], {}, r"a\.jsonl.*'human_solutions'.*'generated_solutions'"),
    ([], {}, r"train\.jsonl.*--group_size"),
    *(
        ([single_turn([RIGHT, WRONG]) | {"exec_results": results}], {}, r"record 1.*'exec_results(\.0)?'")
        for results in ([result("passed")] * 2, [result(*RIGHT)], [3, 4], "passed")
    ),
    *(([without(name)], TURNS, name) for name in ("conversations", "all_pass_rates", "public_pass_rates")),
    ([without("finish_reasons")], TURNS, "--replay_file"),
    ([RUN], LEARNED | {"responses": "programs"}, "programs"),
    ([RUN], LEARNED | {"rewards": RewardLevels(wrong_answer=0.0)}, "rewards"),
    ([apps([])], LEARNED, "rewards_from"),
    # These do not say which of their programs are right.
    *((read_records(RECORDED / f"{name}.jsonl"), {}, "p0") for name in ("evaluation_perturbed", "multi_turn")),
]


@pytest.mark.parametrize(("records", "fields", "names"), REFUSED, ids=range(len(REFUSED)))
def test_what_gives_no_group_that_is_known_to_be_right_is_refused(tmp_path, records, fields, names):
    with pytest.raises(UserError, match=names):
        convert(write_lines(tmp_path / "a.jsonl", records), tmp_path, **fields)
    with pytest.raises(UserError, match="input_files"):
        convert([], tmp_path)
