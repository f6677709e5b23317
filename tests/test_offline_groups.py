"""Groups of judged responses: a file of another schema is refused by the field that is wrong, never misread."""

import json

import pytest
from support import write_lines

from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.stage.errors import UserError


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
    assert json.loads(json.dumps([group.to_record() for group in groups])) == records
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
