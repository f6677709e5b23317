"""Groups of a problem's programs: each has contrast, no program is used twice, and nothing is lost uncounted.

A file of groups of another schema is refused by the field that is wrong, never misread.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import write_lines

from cobalt.datasets.offline import contrast
from cobalt.datasets.offline.contrast import bare, make_groups
from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.datasets.offline.settings import GroupSettings, RewardLevels
from cobalt.datasets.offline.similarity import NearDuplicates, normalised_source
from cobalt.episode import program_of
from cobalt.stage.errors import UserError

FAILURES = [status for status in Status if status is not Status.ACCEPTED]
WRONG = Status.WRONG_ANSWER


def settings(**fields):
    return GroupSettings(output_dir=Path("unused"), **({"near_duplicates": 2.0, "group_size": 2} | fields))


def candidate(program, status=Status.ACCEPTED, origin=None, after=()):
    """A program after earlier ones, each answered by feedback."""
    said = [[("assistant", text), ("user", f"feedback on {text}")] for text in after]
    context = tuple({"role": role, "content": content} for turn in said for role, content in turn)
    made = bare(program, status, RewardLevels().of(status), origin or f"{program}{after}")
    return made._replace(response=replace(made.response, context=context))


def candidates(accepted, others):
    """Programs that are all different."""
    good = [candidate(f"print({index})") for index in range(accepted)]
    return good + [candidate(f"print(-{index})", FAILURES[index % 5]) for index in range(others)]


def grouped(programs, **fields):
    return make_groups("p", programs, settings(**fields))


def origins(groups):
    return [response.origin for group in groups for response in group]


@given(
    *(st.integers(0, 30), st.integers(0, 30), st.integers(2, 8), st.integers(1, 10)),
    st.sampled_from(["required", "any"]),
)
def test_groups_have_contrast_if_required_and_share_no_program(accepted, others, size, most, kind):
    programs = candidates(accepted, others)
    made, counts = grouped(programs, group_size=size, max_accepted=most, contrast=kind)
    assert counts.total() == len(programs)
    assert counts[contrast.USED] == len(made) * size
    assert all(len(group) == size for group in made)
    assert len(set(origins(made))) == len(origins(made))
    possible = (accepted + others) // size
    if kind == "required":
        assert all(0 < sum(one.status is Status.ACCEPTED for one in group) < size for group in made)
        assert sum(one.status is Status.ACCEPTED for group in made for one in group) <= most
        possible = min(accepted, most, others, (min(accepted, most) + others) // size)
    # Nothing is left that would make another group.
    assert len(made) == possible


def test_without_contrast_groups_are_drawn_at_random():
    made, _ = grouped(candidates(400, 400), contrast="any", group_size=4)
    share = [sum(one.status is Status.ACCEPTED for one in group) for group in made]
    # Of four drawn from as many accepted ones as others, all are accepted in one case of 16, and so are none.
    assert 0.02 < share.count(4) / len(made) < 0.12
    assert 0.02 < share.count(0) / len(made) < 0.12
    assert 0.25 < share.count(2) / len(made) < 0.5


def test_the_seed_and_the_problem_decide_the_choice():
    chosen = [settings(group_size=4, max_accepted=10, seed=seed) for seed in (1, 1, 2)]
    first, same, other = (origins(make_groups("p", candidates(40, 80), one)[0]) for one in chosen)
    assert first == same != other
    assert first != origins(make_groups("q", candidates(40, 80), chosen[0])[0])


LONG = "\n".join(f"value_{index} = int(input()) + {index}" for index in range(30))
UNLIKE = "\n".join(f"print('{index}', other)" for index in range(90))
COPIES = [
    ("x = 1  # one\n\nprint(x)", True),
    ("x = 1\nprint(x)   ", True),
    ("print(2)", False),
    ("print(3)", True),
    ("print(3)#", False),
    ("print(3)", True),
    ("print('# 4') # \"", True),
    ("print('# 5')", False),
    ('x = """\n# 6\n"""', True),
    ('x = """\n"""', False),
]
NEAR = [(LONG, True), (LONG.replace("+ 7", "+ 8"), True), (LONG.replace("+ 29", "- 29"), False)]
# The last two programs are near duplicates, because most of what is trained on is their context.
CONTEXTS = [(LONG, context != "b", context) for context in ("a", "a", "b", UNLIKE + "1", UNLIKE + "2")]


@pytest.mark.parametrize(
    ("programs", "used", "reasons"),
    [
        (COPIES, [[0], [2], [6], [7], [8], [9]], {contrast.DUPLICATE: 1, contrast.CONTRADICTED: 3}),
        (NEAR, [[0, 1], [2]], {contrast.NEAR_DUPLICATE: 1}),
        (CONTEXTS, [[0, 3, 4], [2]], {contrast.DUPLICATE: 1, contrast.NEAR_DUPLICATE: 1, contrast.LEFT_OVER: 1}),
    ],
    ids=["copies", "near duplicates among equals", "other contexts"],
)
def test_copies_and_contradictions_are_dropped_and_near_duplicates_are_kept_as_contrast(programs, used, reasons):
    """Of each list of indices in `used` one program is in a group."""
    rows = enumerate(programs)
    some = [candidate(one, Status.ACCEPTED if right else WRONG, f"{n}", after) for n, (one, right, *after) in rows]
    made, counts = grouped(some, near_duplicates=0.8)
    chosen = {int(origin) for origin in origins(made)}
    assert len(chosen) == len(used)
    assert all(chosen & set(one) for one in used)
    assert {name: count for name, count in counts.items() if count and name != contrast.USED} == reasons


def test_only_what_fits_is_taken_and_nothing_else_makes_a_near_duplicate():
    versions = [candidate(LONG + f"\nprint({index})", origin=f"{index}") for index in range(8)]
    made, counts = make_groups(
        "p",
        [*versions, candidate("x", WRONG, "x")],
        settings(near_duplicates=0.5),
        fits=lambda some: [one.response.origin in ("x", "3") for one in some],
    )
    assert sorted(origins(made)) == ["3", "x"]
    assert counts[contrast.TOO_LONG] == 7


def test_similarity_is_measured_against_the_threshold():
    renamed, half = LONG.replace("value_1", "v"), LONG[: len(LONG) // 2] + UNLIKE[: len(LONG) // 2]
    for other, threshold, new in ((renamed, 0.9, True), (renamed, 0.3, False), (half, 0.6, True), (LONG, 1.0, False)):
        known = NearDuplicates(threshold)
        assert [known.add(LONG), known.add(other)] == [True, new]


def test_programs_of_different_turns_are_never_in_one_group():
    programs = [
        candidate(f"print({index})", status, after=after)
        for after in ([], ["a"], ["a", "b"])
        for index, status in enumerate([Status.ACCEPTED, WRONG] * 4)
    ]
    made, counts = grouped(programs, group_size=4)
    assert [{len(one.context) for one in group} for group in made] == [{0}, {0}, {2}, {2}, {4}, {4}]
    assert counts.total() == len(programs)


@given(st.text(st.sampled_from("ab`~\n \t#'\"xyz"), max_size=60))
@example("a = '```'")
@example("a = '''\n```python\n'''")
@example("print('</think>')")
@example("x = 1\n</think>")
def test_a_program_is_found_again_in_its_response_or_left_out(program):
    program = program.rstrip()
    made, counts = grouped([candidate(program), candidate("other", Status.NO_CODE)])
    if made:
        assert {program_of(one.text) for one in made[0]} == {program, "other"}
    else:
        assert counts[contrast.UNWRITABLE] == 1 or normalised_source(program) in ("", "other")


OUT_OF_RANGE = [
    *({name: 0} for name in ("group_size", "max_accepted", "near_duplicates", "similarity")),
    *({"similarity": value} for value in (float("nan"), 2.0)),
    {"validation_share": 1.0},
    *({"rewards": {"accepted": value}} for value in (-0.3, float("nan"))),
    *({"rewards": level} for level in ({"no_code": 2.0}, {"runtime_bonus": -1.0})),
]


@pytest.mark.parametrize("fields", OUT_OF_RANGE)
def test_settings_out_of_their_range_are_named(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        settings(**fields)


# Files


def response(status="accepted", reward=1.0, **fields):
    text = "```python\nprint(1)\n```"
    return {"text": text, "status": status, "reward": reward, "origin": "s1", "context": []} | fields


def said(*roles):
    return [{"role": role, "content": role} for role in roles]


def record(identifier="p1/0", **fields):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é"}]
    return {
        "id": identifier,
        "problem_id": "p1",
        "source": "codenet",
        "contrast": "required",
        "messages": prompt,
        "responses": both(),
    } | fields


def both(**fields):
    return [response(**fields), response("wrong_answer", -0.3, **fields)]


def test_groups_are_read_as_they_were_written_and_say_what_a_response_answers(tmp_path):
    context = said("assistant", "user", "assistant", "user")
    records = [record(responses=both(context=context)), record("p1/1", responses=[response()] * 2, contrast="any")]
    groups = list(read_groups(write_lines(tmp_path / "g.jsonl", records)))
    assert json.loads(json.dumps(list(map(asdict, groups)))) == records
    assert groups[0].responses[0].status is Status.ACCEPTED
    assert groups[0].prompt(groups[0].responses[0]) == [*records[0]["messages"], *context]


NO_CONTRAST = [response("time_limit", 0.0), response("no_code", 0.0)]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"messages": said("assistant")}, "messages"),
        *(({"responses": [response(), response(**bad)]}, names) for bad, names in (
            ({"status": "passed"}, "status"),
            ({"status": "wrong_answer", "reward": 10**400}, "reward"),
            ({"status": "wrong_answer", "context": said("assistant", "user")}, "responses"),
        )),
        ({"responses": [response()]}, "responses"),
        ({"responses": NO_CONTRAST}, "responses"),
        ({"contrast": "none"}, "contrast"),
        ({"contrast": "any", "responses": [response()]}, "responses"),
        ({"contrast": "any", "responses": [response(reward=float("nan"))] * 2}, "responses"),
        *(({"responses": both(context=said(*roles))}, "context") for roles in (["assistant"], ["assistant", "system"])),
        *(({name: None}, name) for name in record()),
    ],
)  # fmt: skip
def test_a_malformed_group_or_one_that_lacks_a_field_is_refused_by_it(tmp_path, fields, names):
    broken = {name: value for name, value in record(**fields).items() if value is not None}
    with pytest.raises(UserError, match=names if names == "id" else rf"p1/0.*{names}"):
        list(read_groups(write_lines(tmp_path / "g.jsonl", [broken])))


@pytest.mark.parametrize("records", [[], [record(), record()]])
def test_a_file_without_groups_or_with_one_twice_is_refused(tmp_path, records):
    with pytest.raises(UserError):
        list(read_groups(write_lines(tmp_path / "g.jsonl", records)))
