"""Find the program in an answer: the content of its last fenced block.

Fences are those of CommonMark (three or more back-ticks or tildes, any info string such as `python`, `python3`
or `c++ title="x"`, closed by a fence at least as long, so that a four-backtick fence may hold three back-ticks),
with the liberties that model output needs:

    opening     at any indentation; also at the end of a line of prose, with one word after the back-ticks
    closing     a line that starts with enough back-ticks, whatever follows them; also back-ticks right after the last
                line of code; tildes close only on a line of their own
    restart     a line in an open block that starts with enough back-ticks and `python` opens another block
    cut off     a block that is never closed reaches to the end of the answer and counts if it holds any text: a
                response that the token limit ended is judged by the program it was writing, never by an earlier draft;
                without text the block before it counts

Fences that belong to the program neither close nor restart its block:

    indented    by four columns or more than the block's opening fence (CommonMark), unless that stands after prose; if
                nothing else closes the block, the first such fence does that is outside a string and alone on its line
    in a string with three quotes, such as a docstring, that is closed before the block ends

CRLF line ends are line ends. Pass the answer only, not the thinking (`cobalt.episode.thinking`). Nothing here
repairs or runs code.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# The info string after back-ticks holds no back-tick, so that a line of inline code opens nothing; after tildes it may.
_OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})")
_OPENING_AFTER_PROSE = re.compile(r"^[^`]*(?P<fence>`{3,})\w*[ \t]*$")
_FENCE_FIRST = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<restart>python)?")
# A fence is looked for only where its run of characters starts; otherwise a line of 24,000 back-ticks takes seconds.
_CLOSING_AT_THE_END = {
    "`": re.compile(r"^(?P<code>.*?)(?P<fence>(?<!`)`{3,})[ \t]*$"),
    "~": re.compile(r"^(?P<code>\s*)(?P<fence>~{3,})[ \t]*$"),
}
_DEEP = 4
"""Columns by which a fence must be further right than the opening fence to be part of the program."""

# Strings and comments of Python, on one line, up to the first quotes of a string over several lines.
_QUOTED = re.compile(r'''#.*|"""|\'{3}|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\\.''')
_REST = {quote: re.compile(rf"(?:\\.|[^\\])*?{quote}") for quote in ('"""', "'''")}


@dataclass(slots=True)
class Block:
    """A fenced block.

    Attributes:
        first: Index of the line after the opening fence.
        indent: White space before the opening fence; "" after prose.
        lines: Its lines as written, without the fences.
        closed: Whether a fence closes it.
    """

    first: int
    fence: str
    indent: str
    after_prose: bool = False
    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def code(self) -> str:
        """The lines without the indentation of the fence, and without white space at the end."""
        return "\n".join(line.removeprefix(self.indent) for line in self.lines).rstrip()

    def string_spans(self) -> dict[int, list[tuple[int, int]]]:
        """By the index of each line the columns that belong to strings and comments of Python."""
        spans: dict[int, list[tuple[int, int]]] = {}
        quote = ""
        for index, line in enumerate(self.lines, self.first):
            spans[index], quote = _strings(line, quote)
        return spans


def fence_around(text: str) -> str:
    """A fence of back-ticks for a block that holds the text: three, or one more than the text has in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def extract_code(answer: str) -> str | None:
    r"""The last fenced block of `answer`, or None when it has no fence.

    The code comes as written, without the fence's own indentation and without white space at its end, its line
    ends `\n`. An empty block is the empty program "".
    """
    blocks = fenced_blocks(answer)
    if len(blocks) > 1 and not blocks[-1].closed and not blocks[-1].code:
        blocks.pop()
    return blocks[-1].code if blocks else None


def fenced_blocks(text: str) -> list[Block]:
    """The fenced blocks of a text, in order; the last one may be open."""
    if not _may_open(text):
        return []
    lines = text.replace("\r\n", "\n").split("\n")
    blocks: list[Block] = []
    block: Block | None = None
    quote = ""  # of the string that is open at the beginning of the line
    string_end = 0  # lines before this index are in a string that holds fences
    deep: int | None = None  # number of lines before the first fence that is too far right
    for index, line in enumerate(lines):
        if block is None:
            if (block := _opened(line, index + 1)) is not None:
                blocks.append(block)
                quote, deep = "", None
            continue
        end = _end(line, block)
        if end is not None and quote and index >= string_end:
            string_end = _string_end(lines, index, quote, block)
        if end is None or index < string_end:
            if not quote and deep is None and _end(line.lstrip(" \t"), block) is not None and not line.strip(" \t`~"):
                deep = len(block.lines)
            block.lines.append(line)
            quote = _strings(line, quote)[1]
        elif isinstance(end, Block):
            end.first = index + 1
            blocks.append(end)
            block.closed, block, quote, deep = True, end, "", None
        else:
            block.lines += [end] if end else []
            block.closed, block = True, None
    if block is not None and deep is not None:
        del block.lines[deep:]
        block.closed = True
    return blocks


def _may_open(text: str) -> bool:
    """Whether a text has any fence; the patterns take most of the time of long responses."""
    return "```" in text or "~~~" in text


def _opened(line: str, first: int) -> Block | None:
    if not _may_open(line):
        return None
    if opening := _OPENING.match(line):
        return Block(first, opening["fence"], opening["indent"])
    if prose := _OPENING_AFTER_PROSE.match(line):
        return Block(first, prose["fence"], "", after_prose=True)
    return None


def _end(line: str, block: Block) -> str | Block | None:
    """End of an open block at a line: the code before the fence that closes it, or another block; None: no end."""
    if block.fence not in line:
        return None
    first = _FENCE_FIRST.match(line)
    if first and not block.after_prose and _width(first["indent"]) >= _width(block.indent) + _DEEP:
        return None
    if block.fence[0] == "`" and first and first["fence"].startswith(block.fence):
        return Block(0, first["fence"], first["indent"]) if first["restart"] else ""
    end = _CLOSING_AT_THE_END[block.fence[0]].match(line)
    return end["code"] if end and end["fence"].startswith(block.fence) else None


def _string_end(lines: Sequence[str], index: int, quote: str, block: Block) -> int:
    """The line at which a block ends whose open string holds the fence at `index`; `index` if the string stays open."""
    for later in range(index, len(lines)):
        if not quote and _end(lines[later], block) is not None:
            return later
        quote = _strings(lines[later], quote)[1]
    return index if quote else len(lines)


def _strings(line: str, quote: str) -> tuple[list[tuple[int, int]], str]:
    """Columns of a line that belong to strings and comments, and the quotes of the string that is open after it."""
    spans = []
    start = 0
    while True:
        if quote:
            rest = _REST[quote].match(line, start)
            spans.append((start, rest.end() if rest else len(line)))
            if rest is None:
                return spans, quote
            start, quote = rest.end(), ""
        token = _QUOTED.search(line, start)
        if token is None:
            return spans, ""
        if token[0] in _REST:
            quote = token[0]
        elif token[0][0] != "\\":
            spans.append(token.span())
        start = token.end()


def _width(indent: str) -> int:
    return len(indent.expandtabs(4))
