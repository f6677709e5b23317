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

CRLF line ends are line ends. Pass the answer only, not the thinking (`cobalt.conversation.thinking`). Nothing here
repairs or runs code.
"""

import re

# The info string after back-ticks holds no back-tick, so that a line of inline code opens nothing; after tildes it may.
_OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})")
_OPENING_AFTER_PROSE = re.compile(r"^[^`]*(?P<fence>`{3,})\w*[ \t]*$")
_BACKTICKS_FIRST = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,})(?P<restart>python)?")
# A fence is looked for only where its run of characters starts; otherwise a line of 24,000 back-ticks takes seconds.
_CLOSING_AT_THE_END = {
    "`": re.compile(r"^(?P<code>.*?)(?P<fence>(?<!`)`{3,})[ \t]*$"),
    "~": re.compile(r"^(?P<code>\s*)(?P<fence>~{3,})[ \t]*$"),
}


def fence_around(text: str) -> str:
    """A fence of back-ticks for a block that holds the text: three, or one more than the text has in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def extract_code(answer: str) -> str | None:
    r"""The last fenced block of `answer`, or None when it has no fence.

    The code comes as written, without the fence's own indentation and without white space at its end, its line
    ends `\n`. An empty block is the empty program "".
    """
    last: list[str] | None = None
    before = last  # the block before the one that is open
    fence, indent = "", ""
    for line in answer.replace("\r\n", "\n").split("\n"):
        if not fence:
            opening = _OPENING.match(line)
            if opening:
                before, fence, indent, last = last, opening["fence"], opening["indent"], []
            elif prose := _OPENING_AFTER_PROSE.match(line):
                before, fence, indent, last = last, prose["fence"], "", []
            continue
        assert last is not None
        if fence[0] == "`" and (first := _BACKTICKS_FIRST.match(line)) and first["fence"].startswith(fence):
            if first["restart"]:
                before, fence, indent, last = last, first["fence"], first["indent"], []
            else:
                fence = ""
        elif (end := _CLOSING_AT_THE_END[fence[0]].match(line)) and end["fence"].startswith(fence):
            last.append(end["code"].removeprefix(indent))
            fence = ""
        else:
            last.append(line.removeprefix(indent))
    if fence and before is not None and not any(line.strip() for line in last or ()):
        last = before
    return None if last is None else "\n".join(last).rstrip()
