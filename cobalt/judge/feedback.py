"""The text that a model is shown for a failed test, in the paper's layout.

Every field is stripped and cut to 400 characters, its first and last 200. Control characters are written as escapes,
so that a program's output cannot control a terminal that shows it.
"""

import re

from cobalt.judge.verdict import VerdictKind

FIELD_CHARACTERS = 400
EARLIER_TEST_FAILED = "an earlier test failed"
"""Reason why a test was not run, if the suite is stopped at its first failure."""
CUT_MARK = "...(truncated)..."

# All control characters except newline and tab; lone surrogates, which strict UTF-8 cannot encode; and the marks that
# reorder text on a screen.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clip(text: str) -> str:
    """A field stripped and cut to its first and last 200 characters, with control characters as escapes."""
    stripped = text.strip()
    half = FIELD_CHARACTERS // 2
    if len(stripped) <= FIELD_CHARACTERS:
        return _visible(stripped)
    return f"{_visible(stripped[:half])}{CUT_MARK}{_visible(stripped[-half:])}"


def failure_text(kind: VerdictKind, test_input: str, output: str, expected: str, errors: str, limit: str) -> str:
    """The feedback of one failed test.

    Args:
        kind: The test's outcome; not `passed`, `no_code` or `not_run`.
        test_input: The program's standard input.
        output: Text that the program wrote to standard output.
        expected: The expected output.
        errors: Text that the program wrote to standard error, or the compiler's message.
        limit: The value, with a unit, of the limit that was exceeded, if any.
    """
    head = f"Input:\n{clip(test_input)}\n"
    if kind is VerdictKind.TIME_LIMIT:
        return f"{head}TimeoutError: the program used more than {limit} of CPU time and was stopped."
    if kind is VerdictKind.WALL_LIMIT:
        return f"{head}TimeoutError: the program was still waiting after {limit} and was stopped."
    head += f"Program's Output:\n{clip(output)}\n"
    if kind is VerdictKind.WRONG_ANSWER:
        return f"{head}Expected Output:\n{clip(expected)}"
    if kind is VerdictKind.OUTPUT_LIMIT:
        return f"{head}Stderr:\nOutputLimitError: the program wrote more than {limit} and was stopped."
    if kind is VerdictKind.MEMORY_LIMIT and not errors.strip():
        return f"{head}Stderr:\nMemoryError: the program used more than {limit} of memory and was stopped."
    return f"{head}Stderr:\n{clip(errors)}"


def not_run_text(reason: str) -> str:
    """The feedback of a test that was not run, with the reason."""
    return f"This test was not run: {reason}."


def _visible(text: str) -> str:
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        # A lone surrogate stands for one byte that was not UTF-8: show it as the replacement character.
        return "\N{REPLACEMENT CHARACTER}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
