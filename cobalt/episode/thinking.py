"""Split a response of a reasoning model into its thinking and its answer."""

import re

from cobalt.episode.program import Block, fenced_blocks

OPEN = "<think>"
CLOSE = "</think>"

# A tag between quotes or single back-ticks is only mentioned; three back-ticks are a fence. The pattern begins with the
# tag itself, for which `re` searches long responses fast.
_ENDING = re.compile(rf"""{CLOSE}(?:(?<!['"`]{CLOSE})|(?<=``{CLOSE})|(?<=(['"`]){CLOSE})(?!\1)|(?<=`{CLOSE})(?=``))""")


def split_thinking(response: str) -> tuple[str, str]:
    """Return `(thinking, answer)` of one response, both stripped.

    The thinking ends at the last `</think>` before the first program: at the first tag, or at a later one that no
    fenced block separates from it. What an answer says about tags after its program does not count, nor does a tag that
    is only mentioned: between quotes or back-ticks, or in a string or comment of a program. A response that opens
    `<think>` and never closes it was cut off while thinking: it has no answer. A response without either tag is all
    answer. If the chat template opens the tag in the prompt, the engine puts the tag at the head of the response, so
    that a response cut off there is recognised, too.
    """
    end = _end_of_thinking(response)
    if end is not None:
        return response[:end].strip().removeprefix(OPEN).strip(), response[end + len(CLOSE) :].strip()
    stripped = response.strip()
    if stripped.startswith(OPEN):
        return stripped.removeprefix(OPEN).strip(), ""
    return "", stripped


def _end_of_thinking(response: str) -> int | None:
    """Index of the tag that ends the thinking."""
    end: int | None = None
    end_line = 0
    blocks: list[Block] | None = None
    for tag in _ENDING.finditer(response):
        if blocks is None:
            blocks = fenced_blocks(response)
            strings = {index: spans for block in blocks for index, spans in block.string_spans().items()}
        line = response.count("\n", 0, tag.start())
        column = tag.start() - (response.rfind("\n", 0, tag.start()) + 1)
        if any(start <= column < stop for start, stop in strings.get(line, ())):
            continue
        if end is not None and any(end_line < block.first <= line for block in blocks):
            break
        end, end_line = tag.start(), line
    return end
