"""Structured fuzzing of extraction, record files, comparison, and both HTTP routes of the judge.

    python tests/long/fuzz.py extraction --minutes 10      # or records, comparison, routes

Each target has several properties. Hypothesis looks for counterexamples of one property after another, in rounds with a
seed of their own, until the time is up. Where an obvious slow definition exists, results are compared with it; it is
written from the documentation and not from the code. A failing example is made small and kept as a text file, and the
exit code is then 1. For each property the number of examples and their kinds are printed, which shows a property whose
examples are not interesting.
"""

import contextlib
import functools
import http.client
import io
import json
import random
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import hypothesis
import tyro
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from tqdm import tqdm
from watched import adopt_orphans, check_flags, held_services

from cobalt.episode import program_of
from cobalt.episode.program import extract_code
from cobalt.episode.thinking import split_thinking
from cobalt.judge.calling import canonical_json
from cobalt.judge.comparison import outputs_match, values_match
from cobalt.judge.settings import JudgeSettings
from cobalt.problems.problem import Problem, TestSuite, load_problems
from cobalt.reward.format import format_reward
from cobalt.stage.atomic import replacing
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.records import RecordFile, encode_record, read_records

LONGEST_SECONDS = 2.0
"""Most CPU seconds that one example of a pure function may take; examples have about 50,000 characters at most."""


@dataclass(frozen=True)
class Arguments:
    """Fuzz one part of the project for some minutes."""

    target: Annotated[Literal["extraction", "records", "comparison", "routes"], tyro.conf.Positional]
    """The part to fuzz."""
    minutes: float = 10
    """Minutes to fuzz; the last round is finished."""
    seed: int = 0
    """Seed of the first round; the same seed and number of examples draw the same examples."""
    examples: int = 300
    """Number of examples of a property in one round."""
    output_dir: Path = Path("runs/fuzz")
    """Folder for failing examples."""


@dataclass
class Property:
    """A statement that must hold for every example of a strategy; `kinds` counts the kinds of examples."""

    name: str
    check: Callable[[Any, Counter[str]], None]
    strategy: st.SearchStrategy[Any]
    examples: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: int = 0


def main(arguments: Arguments) -> int:
    """Fuzz, print what was seen, and return the exit code."""
    check_flags(arguments.output_dir, minutes=arguments.minutes, examples=arguments.examples)
    sys.set_int_max_str_digits(50_000)  # those of `cobalt.stage.rows`
    targets: dict[str, Callable[[], contextlib.AbstractContextManager[list[Property]]]] = {
        "extraction": lambda: contextlib.nullcontext(extraction_properties()),
        "records": record_properties,
        "comparison": lambda: contextlib.nullcontext(comparison_properties()),
        "routes": lambda: route_properties(arguments.output_dir / "services.log"),
    }
    with targets[arguments.target]() as properties:
        fuzz(properties, arguments)
    print(f"{arguments.target}, seed {arguments.seed}, {arguments.minutes:g} min:")
    for item in properties:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(item.kinds.items()))
        print(f"  {item.name}: {item.examples} examples, {item.failures} failures ({kinds})")
    return 1 if any(item.failures for item in properties) else 0


def fuzz(properties: list[Property], arguments: Arguments) -> None:
    """Run the properties in rounds until the time is up; a property that has failed has no further round."""
    deadline = time.monotonic() + 60 * arguments.minutes
    round_number = 0
    with tqdm(desc=arguments.target, unit="example") as progress:
        while time.monotonic() < deadline and not all(item.failures for item in properties):
            for item in properties:
                if not item.failures:
                    before = item.examples
                    _one_round(item, arguments, arguments.seed + round_number)
                    progress.update(item.examples - before)
            round_number += 1


def _one_round(item: Property, arguments: Arguments, seed: int) -> None:
    latest: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=arguments.examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(item.strategy)
    def check(example: Any) -> None:
        latest[:] = [example]
        item.examples += 1
        item.check(example, item.kinds)

    try:
        check()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - any exception is a counterexample
        item.failures += 1  # the last example that Hypothesis ran is the smallest that it found
        path = arguments.output_dir / f"{arguments.target}-{item.name.replace(' ', '-')}-{seed}.txt"
        path.write_text(f"{latest[0]!r}\n\n{traceback.format_exc()}", encoding="utf-8", errors="backslashreplace")
        print(f"\nFAILED: {item.name}; see {path}", flush=True)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Fail if the block takes more CPU time than any example may."""
    before = time.process_time()
    yield
    spent = time.process_time() - before
    assert spent < LONGEST_SECONDS, f"took {spent:.1f} s of CPU time"


# --- extraction ---------------------------------------------------------------------------------------------------

_BLANKS = ["", "", " ", "  ", "\t", "    ", "\u00a0", "\x0c"]
_FENCES = ["```", "```", "````", "~~~", "~~~~", "``", "`", "~~", "``````", "~~~```", "```~~~"]
_INFOS = ["", "", "python", "python3", 'c++ title="x"', " py ", "{.python}", "a`b", "a~b", "é", "py\t", "Explanation"]
_TEXTS = [
    "print(1)",
    "x = '```'",
    "Here it is:",
    "",
    "    y = 1",
    "# ~~~",
    "if x:\r",
    "a`b",
    "<think>",
    "</think>",
    "\u2028",
    '"""',
    "'''",
]


def _line() -> st.SearchStrategy[str]:
    piece = st.one_of(
        st.sampled_from(_FENCES), st.sampled_from(_INFOS), st.sampled_from(_TEXTS), st.sampled_from(_BLANKS)
    )
    fence = st.tuples(*map(st.sampled_from, (_BLANKS, _FENCES, _INFOS, _BLANKS))).map("".join)
    return st.one_of(fence, st.lists(piece, max_size=4).map("".join), st.text(max_size=12))


def _answers() -> st.SearchStrategy[str]:
    lines = st.lists(_line(), max_size=14)
    mixed = st.tuples(lines, st.sampled_from(["\n", "\n", "\r\n", "\r"])).map(lambda pair: pair[1].join(pair[0]))
    repeated = st.tuples(_line(), st.sampled_from(["", "\n", " ", "`"]), st.integers(1, 4000)).map(
        lambda parts: ((parts[0] + parts[1]) * parts[2])[:50_000]
    )
    return st.one_of(mixed, mixed, mixed, st.tuples(mixed, repeated, mixed).map("\n".join))


def _responses() -> st.SearchStrategy[str]:
    """Responses of the required form, with anything in between."""
    return st.tuples(_answers(), _prose(), _answers(), st.sampled_from(["", "", "3", " x"])).map(
        lambda parts: f"thought</think>\n{parts[0]}\n```python{parts[3]}\n{parts[1]}\n```{parts[2]}"
    )


def _prose() -> st.SearchStrategy[str]:
    """Text without a fence, most of the time."""
    pieces = [
        text for text in _BLANKS + _INFOS + _TEXTS if "```" not in text and "~~~" not in text and "\r" not in text
    ]
    line = st.one_of(st.lists(st.sampled_from(pieces), max_size=4).map("".join), st.text(max_size=12))
    return st.lists(line, max_size=8).map("\n".join)


@dataclass
class _Fence:
    """An opening fence; `prose`: whether text stands before it."""

    indent: str
    fence: str
    prose: bool


def slow_extraction(answer: str) -> str | None:
    """The last fenced block, character by character, as the head of `cobalt.episode.program` describes it."""
    lines = answer.replace("\r\n", "\n").split("\n")
    programs: list[str] = []
    closed = True
    index = 0
    while index < len(lines):
        opened = _slow_opening(lines[index])
        index += 1
        while opened is not None:
            program, index, closed, opened = _slow_block(lines, index, opened)
            programs.append(program)
    if len(programs) > 1 and not closed and not programs[-1]:
        del programs[-1]  # it was not begun
    return programs[-1] if programs else None


def _slow_block(lines: list[str], first: int, opened: _Fence) -> tuple[str, int, bool, _Fence | None]:
    """A block's program, the index of the line after it, whether it is closed, and the fence that restarts it."""
    inside: list[str] = []
    quote = ""
    deep: int | None = None
    index = beyond = first
    while index < len(lines):
        ends = _slow_end(lines[index], opened) if index >= beyond else None
        if ends is not None and quote:  # the fence is in a string: whose end comes before a fence outside strings?
            later, open_quote = index, quote
            while later < len(lines) and (open_quote or _slow_end(lines[later], opened) is None):
                open_quote = _slow_quote(lines[later], open_quote)
                later += 1
            if not open_quote:
                beyond, ends = later, None
        if ends is not None:
            before, restart = ends
            program = _slow_program([*inside, before], opened)
            return program, index + 1, True, restart
        bare = not lines[index].strip(" \t`~") and _slow_end(lines[index].lstrip(" \t"), opened) is not None
        if bare and not quote and deep is None:
            deep = len(inside)
        inside.append(lines[index])
        quote = _slow_quote(lines[index], quote)
        index += 1
    return _slow_program(inside[:deep], opened), len(lines), deep is not None, None


def _slow_program(inside: list[str], opened: _Fence) -> str:
    """The lines of a block without its indentation and without blanks at the end."""
    indent = opened.indent
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in inside).rstrip()


def _slow_end(line: str, opened: _Fence) -> tuple[str, _Fence | None] | None:
    """The code before the fence that ends the block at a line, and the fence that restarts it; None: no such fence."""
    start = 0
    while start < len(line) and line[start] in " \t":
        start += 1
    columns = [len(indent.expandtabs(4)) for indent in (line[:start], opened.indent)]
    begins = line[start : start + 3] in ("```", "~~~")
    if begins and not opened.prose and columns[0] >= columns[1] + 4:
        return None
    mark, length = opened.fence[0], len(opened.fence)
    stop = start
    while stop < len(line) and line[stop] == "`":
        stop += 1
    if mark == "`" and stop - start >= length:
        again = _Fence(line[:start], line[start:stop], prose=False) if line[stop : stop + 6] == "python" else None
        return "", again
    end = len(line)
    while end and line[end - 1] in " \t":
        end -= 1
    begin = end
    while begin and line[begin - 1] == mark:
        begin -= 1
    if end - begin >= length and (mark == "`" or not line[:begin].strip()):
        return line[:begin], None
    return None


def _slow_quote(line: str, quote: str) -> str:
    """The quotes of the string over several lines that is open after a line of Python, by those open before it."""
    index = 0
    while index < len(line):
        if line[index] == "\\":
            index += 2
        elif quote:
            ends = line.startswith(quote, index)
            index, quote = (index + 3, "") if ends else (index + 1, quote)
        elif line[index] == "#":
            break
        elif line[index : index + 3] in ('"""', "'''"):
            quote = line[index : index + 3]
            index += 3
        elif line[index] in "\"'":
            end = index + 1
            while end < len(line) and line[end] != line[index]:
                end += 2 if line[end] == "\\" else 1
            index = end + 1 if end < len(line) else index + 1  # without an end it opens nothing
        else:
            index += 1
    return quote


def _slow_opening(line: str) -> _Fence | None:
    """The fence of a line that opens a block; None for other lines."""
    start = 0
    while start < len(line) and line[start] in " \t":
        start += 1
    for mark in "`~":
        stop = start
        while stop < len(line) and line[stop] == mark:
            stop += 1
        if stop - start >= 3 and (mark == "~" or "`" not in line[stop:]):
            return _Fence(line[:start], line[start:stop], prose=False)
    first = line.find("`")
    if first < 0:
        return None
    stop = first
    while stop < len(line) and line[stop] == "`":
        stop += 1
    rest = line[stop:].rstrip(" \t")
    if stop - first >= 3 and all(character.isalnum() or character == "_" for character in rest):
        return _Fence("", line[first:stop], prose=True)
    return None


def extraction_properties() -> list[Property]:
    """Properties of extraction, for any answer."""

    def agrees(answer: str, kinds: Counter[str]) -> None:
        with quick():
            code = extract_code(answer)
        kinds["no block" if code is None else "empty" if not code else "a program"] += 1
        assert code == slow_extraction(answer)

    def idempotent(answer: str, kinds: Counter[str]) -> None:
        code = extract_code(answer)
        kinds["no block" if code is None else "a program"] += 1
        if code is not None:
            fence = "`" * (1 + max([2, *map(len, re.findall("`+", code))]))
            assert extract_code(f"Text.\n{fence}python\n{code}\n{fence}\nMore text.") == code.replace("\r\n", "\n")

    def wrapped(parts: tuple[str, str, str], kinds: Counter[str]) -> None:
        before, code, after = parts
        inside = re.search("`{3}", code) or re.search("`{3}|~{3}", before + after) or "\r" in code
        inside = inside or functools.reduce(lambda quote, line: _slow_quote(line, quote), code.split("\n"), "")
        kinds["left out" if inside else "wrapped"] += 1
        if not inside:
            for fence in ("```", "~~~"):
                if fence not in code:
                    text = f"{before}\n{fence}python\n{code}\n{fence}\n{after}"
                    assert extract_code(text) == code.rstrip()
                    assert extract_code(text.replace("\n", "\r\n")) == code.rstrip()
                    assert extract_code(f"{before}\n{fence}python\n{code}") == code.rstrip(), "never closed"

    def thinking(parts: tuple[str, str], kinds: Counter[str]) -> None:
        thought, answer = parts
        with quick():
            program = program_of(f"<think>{thought}</think>{answer}")
            split_thinking(thought + answer)
        # A tag between quotes, in a string or in a comment is only mentioned, and a program may stand between two tags.
        fences = re.search("`{3}|~{3}", thought)
        mentioned = "</think>" in answer or (fences and ("</think>" in thought or re.search("['\"]{3}", thought)))
        mentioned = mentioned or re.search("['\"`#]", thought.rpartition("\n")[2])
        kinds["mentioned" if mentioned else "plain"] += 1
        if not mentioned:
            assert program == extract_code(answer.strip()), "the thinking decides the program"
        if "</think>" not in thought:
            assert program_of(f"<think>{thought}") is None, "cut off while thinking"

    def form(response: str, kinds: Counter[str]) -> None:
        with quick():
            flaw = format_reward(response, 1.0, len).flaw
        kinds[str(flaw)] += 1
        if flaw is None:
            block = response.split("</think>")[1].split("```python")[1].split("\n```")[0]
            program = program_of(response)
            assert program is not None
            assert program.strip() == block.replace("\r\n", "\n").partition("\n")[2].strip()

    return [
        Property("agrees with the slow reference", agrees, _answers()),
        Property("one program where the form has no flaw", form, _responses()),
        Property("idempotent", idempotent, _answers()),
        Property("a wrapped program comes back", wrapped, st.tuples(_prose(), _prose(), _prose())),
        Property("thinking never counts", thinking, st.tuples(_answers(), _answers())),
    ]


# --- records ------------------------------------------------------------------------------------------------------


def _json_values() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.just("\u2028")
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    )


def _records() -> st.SearchStrategy[list[dict[str, Any]]]:
    identifier = st.one_of(st.integers(-3, 12), st.sampled_from(["", "0", "a", "é", "x y"]))
    record = st.tuples(identifier, st.dictionaries(st.text(max_size=4), _json_values(), max_size=3)).map(
        lambda pair: pair[1] | {"id": pair[0]}
    )
    return st.lists(record, max_size=6)


_GARBAGE = [
    b"\n", b"\r", b"\0", b"{", b"}", b'"', b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'\\ud800', b"null\n",
    b"[1]\n", b"NaN",
    b'{"id": 1}\n', b'{"id": true}\n', b'{"id": 1.0}\n', b'{"id": null}\n', b'{"id": "a", "id": 2}\n', b" \t\n",
    b"1" * 5000,
    b"[" * 3000, b'{"i\0d": 1}\n', '{"id": 3}\n'.encode("utf-16"), '{"id": 4}\n'.encode("utf-32"), b"\x1e",
    "\u2028".encode(),
]  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """A change of a file's bytes at a position, which is a share of its length: cut, insert, replace or delete."""

    kind: Literal["cut", "insert", "replace", "delete"]
    share: float
    data: bytes

    def apply(self, content: bytes) -> bytes:
        """The content, changed."""
        at = int(self.share * len(content))
        if self.kind == "cut":
            return content[:at]
        if self.kind == "insert":
            return content[:at] + self.data + content[at:]
        width = len(self.data)
        return content[:at] + (self.data if self.kind == "replace" else b"") + content[at + width :]


def _files() -> st.SearchStrategy[tuple[list[dict[str, Any]], bytes]]:
    """Records, and the content of their file after some edits."""
    edit = st.builds(
        Edit,
        st.sampled_from(["cut", "insert", "replace", "delete"]),
        st.floats(0, 1),
        st.one_of(st.sampled_from(_GARBAGE), st.binary(min_size=1, max_size=6)),
    )

    def garble(drawn: tuple[list[dict[str, Any]], list[Edit], str]) -> tuple[list[dict[str, Any]], bytes]:
        records, edits, form = drawn
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        whole = "".join(f"{line}\n" for line in lines) if form == "lines" else f"[{', '.join(lines)}]{form}"
        content = whole.encode()
        for change in edits:
            content = change.apply(content)
        return records, content

    forms = st.sampled_from(["lines", "lines", "lines", "", "\n"])  # the last two are arrays, and what ends them
    return st.tuples(_records(), st.lists(edit, max_size=3), forms).map(garble)


def slow_reading(content: bytes) -> tuple[list[dict[str, Any]], int | None]:
    """The records before the first bad line of a file, and that line's number, as the documentation defines them."""
    records: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = _slow_value(line)
        except (ValueError, RecursionError):
            return records, number
        if not _is_new(record, records):
            return records, number
        records.append(record)
    return records, None


def slow_items(content: bytes) -> list[dict[str, Any]] | None:
    """The records of a file that is one array, or None if anything is wrong."""
    try:
        items = _slow_value(content)
    except (ValueError, RecursionError):
        return None
    return items if all(_is_new(item, items[:index]) for index, item in enumerate(items)) else None


def _slow_value(text: bytes) -> Any:
    value = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_fields)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object, in which NaN is null."""
    return {name: None if isinstance(value, float) and value != value else value for name, value in pairs}


def _is_new(record: Any, before: list[dict[str, Any]]) -> bool:
    """Whether a value is a record whose id is not in use."""
    identifier = record.get("id") if isinstance(record, dict) else None
    return isinstance(identifier, str | int) and identifier not in [other["id"] for other in before]


def _expect_reading(path: Path, content: bytes, unfinished: bool, kinds: Counter[str]) -> list[dict[str, Any]] | None:
    """Read a file and compare with `slow_reading`; returns the records, or None if the file is refused."""
    whole = content[: content.rfind(b"\n") + 1] if unfinished else content
    expected: list[dict[str, Any]] | None
    if content[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        kinds["array"] += 1
        expected = None if unfinished else slow_items(whole)
        bad, named = 1 if expected is None else None, str(path)
    else:
        expected, bad = slow_reading(whole)
        named = f"{path}, line {bad}:"
    try:
        with quick():
            records = read_records(path, unfinished=unfinished)
    except UserError as error:
        kinds["refused"] += 1
        assert bad is not None, f"a good file is refused: {error}"
        assert named in str(error), f"the first bad line is {bad}: {error}"
        return None
    kinds["read"] += 1
    assert bad is None, f"line {bad} is bad, and the file was read"
    assert json.dumps(records) == json.dumps(expected)
    return records


@contextlib.contextmanager
def record_properties() -> Iterator[list[Property]]:
    """Properties of record files, for any file, in a folder in memory."""
    folder = Path(tempfile.mkdtemp(prefix="cobalt-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    path = folder / "r.jsonl"

    def read(example: tuple[list[dict[str, Any]], bytes], kinds: Counter[str]) -> None:
        path.write_bytes(example[1])
        _expect_reading(path, example[1], False, kinds)
        assert path.read_bytes() == example[1], "reading changed the file"

    def resume(example: tuple[list[dict[str, Any]], bytes], kinds: Counter[str]) -> None:
        path.write_bytes(example[1])
        records = _expect_reading(path, example[1], True, kinds)
        try:
            output = RecordFile(path)
        except UserError as error:
            assert records is None, f"what can be read is refused: {error}"
            assert path.read_bytes() == example[1], "a refused file was changed"
            return
        assert records is not None, "what cannot be read was opened"
        with output:
            assert output.done == {record["id"] for record in records}
            output.append({"id": "new", "text": "é\n"})
        whole = example[1][: example[1].rfind(b"\n") + 1]
        assert path.read_bytes().startswith(whole), "finished records were changed"
        after = read_records(path)
        assert json.dumps(after) == json.dumps([*records, {"id": "new", "text": "é\n"}])

    def round_trip(records: list[dict[str, Any]], kinds: Counter[str]) -> None:
        path.unlink(missing_ok=True)
        unique = {record["id"]: record for record in records}
        kinds["repeated ids" if len(unique) < len(records) else "unique ids"] += 1
        with RecordFile(path) as output:
            for record in unique.values():
                output.append(record)
        assert path.exists() == bool(unique)
        if unique:
            assert json.dumps(read_records(path)) == json.dumps(list(unique.values()))
            order = sorted(unique, key=str)
            RecordFile(path).sort(order)
            content = path.read_bytes()
            assert [record["id"] for record in read_records(path)] == order
            RecordFile(path).sort(order)
            assert path.read_bytes() == content
        with replacing(path) as handle:
            handle.writelines(map(encode_record, unique.values()))
        assert json.dumps(read_records(path)) == json.dumps(list(unique.values()))
        assert [entry.name for entry in folder.iterdir()] == [path.name]

    def problems(example: tuple[list[dict[str, Any]], bytes], kinds: Counter[str]) -> None:
        path.write_bytes(example[1])
        try:
            with quick():
                loaded = load_problems(path)
        except UserError as error:
            kinds["refused"] += 1
            assert str(path) in str(error)
            return
        kinds["read"] += 1
        assert loaded
        assert all(len(problem.tests) and len(problem.hidden_tests) for problem in loaded)
        for problem in loaded:
            assert TestSuite.parse(problem.tests.to_json()) == problem.tests
            assert Problem.parse(dict(problem.record)) == problem

    try:
        yield [
            Property("a garbled file is read or refused by line", read, _files()),
            Property("a garbled result is resumed or refused", resume, _files()),
            Property("written records come back", round_trip, _records()),
            Property("a garbled problem file is read or refused", problems, _problem_files()),
        ]
    finally:
        shutil.rmtree(folder)


def _problem_files() -> st.SearchStrategy[tuple[list[dict[str, Any]], bytes]]:
    """Problem files: valid ones, ones with a field of a wrong type, and ones that are cut off."""
    texts = st.lists(st.text(max_size=5), min_size=1, max_size=3)
    suite = st.one_of(
        texts.map(lambda items: {"inputs": items, "outputs": items[::-1]}),
        texts.map(lambda items: json.dumps({"inputs": items, "outputs": items})),
        texts.map(lambda items: {"inputs": items, "outputs": items, "fn_name": "f"}),
    )
    odd = st.one_of(_json_values(), st.just({"inputs": [1], "outputs": ["1"]}), st.just('{"inputs": ['))
    problem = st.fixed_dictionaries(
        {"id": st.integers(0, 50), "question": st.text(max_size=5), "test_cases": suite},
        optional={"instruction": st.text(max_size=5), "public_test_cases": suite, "hidden_test_cases": suite},
    )
    changed = st.tuples(problem, st.sampled_from(["id", "question", "test_cases", "public_test_cases"]), odd).map(
        lambda parts: parts[0] | {parts[1]: parts[2]}
    )
    records = st.lists(st.one_of(problem, problem, problem, changed), min_size=1, max_size=4)
    cut = st.one_of(st.just(1.0), st.just(1.0), st.floats(0, 1))

    def written(pair: tuple[list[dict[str, Any]], float]) -> tuple[list[dict[str, Any]], bytes]:
        content = "".join(json.dumps(record) + "\n" for record in pair[0]).encode()
        return pair[0], content[: int(pair[1] * len(content))]

    return st.tuples(records, cut).map(written)


# --- comparison ---------------------------------------------------------------------------------------------------

_MODES: dict[str, JudgeSettings] = {
    mode: JudgeSettings(comparison=mode, float_absolute=1e-6, float_relative=1e-6)  # type: ignore[arg-type]
    for mode in ("strip", "lines", "float")
}
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_WILD = [
    "nan", "NaN", "sNaN", "inf", "-Infinity", "1_000", "٣", "１", "0x10", "1e999999999", "1e-999999999", "--1", "1.",
    ".", "e5",
    "-0", "+0", "1" * 5000, "\u00a0", "\x1c", "\0", "True", "None", "1j", "١٫٥",
]  # fmt: skip


def _plain_tokens() -> st.SearchStrategy[str]:
    number = st.one_of(
        st.integers(-1000, 1000).map(str),
        st.integers(-(10**30), 10**30).map(str),
        st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
        st.sampled_from(
            ["1.0", "1", "1.00", "+1", "1e0", "0.1e1", "0", "-0.0", "1.0000009", "1.0000011", "1e300", "1e-300"]
        ),
    )
    return st.one_of(number, number, st.sampled_from(["YES", "NO", "abc", "x1", "-", "é"]))


def _outputs(token: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    line = st.lists(st.tuples(token, st.sampled_from([" ", "  ", "\t"])).map("".join), max_size=4).map("".join)
    return st.tuples(st.lists(line, max_size=4), _line_ends()).map(lambda pair: pair[1].join(pair[0]))


def _line_ends() -> st.SearchStrategy[str]:
    return st.sampled_from(["\n", "\n", "\r\n", "\r"])


def _pairs(token: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, str]]:
    """An output and an expected output that are often nearly the same."""
    text = _outputs(token)
    spaced = st.tuples(text, st.sampled_from(["", "\n", " ", "\r\n", "\t"])).map(
        lambda pair: (pair[0] + pair[1], pair[0])
    )
    swapped = st.tuples(text, token, token).map(lambda parts: (parts[0].replace(parts[1], parts[2], 1), parts[0]))
    single = st.tuples(token, token)
    near = st.tuples(text, text).map(
        lambda pair: (pair[0] + "\n" + pair[1], pair[0] + "\n" + pair[1].replace(" ", "  "))
    )
    ended = st.tuples(text, _line_ends()).map(lambda pair: (pair[0].replace("\n", pair[1]), pair[0]))
    return st.one_of(st.tuples(text, text), spaced, swapped, single, near, ended)


def slow_comparison(output: str, expected: str, settings: JudgeSettings) -> bool:
    """Compare as the documentation defines it, with numbers as exact fractions; for plain numbers and words only."""
    output, expected = (io.StringIO(text, newline=None).read().strip() for text in (output, expected))  # text mode
    if settings.comparison == "strip":
        return output == expected
    left, right = output.split("\n"), expected.split("\n")
    if len(left) != len(right):
        return False
    for mine, theirs in zip(left, right, strict=True):
        if len(mine.split()) != len(theirs.split()):
            return False
        for one, other in zip(mine.split(), theirs.split(), strict=True):
            if one == other:
                continue
            if not _NUMBER.fullmatch(one) or not _NUMBER.fullmatch(other):
                return False
            difference = abs(Fraction(one) - Fraction(other))
            allowed = Fraction(0)
            if settings.comparison == "float":
                allowed = max(
                    Fraction(settings.float_absolute), Fraction(settings.float_relative) * abs(Fraction(other))
                )
            if difference > allowed:
                return False
    return True


def _near_the_edge(output: str, expected: str) -> bool:
    """Whether two numbers are so near the tolerance that rounding decides, or too large for a float."""
    for one, other in zip(output.split(), expected.split(), strict=False):
        if _NUMBER.fullmatch(one) and _NUMBER.fullmatch(other):
            difference, size = abs(Fraction(one) - Fraction(other)), abs(Fraction(other))
            allowed = max(Fraction(1, 10**6), Fraction(1, 10**6) * size)
            if abs(difference - allowed) <= allowed * Fraction(1, 10**8) or max(size, abs(Fraction(one))) > 10**300:
                return True
    return False


def _value_pairs() -> st.SearchStrategy[tuple[Any, Any, int | None]]:
    """Two JSON values that are often nearly the same, and the indentation with which the first one is written."""
    value = _json_values()

    def changed(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return pair[0], json.loads(json.dumps(pair[0]).replace("0", "1", 1).replace("true", "1", 1))

    nested = st.tuples(value, value).map(lambda pair: ([pair[0], {"k": pair[1]}], [pair[0], {"k": pair[0]}]))
    pairs = st.one_of(st.tuples(value, value), st.tuples(value, value).map(changed), nested)
    return st.tuples(pairs, st.sampled_from([None, 0, 2])).map(lambda parts: (*parts[0], parts[1]))


def _json_texts() -> st.SearchStrategy[str]:
    odd = ["", "{", "NaN", "-Infinity", "[NaN]", "1e400", "1" * 6000, "[" * 3000, '{"a":1,"a":2}', "\ufeff1", "1 2"]
    return st.one_of(_json_values().map(json.dumps), st.sampled_from(odd))


def comparison_properties() -> list[Property]:
    """Properties of comparison."""

    def match(output: str, expected: str, mode: str) -> bool:
        with quick():
            return outputs_match(output.encode("utf-8", "surrogateescape"), expected, _MODES[mode])

    def reference(pair: tuple[str, str], kinds: Counter[str]) -> None:
        output, expected = pair
        for mode, settings in _MODES.items():
            if mode == "float" and _near_the_edge(output, expected):
                kinds["at the tolerance, left out"] += 1
                continue
            matched = match(output, expected, mode)
            kinds[f"{mode}: {'same' if matched else 'different'}"] += 1
            assert matched == slow_comparison(output, expected, settings), mode

    def laws(pair: tuple[str, str], kinds: Counter[str]) -> None:
        output, expected = pair
        results = {mode: match(output, expected, mode) for mode in _MODES}
        kinds["same" if results["float"] else "different"] += 1
        assert results["lines"] or not results["strip"], "what `strip` accepts, `lines` accepts"
        assert results["float"] or not results["lines"], "what `lines` accepts, `float` accepts"
        for mode in _MODES:
            assert match(output, output, mode), f"{mode} is reflexive"
            assert match(f"\n {output}\n\n", expected, mode) == results[mode], f"{mode} ignores what surrounds"
        for mode in ("strip", "lines"):
            assert match(expected, output, mode) == results[mode], f"{mode} is symmetric"
        wide = _MODES["float"].model_copy(update={"float_absolute": 1e-3, "float_relative": 1e-3})
        if results["float"]:
            assert outputs_match(output.encode("utf-8", "surrogateescape"), expected, wide), "a wider tolerance accepts"

    def anything(pair: tuple[bytes, str], kinds: Counter[str]) -> None:
        for mode, settings in _MODES.items():
            with quick():
                kinds[f"{mode}: {outputs_match(*pair, settings)}"] += 1
        exact = pair[1].encode("utf-8", "surrogateescape")
        assert all(outputs_match(exact, pair[1], settings) for settings in _MODES.values())

    def canonical(value: Any, kinds: Counter[str]) -> None:
        try:
            text = canonical_json(value)
        except (TypeError, ValueError) as error:
            kinds[type(error).__name__] += 1
            return
        kinds["text"] += 1
        again = json.loads(text)
        assert canonical_json(again) == text, "canonical text is its own canonical text"
        assert again == value, "the text means another value"

    def values(example: tuple[Any, Any, int | None], kinds: Counter[str]) -> None:
        mine, theirs, indent = example
        for mode, settings in _MODES.items():
            with quick():
                written = json.dumps(mine, indent=indent, ensure_ascii=indent is None).encode()
                assert values_match(written, json.dumps(mine), settings), (
                    "a value matches itself, however it is written"
                )
                matched = values_match(written, json.dumps(theirs), settings)
            kinds[f"{mode}: {'same' if matched else 'different'}"] += 1
            if mode != "float":
                assert matched == (mine == theirs), mode
            elif mine == theirs:
                assert matched, "what is equal is within the tolerances"

    def any_values(pair: tuple[bytes, str], kinds: Counter[str]) -> None:
        for mode, settings in _MODES.items():
            with quick():
                kinds[f"{mode}: {values_match(*pair, settings)}"] += 1

    tokens = st.one_of(_plain_tokens(), st.sampled_from(_WILD))
    carried = st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape"))
    return [
        Property("agrees with the slow reference", reference, _pairs(_plain_tokens())),
        Property("laws", laws, _pairs(tokens)),
        Property("any bytes", anything, st.tuples(st.binary(max_size=60), st.one_of(_outputs(tokens), carried))),
        Property("canonical values", canonical, _json_values()),
        Property("function values", values, _value_pairs()),
        Property("any function values", any_values, st.tuples(st.binary(max_size=40), _json_texts())),
    ]


# --- routes -------------------------------------------------------------------------------------------------------

_SECONDS = 120.0  # after this time an answer counts as missing; suites of sleeping programs take a while
_JUDGE_STATUSES = frozenset({200, 400, 401, 403, 404, 405, 408, 413, 422})
_PROGRAMS: dict[str, tuple[str, str]] = {
    # A program, and the verdict of each of its tests; a test's input is a number and its expected output the double.
    "passed": ("print(2 * int(input()))", "passed"),
    "wrong": ("print('no')", "wrong_answer"),
    "error": ("raise ValueError(input())", "runtime_error"),
    "syntax": ("print(", "compile_error"),
    "exit": ("import os; os._exit(3)", "runtime_error"),
    "output": ("while True: print('x' * 1000)", "output_limit"),
}
_MOST_BYTES, _MOST_TESTS = 1 << 20, 50
_ODD_VALUES = [None, True, 0, -1, 1.5, "", "x", [], [1], {}, {"a": 1}, 10**30, "\u2028", "é" * 300]


class Client:
    """A client of the services with a new HTTP/1.1 connection for each request, or a plain socket for other bytes."""

    def __init__(self, address: str, token: str | None) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self.host_and_port = (parts.hostname, parts.port or 80)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self, path: str, body: bytes, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and decoded body of the answer to one request; AssertionError if the connection breaks."""
        connection = http.client.HTTPConnection(*self.host_and_port, timeout=_SECONDS)
        try:
            connection.request(method, path, body, self._headers | (headers or {}))
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise AssertionError(f"no answer to {method} {path}: {error!r}") from error
        finally:
            connection.close()
        try:
            return answer.status, json.loads(content) if content else None
        except ValueError:
            return answer.status, content.decode(errors="replace")

    def send(self, data: bytes) -> bytes:
        """The answer to any bytes, HTTP or not; the server may close the connection, but must not hang."""
        with socket.create_connection(self.host_and_port, timeout=30) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while part := connection.recv(65536):
                    received += part
            except TimeoutError:
                raise AssertionError(f"no end of the answer to {data[:200]!r}") from None
            except OSError:
                pass  # the server closed the connection, because the bytes were not HTTP
            return received

    def controls(self) -> None:
        """Check that the judge answers right."""
        number = random.randrange(10**6)
        suite = {"inputs": [f"{number}\n", "1\n"], "outputs": [str(2 * number), "3"]}
        body = json.dumps({"code": "print(2 * int(input()))", "test_cases": suite}).encode()
        status, answer = self.ask("/evaluator", body)
        assert status == 200, answer
        assert [verdict["kind"] for verdict in answer["verdicts"]] == ["passed", "wrong_answer"], answer


def _judge_requests() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Valid requests, with the name of their program."""
    numbers = st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=5)

    def build(name: str, values: list[int], as_text: bool, stop: bool | None) -> tuple[str, dict[str, Any]]:
        suite: Any = {"inputs": [f"{value}\n" for value in values], "outputs": [str(2 * value) for value in values]}
        request = {"code": _PROGRAMS[name][0], "test_cases": json.dumps(suite) if as_text else suite}
        return name, request if stop is None else request | {"stop_at_first_failure": stop}

    return st.builds(
        build, st.sampled_from(sorted(_PROGRAMS)), numbers, st.booleans(), st.sampled_from([None, True, False])
    )


def _broken_judge_requests() -> st.SearchStrategy[dict[str, Any]]:
    """Requests with one fault each, which a strict reader refuses."""
    texts = st.sampled_from(_ODD_VALUES)

    def change(pair: tuple[str, dict[str, Any]], fault: str, odd: Any) -> dict[str, Any]:
        request = dict(pair[1])
        suite = json.loads(request["test_cases"]) if isinstance(request["test_cases"], str) else request["test_cases"]
        if fault == "missing code":
            del request["code"]
        elif fault == "missing tests":
            del request["test_cases"]
        elif fault == "code of another type":
            request["code"] = odd if not isinstance(odd, str) else None
        elif fault == "unknown field":
            request["codes"] = odd
        elif fault == "stop of another type":
            request["stop_at_first_failure"] = odd if not isinstance(odd, bool) else "true"
        elif fault == "tests of another type":
            request["test_cases"] = odd
        elif fault == "lengths differ":
            request["test_cases"] = {"inputs": [*suite["inputs"], "1"], "outputs": suite["outputs"]}
        elif fault == "item of another type":
            request["test_cases"] = suite | {"inputs": [odd if not isinstance(odd, str) else 1] * len(suite["outputs"])}
        elif fault == "function of another type":
            is_name = odd is None or (isinstance(odd, str) and odd.isidentifier())
            request["test_cases"] = suite | {"fn_name": "not a name" if is_name else odd}
        elif fault == "no tests":
            request["test_cases"] = {"inputs": [], "outputs": []}
        return request

    faults = [
        "missing code", "missing tests", "code of another type", "unknown field", "stop of another type", "no tests",
        "tests of another type", "lengths differ", "item of another type", "function of another type",
    ]  # fmt: skip
    return st.builds(change, _judge_requests(), st.sampled_from(faults), texts)


def _raw_requests() -> st.SearchStrategy[bytes]:
    """Bytes for the socket: HTTP with wrong lines, lengths or chunks, and bytes that are not HTTP."""
    line = st.sampled_from([
        b"POST /evaluator HTTP/1.1", b"GET /evaluator HTTP/1.0",
        b"POST /evaluator",
        b"POST  /evaluator HTTP/9.9", b"\x16\x03\x01", b"PRI * HTTP/2.0", b"POST /%00%ff HTTP/1.1", b"",
        b"POST " + b"/x" * 5000 + b" HTTP/1.1",
    ])  # fmt: skip
    header = st.sampled_from([
        b"Host: 127.0.0.1", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999", b"Content-Length: x",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked, chunked", b"Expect: 100-continue",
        b"no colon here",
        b"Connection: close", b"Connection: upgrade", b"Upgrade: websocket", b": empty", b"X: " + b"y" * 5000,
        b"X: \xff\0",
    ])  # fmt: skip
    body = st.one_of(
        st.sampled_from([b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"[1]"]),
        st.binary(max_size=40),
    )
    return st.builds(
        lambda first, rest, tail: b"\r\n".join([first, *rest]) + b"\r\n\r\n" + tail,
        line,
        st.lists(header, max_size=5),
        body,
    )


@contextlib.contextmanager
def route_properties(log: Path) -> Iterator[list[Property]]:
    """Properties of any request to a judge service, which is started here and listens on loopback only."""
    adopt_orphans()
    settings = {"cpu_seconds": "1", "wall_seconds": "2", "output_bytes": "65536"}
    settings |= {"max_request_bytes": str(_MOST_BYTES), "max_tests": str(_MOST_TESTS)}
    with held_services(log, settings=settings) as (_, environment):
        client = Client(environment["COBALT_JUDGE_URL"].split()[0], environment.get("COBALT_JUDGE_TOKEN"))

        def right(example: tuple[str, dict[str, Any]], kinds: Counter[str]) -> None:
            name, request = example
            kinds[name] += 1
            status, answer = client.ask("/evaluator", json.dumps(request).encode())
            assert status == 200, (status, answer)
            suite = request["test_cases"]
            count = len((json.loads(suite) if isinstance(suite, str) else suite)["inputs"])
            expected = [_PROGRAMS[name][1]] * count
            if request.get("stop_at_first_failure") and name != "passed":
                expected = expected[:1] + ["not_run"] * (count - 1)
            assert [verdict["kind"] for verdict in answer["verdicts"]] == expected, answer
            assert answer["passing"] == [kind == "passed" for kind in expected]
            assert [bool(text) for text in answer["feedback"]] == [kind != "passed" for kind in expected]

        def refused(request: dict[str, Any], kinds: Counter[str]) -> None:
            status, answer = client.ask("/evaluator", json.dumps(request).encode())
            kinds[str(status)] += 1
            assert status == 422, (status, answer)
            assert answer["error"], answer

        def anything(example: tuple[str, str, dict[str, str], bytes], kinds: Counter[str]) -> None:
            method, path, headers, body = example
            status, answer = client.ask(path, body, method=method, headers=headers)
            kinds[str(status)] += 1
            assert status in _JUDGE_STATUSES, (status, answer)
            if status != 200 and re.match("/evaluator(?![a-z])", path) and method != "HEAD":
                assert isinstance(answer, dict) and answer["error"], answer

        def raw(data: bytes, kinds: Counter[str]) -> None:
            received = client.send(data)
            kinds["hung up" if not received else received[:12].decode(errors="replace")] += 1
            assert not received.startswith(b"HTTP/1.1 5"), received[:300]

        def bounds(example: tuple[str, int], kinds: Counter[str]) -> None:
            kind, beyond = example
            kinds[f"{kind}, {'beyond' if beyond > 0 else 'within'}"] += 1
            if kind == "a web page's":
                headers = {"Origin": "http://127.0.0.1"} if beyond > 0 else {}
                status, answer = client.ask("/evaluator", _sized(1, 0), headers=headers)
                refusal = 403
            elif kind == "tests":
                status, answer = client.ask("/evaluator", _sized(_MOST_TESTS + beyond, 0))
                refusal = 422
            else:
                status, answer = client.ask("/evaluator", _sized(1, _MOST_BYTES + beyond))
                refusal = 413
            assert status == (refusal if beyond > 0 else 200), (status, answer)

        def still_right(_: None, kinds: Counter[str]) -> None:
            kinds["controls"] += 1
            client.controls()

        client.controls()
        yield [
            Property("right judge requests", right, _judge_requests()),
            Property("judge requests with a fault", refused, _broken_judge_requests()),
            Property("any method, path, header and body", anything, _any_requests()),
            Property("bytes that need be no HTTP", raw, _raw_requests()),
            Property("bounds of a request", bounds, _bounds()),
            Property("the judge still answers right", still_right, st.none()),
        ]


def _bounds() -> st.SearchStrategy[tuple[str, int]]:
    """A bound, and by how much a request exceeds it; with 0 or less the request is within the bound."""
    return st.tuples(st.sampled_from(["bytes", "tests", "a web page's"]), st.sampled_from([-40, -1, 0, 1, 2, 30]))


def _sized(tests: int, length: int) -> bytes:
    """A valid judge request with `tests` tests, extended by blanks at its end to `length` bytes if it is shorter."""
    suite = {"inputs": ["1\n"] * tests, "outputs": ["2"] * tests}
    return json.dumps({"code": _PROGRAMS["passed"][0], "test_cases": suite}).encode().ljust(length)


def _any_requests() -> st.SearchStrategy[tuple[str, str, dict[str, str], bytes]]:
    """Valid HTTP with any content; its programs are arbitrary text and run under the judge's limits."""
    method = st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
    path = st.sampled_from([
        "/evaluator", "/evaluator", "/evaluator/", "/evaluator/x", "/", "/evaluator?x=1", "/evaluator/%2e%2e/x",
        "/evaluator//x", "/evaluatorx",
    ])  # fmt: skip
    header = st.dictionaries(
        st.sampled_from(
            ["Content-Type", "Accept", "Origin", "Content-Encoding", "Cookie", "X-Request-ID", "Authorization"]
        ),
        st.sampled_from(["application/json", "text/plain", "", "gzip", "*/*", "http://127.0.0.1", "a" * 2000, "null"]),
        max_size=2,
    )
    value = st.one_of(_json_values(), st.sampled_from(_ODD_VALUES))
    request = st.dictionaries(
        st.sampled_from(["code", "test_cases", "stop_at_first_failure", "suite", "x"]),
        st.one_of(value, st.sampled_from([{"inputs": ["1"], "outputs": ["2"]}, "python", "print(1)"])),
        max_size=5,
    )
    body = st.one_of(
        request.map(lambda item: json.dumps(item).encode()),
        value.map(lambda item: json.dumps(item).encode()),
        st.sampled_from(_GARBAGE),
        st.binary(max_size=60),
        st.just(b""),
    )
    return st.tuples(method, path, header, body)


if __name__ == "__main__":
    run_script(Arguments, main)
