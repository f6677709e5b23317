"""Split a response of a reasoning model into its thinking and its answer."""

import re

from cobalt.conversation.extraction import fenced_blocks

OPEN = "<think>"
CLOSE = "</think>"

# A tag between quotes or single back-ticks is only mentioned; three back-ticks are a fence.
_ENDING = re.compile(rf"""(?:(?<!['"`])|(?<=``)){CLOSE}|(?<=(['"`])){CLOSE}(?!\1)|(?<=`){CLOSE}(?=``)""")


def split_thinking(response: str) -> tuple[str, str]:
    """Return `(thinking, answer)` of one response, both stripped.

    The thinking ends at the first `</think>`, whatever the answer says about tags. Not counted is a tag that is only
    mentioned: between quotes or back-ticks, or in a string or comment of a program in a fenced block. A response that
    opens `<think>` and never closes it was cut off while thinking: it has no answer. A response without either tag is
    all answer. If the chat template opens the tag in the prompt, the engine puts the tag at the head of the response,
    so that a response cut off there is recognised, too.
    """
    end = _end_of_thinking(response)
    if end is not None:
        return response[:end].strip().removeprefix(OPEN).strip(), response[end + len(CLOSE) :].strip()
    stripped = response.strip()
    if stripped.startswith(OPEN):
        return stripped.removeprefix(OPEN).strip(), ""
    return "", stripped


def _end_of_thinking(response: str) -> int | None:
    """Where the tag stands that ends the thinking."""
    strings: dict[int, list[tuple[int, int]]] | None = None
    for tag in _ENDING.finditer(response):
        if strings is None:
            strings = _strings_of_programs(response)
        line = response.count("\n", 0, tag.start())
        column = tag.start() - (response.rfind("\n", 0, tag.start()) + 1)
        if not any(start <= column < end for start, end in strings.get(line, ())):
            return tag.start()
    return None


def _strings_of_programs(response: str) -> dict[int, list[tuple[int, int]]]:
    """By the index of its line, the columns of each line of a block that belong to strings and comments."""
    return {
        block.first + offset: spans
        for block in fenced_blocks(response)
        for offset, spans in enumerate(block.string_spans())
    }
