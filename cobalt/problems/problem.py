"""Problems and their tests, in the schema of the TACO-Cobalt data set.

A file has one problem in each row (JSONL, or another form of `stage.rows`). The authors' released files load as they
are; so do files without `instruction` or the public/hidden split. A null field counts as missing. Unknown fields
are kept in `Problem.record`, because result files carry a problem's fields through every stage.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, StrictBool

from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import checked
from cobalt.stage.rows import decode_json, parse_json, read_rows

ProblemId = str | int

Comparison = Literal["strip", "lines", "float"]
Prelude = Annotated[str, Field(max_length=1 << 16)]
Texts = Annotated[tuple[str, ...], FailFast()]

PERTURBED_TESTS = "perturbed_public_test_cases"
"""The field of the perturbed public tests, two of which cannot be passed (preproc/run_perturbation.py)."""


@dataclass(frozen=True, slots=True)
class TestSuite:
    """An ordered list of tests; the program gets `inputs[i]` and should answer `outputs[i]`.

    Attributes:
        inputs: Standard inputs. With `fn_name`, each holds the arguments of one call, one JSON value a line.
        outputs: Standard outputs. With `fn_name`, the expected values, written by
            `cobalt.judge.calling.canonical_json`.
        fn_name: The function, or method of a class `Solution`, that the judge calls; None for whole programs.
        asserts: Whether the tests are assertions (`cobalt.judge.asserting`). Each input is then a Python script that
            calls `fn_name`, and each output the Python code that checks what the calls returned.
        prelude: Python code of the data set's own grader that runs before each program, in its namespace. None: by the
            judge's setting.
        comparison: How the data set's own grader compares. None: by the judge's setting.
        top_level_return: Whether a program may return outside a function, as in graders that put it into one.
    """

    __test__ = False  # the name starts with "Test": pytest must not collect it

    inputs: Texts
    outputs: Texts
    fn_name: str | None = None
    asserts: StrictBool = False
    prelude: Prelude | None = None
    comparison: Comparison | None = None
    top_level_return: StrictBool = False

    def __post_init__(self) -> None:
        if self.fn_name is not None and not self.fn_name.isidentifier():
            raise UserError(f"a test suite calls {self.fn_name!r} ('fn_name'), which is not the name of a function")
        if self.asserts and self.fn_name is None:
            raise UserError("a test suite of assertions ('asserts') does not name the function they call ('fn_name')")
        if len(self.inputs) != len(self.outputs):
            raise UserError(f"a test suite has {len(self.inputs)} inputs but {len(self.outputs)} outputs")
        if self.fn_name is not None and not self.asserts:
            self._check_values()

    def _check_values(self) -> None:
        """Raise if a test of a function has an argument or a value that is not JSON, which no program could pass."""
        for index, (arguments, expected) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            for text in (*filter(str.strip, arguments.split("\n")), expected):
                try:
                    parse_json(text)
                except ValueError as error:
                    raise UserError(
                        f"test {index} of the function {self.fn_name!r} has {text!r:.100}, which is not JSON"
                        f" ({error!s:.100}): give one JSON value a line for each argument, and one as the output"
                    ) from None

    def __len__(self) -> int:
        return len(self.inputs)

    def to_record(self) -> dict[str, Any]:
        """The suite as a mapping in the judge's wire format, without the fields that are not set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return {name: value for name, value in values.items() if value not in (None, False)}

    def to_json(self) -> str:
        """The suite as the JSON string that problem files hold."""
        return json.dumps(self.to_record(), ensure_ascii=False)

    @classmethod
    def parse(cls, value: object) -> "TestSuite":
        """Read a suite from a mapping with the fields of this class, or from its JSON string; other keys are ignored.

        Raises:
            UserError: the value has another shape.
        """
        if isinstance(value, str):
            try:
                value = decode_json(value, most_values=None)
            except UserError as error:
                raise UserError(f"tests are {error}") from None
        if not isinstance(value, Mapping):
            raise UserError('tests must be a mapping {"inputs": [...], "outputs": [...]}')
        return checked(cls, {name: content for name, content in value.items() if content is not None})

    def positions_of(self, tests: "TestSuite") -> list[int]:
        """The indices of another suite's tests in this one; of equal tests, the first.

        Raises:
            UserError: this suite lacks one of them, or they are called in another way.
        """
        if (tests.fn_name, tests.asserts) != (self.fn_name, self.asserts):
            raise UserError(f"tests that call {tests.fn_name!r} are not among tests that call {self.fn_name!r}")
        pairs = list(zip(self.inputs, self.outputs, strict=True))
        try:
            return [pairs.index(pair) for pair in zip(tests.inputs, tests.outputs, strict=True)]
        except ValueError:
            raise UserError("a test is not among all tests of the problem") from None

    def select(self, indices: Iterable[int]) -> "TestSuite":
        """A suite of the tests at these indices, in this order, called in the same way."""
        chosen = list(indices)
        inputs, outputs = (tuple(texts[index] for index in chosen) for texts in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)


@dataclass(frozen=True, slots=True)
class Problem:
    """One programming problem.

    Attributes:
        id: Unique in its file; 0 and "" are valid ids.
        question: The problem statement as in its source.
        instruction: The first user message, ready to send; None if the file has none.
        tests: All tests.
        public_tests: The tests whose failures are shown to the model; may be empty.
        hidden_tests: The tests that decide `Pass@1`.
        record: Every field of the line, as read.
    """

    id: ProblemId
    question: str
    instruction: str | None
    tests: TestSuite
    public_tests: TestSuite
    hidden_tests: TestSuite
    record: Mapping[str, Any]

    @classmethod
    def parse(cls, record: object) -> "Problem":
        """Check one decoded line and read it; raises UserError, which names the field."""
        if not isinstance(record, Mapping):
            raise UserError("a problem must be a JSON object")
        identifier = record.get("id")
        if not isinstance(identifier, str | int) or isinstance(identifier, bool):
            raise UserError("field 'id' is missing, null, or neither a string nor an integer")
        instruction = record.get("instruction")
        if instruction is not None and not isinstance(instruction, str):
            raise UserError("field 'instruction' is not a string")
        question = instruction if record.get("question") is None else record["question"]
        if not isinstance(question, str):
            raise UserError("field 'question' is missing, null or not a string")
        tests, hidden = suite_of(record, "test_cases"), suite_of(record, "hidden_test_cases")
        if tests is None:
            raise UserError("field 'test_cases' is missing or null")
        for field, suite in (("test_cases", tests), ("hidden_test_cases", hidden)):
            if suite is not None and len(suite) == 0:
                raise UserError(f"field {field!r}: the test suite is empty")
        public = suite_of(record, "public_test_cases")
        public = TestSuite((), ()) if public is None else public
        return cls(identifier, question, instruction, tests, public, tests if hidden is None else hidden, record)

    def perturbed_tests(self) -> TestSuite | None:
        """The perturbed public tests in the record; None if it has none. Raises as `suite_of`."""
        return suite_of(self.record, PERTURBED_TESTS)


def has_tests(record: Mapping[str, Any], field: str) -> bool:
    """Whether a field of tests has a value. A table has null, its JSON, or an object of nulls for none."""
    value = record.get(field)
    return value not in (None, "null") and not (
        isinstance(value, Mapping) and all(part is None for part in value.values())
    )


def suite_of(record: Mapping[str, Any], field: str) -> TestSuite | None:
    """The suite in a field; None if the record has none. Raises UserError, which names the field."""
    if not has_tests(record, field):
        return None
    with naming(f"field {field!r}"):
        return TestSuite.parse(record[field])


def load_problems(path: Path) -> list[Problem]:
    """Read a whole problem file.

    Raises:
        UserError: the file cannot be read or holds no problem, a line is malformed, or an id is used twice.
    """
    problems: dict[ProblemId, Problem] = {}
    for line, record in read_rows(path):
        with naming(f"{path}, {line}"):
            problem = Problem.parse(record)
        if problem.id in problems:
            raise UserError(f"{path}, {line}: id {problem.id!r} is already used")
        problems[problem.id] = problem
    if not problems:
        raise UserError(f"{path}: the file holds no problem")
    return list(problems.values())


def choose_problems(
    problems: Sequence[Problem], source: Path, limit: int | None = None, ids: Sequence[str] = ()
) -> list[Problem]:
    """Of all problems of a file the first `limit` of those with `ids` (as text; empty: all), in the file's order.

    Raises:
        UserError: the limit is below 1, or the file has no problem with one of the ids; the id is named.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit is {limit}: it must be 1 or more")
    unknown = set(ids) - {str(problem.id) for problem in problems}
    if unknown:
        raise UserError(f"--ids {min(unknown)}: {source} has no problem with this id")
    return [problem for problem in problems if not ids or str(problem.id) in ids][:limit]
