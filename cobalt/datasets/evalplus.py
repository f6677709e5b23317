"""Turn rows of EvalPlus's release files into the schema of its rows on the Hugging Face Hub.

A row of `HumanEvalPlus.jsonl.gz` or `MbppPlus.jsonl.gz` has a reference program, a tolerance and inputs (`base_input`,
`plus_input`), but no expected values. So the check that is made here runs the reference beside the program, in the
check's own process. JSON has neither tuples nor sets nor complex numbers; which arguments of MBPP+ are such is known by
the task's number, as in EvalPlus 0.3.1 (`evalplus/data/mbpp.py`). This module runs nothing.
"""

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.datasets.assertions import parsed
from cobalt.datasets.readings import python_literal
from cobalt.datasets.sources import text_of
from cobalt.judge.inside import evalplus_check
from cobalt.stage.errors import UserError


def is_release_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of a release file."""
    return row.get("plus_input") is not None


def humaneval_plus_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of HumanEval+ with its check as the field `test`; raises as `mbpp_plus_row`."""
    name = text_of(row, "entry_point")
    reference = text_of(row, "prompt") + text_of(row, "canonical_solution")
    call = f"candidate(*copy.deepcopy({_ARGUMENTS}))"
    head, body = _check(row, name, reference, _inputs(row), call, indent="    ")
    return {**row, "test": f"{head}\ndef check(candidate):\n{body}\n"}


def mbpp_plus_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of MBPP+ with the fields `code`, `test_imports`, `test_list`, `test`, and the bare statement as `prompt`.

    Raises UserError, which names the field, if one is bad.
    """
    identifier, name = text_of(row, "task_id"), text_of(row, "entry_point")
    number = identifier.removeprefix("Mbpp/")
    if not number.isdecimal():
        raise UserError(f"field 'task_id' is not a task of MBPP+ ({identifier!r:.40}), for example 'Mbpp/2'")
    prompt, solution = text_of(row, "prompt"), text_of(row, "canonical_solution")
    try:
        inputs = [_ARGUMENTS_OF.get(int(number), list)(arguments) for arguments in _inputs(row)]
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"the inputs of {identifier} do not have the form of that task ({error})") from None
    head, body = _check(row, name, f"{prompt}\n{solution}", inputs, f"{name}(*copy.deepcopy({_ARGUMENTS}))")
    shown = parsed(text_of(row, "assertion"), "field 'assertion'").body
    return {
        "task_id": identifier,
        "prompt": _statement(prompt),
        "code": solution,
        "test_imports": [ast.unparse(node) for node in shown if isinstance(node, ast.Import | ast.ImportFrom)],
        "test_list": [ast.unparse(node) for node in shown if isinstance(node, ast.Assert)],
        "test": f"{head}\n{body}\n",
    }


_ARGUMENTS = "arguments"


def _check(
    row: Mapping[str, Any], name: str, reference: str, inputs: Sequence[Any], call: str, indent: str = ""
) -> tuple[str, str]:
    """What defines the check's helpers, and the statements that compare each call with the reference's."""
    atol = row.get("atol") or 0
    if isinstance(atol, bool) or not isinstance(atol, int | float) or atol < 0:
        raise UserError(f"field 'atol' is not a number of 0 or more ({atol!r:.40})")
    head = f'{_rules()}\nimport copy\nreference = {{"__name__": "reference"}}\nexec({reference!r}, reference)'
    body = (
        f"inputs = {python_literal(inputs)}\nfor {_ARGUMENTS} in inputs:\n"
        f"    expected = reference[{name!r}](*copy.deepcopy({_ARGUMENTS}))\n"
        f"    assert accepts({name!r}, {_ARGUMENTS}, {call}, expected, {atol!r})"
    )
    return head, "\n".join(indent + line for line in body.split("\n"))


@functools.cache
def _rules() -> str:
    text = Path(str(evalplus_check.__file__)).read_text(encoding="utf-8")
    text = text[text.index("import math") :]
    return text.replace("from cobalt.judge.inside.numpy_stand_in import np", "import numpy as np")


def _inputs(row: Mapping[str, Any]) -> list[list[Any]]:
    inputs: list[list[Any]] = []
    for field in ("base_input", "plus_input"):
        calls = row.get(field)
        if calls == {}:  # a task of MBPP+ without added inputs
            continue
        if not isinstance(calls, list) or not all(isinstance(arguments, list) for arguments in calls):
            raise UserError(f"field {field!r} is missing or not a list of argument lists")
        inputs += calls
    return inputs


def _statement(prompt: str) -> str:
    """The statement in a prompt of MBPP+: its docstring up to the assertion."""
    text = ast.get_docstring(parsed(prompt, "field 'prompt'"), clean=False)
    if not text or not text.strip():
        raise UserError("field 'prompt' has no docstring with the statement")
    lines = text.strip().split("\n")
    return "\n".join(line for line in lines if not line.lstrip().startswith("assert ")).strip()


def _tuples(value: Any) -> Any:
    """Every list in the value as a tuple."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _tuple_items(arguments: list[Any]) -> list[Any]:
    return [[tuple(item) for item in argument] for argument in arguments]


def _first_or_second(place: int) -> Callable[[list[Any]], list[Any]]:
    return lambda arguments: [tuple(item) if at == place else item for at, item in enumerate(arguments)]


def _by_number() -> dict[int, Callable[[list[Any]], list[Any]]]:
    """What turns a task's arguments in JSON into those that are meant, by the number of the task."""
    forms: dict[Callable[[list[Any]], list[Any]], tuple[int, ...]] = {
        # Each argument is a tuple.
        lambda given: [tuple(argument) for argument in given]: (
            2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809,
        ),
        # Each argument is a list of tuples.
        _tuple_items: (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780),
        # The first argument is a list of tuples.
        lambda given: [[tuple(item) for item in given[0]], given[1]]: (75, 413, 444, 753),
        _first_or_second(1): (106, 750),
        _first_or_second(0): (250, 307, 405, 446, 617, 720, 763, 808),
        # A list of sets, or of empty dictionaries.
        lambda given: [[set(item) if isinstance(item, list) and item else {} for item in given[0]]]: (115,),
        lambda given: [float(given[0]), complex(given[1])]: (124,),
        lambda given: [complex(given[0])]: (252,),
        # Each argument is a tuple of tuples.
        lambda given: [tuple(argument) for argument in _tuple_items(given)]: (259, 401, 445),
        lambda given: [tuple(tuple(item) if isinstance(item, list) else item for item in given[0])]: (278,),
        # Tuples all the way down.
        lambda given: [_tuples(argument) for argument in given]: (580, 615, 791),
        # A dictionary of tuples comes first.
        lambda given: [{key: tuple(value) for key, value in given[0].items()}, *given[1:]]: (722,),
    }  # fmt: skip
    return {number: form for form, numbers in forms.items() for number in numbers}


_ARGUMENTS_OF = _by_number()
