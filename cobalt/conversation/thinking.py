"""Split a response of a reasoning model into its thinking and its answer."""

OPEN = "<think>"
CLOSE = "</think>"


def split_thinking(response: str) -> tuple[str, str]:
    """Return `(thinking, answer)` of one response, both stripped.

    The answer is what follows the last `</think>` (as in the paper's code: the history keeps only
    that). A response that opens `<think>` and never closes it was cut off while thinking: it has no answer. A
    response without either tag is all answer. If the chat template opens the tag in the prompt, the engine puts the
    tag at the head of the response, so that a response cut off there is recognised, too.
    """
    head, tag, answer = response.rpartition(CLOSE)
    if tag:
        return head.strip().removeprefix(OPEN).strip(), answer.strip()
    stripped = response.strip()
    if stripped.startswith(OPEN):
        return stripped.removeprefix(OPEN).strip(), ""
    return "", stripped
