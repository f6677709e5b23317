"""Find the program in an answer.

The program is the content of the last fenced block, as CommonMark defines fences: three or more back-ticks or
tildes alone on their line, with any info string (`python`, `python3`, `c++ title="x"` or none), closed by a
fence at least as long. So a four-backtick fence may hold three back-ticks, and CRLF line ends are line ends.
A block that is never closed reaches to the end of the answer and counts: a response cut off by the token limit
is judged by the program it was writing, never by an earlier draft.

Pass the answer only, not the thinking (`cobalt.conversation.thinking`). Nothing here repairs or runs code.
"""

from functools import cache

from markdown_it import MarkdownIt


@cache
def _parser() -> MarkdownIt:
    # Only the fence rule: lists, quotes and HTML around a block must not change what is inside it.
    return MarkdownIt("zero").enable("fence")


def extract_code(answer: str) -> str | None:
    """The content of the last fenced block of `answer`, or None when it has no fence.

    The text is returned as written, with `\\n` line ends and without white space at its end; an empty block is
    the empty program "".
    """
    if "```" not in answer and "~~~" not in answer:
        return None
    blocks = [token.content for token in _parser().parse(answer) if token.type == "fence"]
    return blocks[-1].rstrip() if blocks else None
