"""The number of values and the depth of a JSON text, counted before anything is decoded."""

from cobalt.stage.errors import UserError

MOST_LEVELS = 100
"""Depth of arrays and objects in a body or a suite; far below that at which Python's own functions fail."""
MOST_VALUES = 4_000_000
"""Most values of a JSON text that is not a line of a file, such as a field of one."""

_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_PIECE = 1 << 20  # bytes that are copied at a time


class TooManyValues(UserError):
    """A JSON text has more values than its reader accepts."""


class JsonMeasure:
    """Counts the values and the depth of a JSON text that arrives in pieces, before anything is decoded.

    Decoded, a value takes up to 64 bytes of memory, and `[],` has one in three bytes. What quoted strings hold is not
    counted, so that long strings are never refused.
    """

    def __init__(self, most_values: int, most_levels: int) -> None:
        self._most_values, self._most_levels = most_values, most_levels
        self._values, self._levels, self._quotes = 1, 0, 0
        self._escape = b""  # a backslash whose character has not arrived

    def add(self, piece: bytes) -> None:
        """Count the next piece of the text, of any size.

        Raises:
            TooManyValues: the text has more than `most_values` values.
            UserError: it has more than `most_levels` levels, or closes more than it opens.
        """
        for start in range(0, len(piece), _PIECE):
            self._add(piece[start : start + _PIECE])

    def _add(self, piece: bytes) -> None:
        text = self._escape + piece
        escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
        self._escape = text[len(text) - escaped :]
        text = text[: len(text) - escaped].replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = text.count(b'"')
        if self._quotes + quotes > 4 * self._most_values + 2:  # each value has a string, and as a member a name
            raise TooManyValues(f"more than {self._most_values} values")
        outside = b"".join(text.split(b'"')[self._quotes % 2 :: 2])
        self._quotes += quotes
        for bracket in outside.translate(None, _NOT_BRACKETS):
            self._levels += 1 if bracket in b"[{" else -1
            if self._levels > self._most_levels:
                raise UserError(f"nested too deeply (more than {self._most_levels} levels)")
            if self._levels < 0:
                raise UserError("not valid JSON (it closes more than it opens)")
        self._values += outside.count(b"[") + outside.count(b"{") + outside.count(b",")
        if self._values > self._most_values:
            raise TooManyValues(f"more than {self._most_values} values")
