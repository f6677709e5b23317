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

CRLF line ends are line ends. Pass the answer only, not the thinking (`cobalt.episode.thinking`). Nothing here
repairs or runs code.
"""

import re
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


@dataclass(slots=True)
class _Block:
    """A fenced block: its fence, the white space before that ("" after prose), and its lines without the fences."""

    fence: str
    indent: str
    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def code(self) -> str:
        """The lines without the indentation of the fence, and without white space at the end."""
        return "\n".join(line.removeprefix(self.indent) for line in self.lines).rstrip()


def fence_around(text: str) -> str:
    """A fence of back-ticks for a block that holds the text: three, or one more than the text has in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def extract_code(answer: str) -> str | None:
    r"""The last fenced block of `answer`, or None when it has no fence.

    The code comes as written, without the fence's own indentation and without white space at its end, its line
    ends `\n`. An empty block is the empty program "".
    """
    blocks = _fenced_blocks(answer)
    if len(blocks) > 1 and not blocks[-1].closed and not blocks[-1].code:
        blocks.pop()
    return blocks[-1].code if blocks else None


def _fenced_blocks(text: str) -> list[_Block]:
    """The fenced blocks of a text, in order; the last one may be open."""
    if not _may_open(text):
        return []
    blocks: list[_Block] = []
    block: _Block | None = None
    for line in text.replace("\r\n", "\n").split("\n"):
        if block is None:
            if (block := _opened(line)) is not None:
                blocks.append(block)
            continue
        end = _end(line, block)
        if end is None:
            block.lines.append(line)
        elif isinstance(end, _Block):
            blocks.append(end)
            block.closed, block = True, end
        else:
            block.lines += [end] if end else []
            block.closed, block = True, None
    return blocks


def _may_open(text: str) -> bool:
    """Whether a text has any fence; the patterns take most of the time of long responses."""
    return "```" in text or "~~~" in text


def _opened(line: str) -> _Block | None:
    if not _may_open(line):
        return None
    if opening := _OPENING.match(line):
        return _Block(opening["fence"], opening["indent"])
    prose = _OPENING_AFTER_PROSE.match(line)
    return _Block(prose["fence"], "") if prose else None


def _end(line: str, block: _Block) -> str | _Block | None:
    """What ends an open block at a line: the code before the fence that closes it, or another block; None: nothing."""
    if block.fence not in line:
        return None
    first = _FENCE_FIRST.match(line)
    if block.fence[0] == "`" and first and first["fence"].startswith(block.fence):
        return _Block(first["fence"], first["indent"]) if first["restart"] else ""
    end = _CLOSING_AT_THE_END[block.fence[0]].match(line)
    return end["code"] if end and end["fence"].startswith(block.fence) else None
