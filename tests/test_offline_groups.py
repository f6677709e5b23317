"""Groups of judged responses: a file of another schema is refused by the field that is wrong, never misread."""

import pytest
from support import write_lines

from cobalt.datasets.offline.groups import OfflineGroup, OfflineResponse, Status, read_groups
from cobalt.stage.errors import UserError


def response(status="accepted", reward=1.0, **fields):
    text = "```python\nprint(1)\n```"
    return {"text": text, "status": status, "reward": reward, "origin": "s1", "context": []} | fields


def said(*roles):
    return [{"role": role, "content": role} for role in roles]


def record(identifier="p1/0", **fields):
    responses = [response(), response("wrong_answer", -0.3)]
    return {
        "id": identifier,
        "problem_id": "p1",
        "source": "codenet",
        "contrast": "required",
        "messages": [{"role": "user", "content": "Print one."}],
        "responses": responses,
    } | fields


def test_a_group_is_read_as_it_was_written(tmp_path):
    group = OfflineGroup(
        "p1/0",
        "p1",
        "codenet",
        ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "é"}),
        (
            OfflineResponse("```python\nprint(1)\n```", Status.ACCEPTED, 0.1, "s1", tuple(said("assistant", "user"))),
            OfflineResponse("none", Status.NO_CODE, 0.2, "s2", tuple(said("assistant", "user"))),
        ),
        "required",
    )
    equal = record("p1/1", responses=[response(), response()], contrast="any")
    assert list(read_groups(write_lines(tmp_path / "g.jsonl", [group.to_record(), equal]))) == [
        group,
        OfflineGroup.parse(equal),
    ]


def test_the_prompt_of_a_later_turn_is_the_groups_and_its_own_context():
    context = said("assistant", "user", "assistant", "user")
    group = OfflineGroup.parse(record(responses=both(context=context)))
    assert group.prompt(group.responses[0]) == [*group.messages, *context]


def both(**fields):
    return [response(**fields), response("wrong_answer", -0.3, **fields)]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"messages": [{"role": "assistant", "content": ""}]}, "messages"),
        ({"responses": [response()]}, "responses"),
        ({"responses": [response("time_limit", 0.0), response("no_code", 0.0)]}, "responses"),
        ({"responses": [response(), response("passed", 0.0)]}, "status"),
        ({"responses": [response(), response("wrong_answer", 10**400)]}, "reward"),
        ({"contrast": "none"}, "contrast"),
        ({"contrast": "any", "responses": [response()]}, "responses"),
        ({"contrast": "any", "responses": [response(reward=float("nan"))] * 2}, "responses"),
        ({"responses": [response(context=said("user"))] * 2}, "responses"),
        ({"responses": [response(), response("wrong_answer", context=said("assistant", "user"))]}, "responses"),
        ({"responses": both(context=said("assistant"))}, "context"),
        ({"responses": both(context=said("assistant", "system"))}, "context"),
    ],
)
def test_a_malformed_group_is_refused_by_its_field(tmp_path, fields, names):
    with pytest.raises(UserError, match=rf"p1/0.*{names}"):
        list(read_groups(write_lines(tmp_path / "g.jsonl", [record(**fields)])))


@pytest.mark.parametrize("name", record())
def test_no_field_can_be_left_out(name):
    with pytest.raises(UserError, match=name):
        OfflineGroup.parse({key: value for key, value in record().items() if key != name})


@pytest.mark.parametrize("records", [[], [record(), record()]])
def test_a_file_without_groups_or_with_one_twice_is_refused(tmp_path, records):
    with pytest.raises(UserError):
        list(read_groups(write_lines(tmp_path / "g.jsonl", records)))
