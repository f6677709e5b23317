"""Groups of a problem's programs: each has contrast, no program is used twice, and nothing is lost uncounted."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cobalt.datasets.offline import contrast
from cobalt.datasets.offline.contrast import Candidate, make_groups
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.settings import GroupSettings, RewardLevels
from cobalt.datasets.offline.similarity import NearDuplicates, normalised_source
from cobalt.episode import program_of
from cobalt.stage.errors import UserError

FAILURES = [status for status in Status if status is not Status.ACCEPTED]


def settings(**fields):
    return GroupSettings(output_dir=Path("unused"), **({"near_duplicates": 2.0} | fields))


def candidate(program, status=Status.ACCEPTED, origin=None):
    return Candidate(program, status, RewardLevels().of(status), origin or program)


def candidates(accepted, others):
    """Programs that are all different."""
    good = [candidate(f"print({place})") for place in range(accepted)]
    return good + [candidate(f"print(-{place})", FAILURES[place % 5]) for place in range(others)]


def origins(groups):
    return [response.origin for group in groups for response in group]


@given(
    *(st.integers(0, 30), st.integers(0, 30), st.integers(2, 8), st.integers(1, 10)),
    st.sampled_from(["required", "any"]),
)
def test_groups_have_contrast_if_required_and_share_no_program(accepted, others, size, most, kind):
    programs = candidates(accepted, others)
    chosen = settings(group_size=size, max_accepted=most, contrast=kind)
    made, counts = make_groups("p", programs, chosen)
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
    made, _ = make_groups("p", candidates(400, 400), settings(contrast="any"))
    share = [sum(one.status is Status.ACCEPTED for one in group) for group in made]
    # Of four drawn from as many accepted ones as others, all are accepted in one case of 16, and so are none.
    assert 0.02 < share.count(4) / len(made) < 0.12
    assert 0.02 < share.count(0) / len(made) < 0.12
    assert 0.25 < share.count(2) / len(made) < 0.5


@pytest.mark.parametrize("size", [4, 8])
def test_the_seed_and_the_problem_decide_the_choice(size):
    programs = candidates(40, 80)

    def made(seed, problem="p"):
        return origins(make_groups(problem, programs, settings(group_size=size, max_accepted=10, seed=seed))[0])

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert made(1) != made(1, "q")


def test_copies_are_dropped_and_so_is_a_program_with_different_statuses():
    programs = [
        candidate("x = 1  # one\n\nprint(x)", origin="a"),
        candidate("x = 1\nprint(x)   ", origin="b"),
        candidate("print(2)", Status.WRONG_ANSWER, "c"),
        candidate("print(3)", origin="d"),
        candidate("print(3)#", Status.TIME_LIMIT, "e"),
        candidate("print(3)", origin="f"),
        candidate("print('# 4') # \"", origin="g"),
        candidate("print('# 5')", Status.WRONG_ANSWER, "h"),
        candidate('x = """\n# 6\n"""', origin="i"),
        candidate('x = """\n"""', Status.WRONG_ANSWER, "j"),
    ]
    made, counts = make_groups("p", programs, settings(group_size=2))
    assert sorted(origins(made)) == ["a", "c", "g", "h", "i", "j"]
    assert counts == {contrast.DUPLICATE: 1, contrast.CONTRADICTED: 3, contrast.USED: 6, contrast.LEFT_OVER: 0}


LONG = "\n".join(f"value_{place} = int(input()) + {place}" for place in range(30))


def test_near_duplicates_are_dropped_among_equals_and_kept_as_contrast():
    other = LONG.replace("+ 29", "- 29")
    near = LONG.replace("+ 7", "+ 8")
    programs = [candidate(LONG), candidate(near), candidate(other, Status.WRONG_ANSWER)]
    made, counts = make_groups("p", programs, settings(group_size=2, near_duplicates=0.8))
    assert len(made) == 1
    assert counts[contrast.NEAR_DUPLICATE] == 1
    assert other in origins(made)


def test_a_program_that_is_refused_does_not_make_another_one_a_near_duplicate():
    versions = [candidate(LONG + f"\nprint({place})") for place in range(8)]
    made, counts = make_groups(
        "p",
        [*versions, candidate("x", Status.WRONG_ANSWER)],
        settings(group_size=2, near_duplicates=0.5),
        refuse=lambda one: None if one.program in ("x", versions[3].program) else "refused",
    )
    assert sorted(origins(made)) == sorted(["x", versions[3].program])
    assert counts["refused"] + counts[contrast.NEAR_DUPLICATE] == 7


@pytest.mark.parametrize(
    ("one", "other", "threshold", "same"),
    [
        (LONG, LONG.replace("value_1", "v"), 0.9, False),
        (LONG, LONG.replace("value_1", "v"), 0.3, True),
        (LONG, "\n".join(LONG.split("\n")[:15] + [f"print('{place}', other)" for place in range(15)]), 0.6, False),
        ("", "", 0.9, True),
    ],
)
def test_similarity_is_measured_against_the_threshold(one, other, threshold, same):
    known = NearDuplicates(threshold)
    known.remember(known.sketch(one))
    assert known.resembles(known.sketch(other)) is same


def later(program, context, status=Status.ACCEPTED):
    """A program after earlier ones, each answered by feedback."""
    messages = [
        message
        for text in context
        for message in ({"role": "assistant", "content": text}, {"role": "user", "content": f"feedback on {text}"})
    ]
    return Candidate(program, status, RewardLevels().of(status), f"{program}{context}", None, tuple(messages))


def test_programs_of_different_turns_are_never_in_one_group():
    programs = [
        later(f"print({place})", context, status)
        for context in ([], ["a"], ["a", "b"])
        for place, status in enumerate([Status.ACCEPTED, Status.WRONG_ANSWER] * 4)
    ]
    made, counts = make_groups("p", programs, settings(group_size=4))
    assert [len(group[0].context) for group in made] == [0, 0, 2, 2, 4, 4]
    assert all({len(one.context) for one in group} == {len(group[0].context)} for group in made)
    assert counts.total() == len(programs)


def test_a_program_after_another_context_is_not_a_copy():
    unlike = "\n".join(f"print('{place}', other)" for place in range(90))
    programs = [later(LONG, [context]) for context in ("a", "a", unlike + "1", unlike + "2")]
    programs.insert(2, later(LONG, ["b"], Status.WRONG_ANSWER))
    made, counts = make_groups("p", programs, settings(group_size=2, near_duplicates=0.8))
    assert len(made) == 1
    assert counts[contrast.DUPLICATE] == 1
    assert counts[contrast.CONTRADICTED] == 0
    assert counts[contrast.NEAR_DUPLICATE] == 1


@given(st.text(st.sampled_from("ab`~\n \t#'\"xyz"), max_size=60))
@example("a = '```'")
@example("a = '''\n```python\n'''")
@example("print('</think>')")
@example("x = 1\n</think>")
def test_a_program_is_found_again_in_its_response_or_left_out(program):
    program = program.rstrip()
    made, counts = make_groups("p", [candidate(program), candidate("other", Status.NO_CODE)], settings(group_size=2))
    if made:
        assert {program_of(one.text) for one in made[0]} == {program, "other"}
    else:
        assert counts[contrast.UNWRITABLE] == 1 or normalised_source(program) in ("", "other")


def test_only_what_fits_and_is_not_refused_is_taken():
    made, counts = make_groups(
        "p",
        candidates(5, 5),
        settings(group_size=2),
        fits=lambda some: ["print(1)" not in one.response for one in some],
        refuse=lambda one: "refused" if one.program == "print(2)" else None,
    )
    assert counts[contrast.TOO_LONG] == 1
    assert counts["refused"] == 1
    assert not {"print(1)", "print(2)"} & set(origins(made))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"group_size": 1}, "group_size"),
        ({"max_accepted": 0}, "max_accepted"),
        ({"near_duplicates": 0.0}, "near_duplicates"),
        *(({"similarity": value}, "similarity") for value in (float("nan"), 2.0)),
        ({"validation_share": 1.0}, "validation_share"),
        *(({"rewards": {"accepted": value}}, "rewards") for value in (-0.3, float("nan"))),
        *(({"rewards": {name: value}}, "rewards") for name, value in (("no_code", 2.0), ("runtime_bonus", -1.0))),
    ],
)
def test_settings_out_of_their_range_are_named(fields, names):
    with pytest.raises(UserError, match=names):
        settings(**fields)
