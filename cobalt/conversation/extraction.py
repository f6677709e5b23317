"""Find the program in an answer: the content of its last fenced block.

Fences are those of CommonMark (three or more back-ticks or tildes, any info string such as `python`, `python3`
or `c++ title="x"`, closed by a fence at least as long, so that a four-backtick fence may hold three back-ticks),
with three liberties that model output needs: any indentation, an opening fence at the end of a line of prose,
and a closing fence right behind the last line of code. CRLF line ends are line ends. A block that is never
closed reaches to the end of the answer and counts: a response cut off by the token limit is judged by the
program it was writing, never by an earlier draft.

Pass the answer only, not the thinking (`cobalt.conversation.thinking`). Nothing here repairs or runs code.
"""

import re

# The info string behind back-ticks holds none, so that a line of inline code opens nothing; behind tildes it may.
_OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})")
_OPENING_AFTER_PROSE = re.compile(r"^[^`]*(?P<fence>`{3,})\w*[ \t]*$")
# A fence is looked for only where its run of characters starts, or a line of 24,000 back-ticks takes seconds.
_CLOSING = re.compile(r"^(?P<code>.*?)(?P<fence>(?<!`)`{3,}|(?<!~)~{3,})[ \t]*$")


def extract_code(answer: str) -> str | None:
    r"""The last fenced block of `answer`, or None when it has no fence.

    The code comes as written, without the fence's own indentation and without white space at its end, its line
    ends `\n`. An empty block is the empty program "".
    """
    last: list[str] | None = None
    fence, indent = "", ""
    for line in answer.replace("\r\n", "\n").split("\n"):
        if not fence:
            opening = _OPENING.match(line)
            if opening:
                fence, indent, last = opening["fence"], opening["indent"], []
            elif prose := _OPENING_AFTER_PROSE.match(line):
                fence, indent, last = prose["fence"], "", []
            continue
        assert last is not None
        closing = _CLOSING.match(line) if fence[0] in line else None
        if closing and closing["fence"].startswith(fence) and _closes(closing["code"], fence):
            if closing["code"].strip():
                last.append(closing["code"].removeprefix(indent))
            fence = ""
        else:
            last.append(line.removeprefix(indent))
    return None if last is None else "\n".join(last).rstrip()


def _closes(before: str, fence: str) -> bool:
    """Whether a fence behind `before` ends the block; tildes close only on a line of their own."""
    return fence[0] == "`" or not before.strip()
