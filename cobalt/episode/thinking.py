"""Split a response of a reasoning model into its thinking and its answer."""

OPEN = "<think>"
CLOSE = "</think>"


def split_thinking(response: str) -> tuple[str, str]:
    """Return `(thinking, answer)` of one response, both stripped.

    The thinking ends at the first `</think>`. A response that opens `<think>` and never closes it was cut off while
    thinking: it has no answer. A response without either tag is all answer. If the chat template opens the tag in the
    prompt, the engine puts the tag at the head of the response, so that a response cut off there is recognised, too.
    """
    thinking, closed, answer = (part.strip() for part in response.partition(CLOSE))
    if closed or thinking.startswith(OPEN):
        return thinking.removeprefix(OPEN).strip(), answer
    return "", thinking
