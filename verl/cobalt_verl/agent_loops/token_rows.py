"""The tokens of an episode as rows to train on: what the policy wrote counts, what it was shown does not.

Each turn has a prompt, which is the chat template's rendering of the conversation so far, and a response. If the next
prompt begins with the tokens of the row so far, as it does where the history keeps responses whole, the row goes on:
the further tokens of the prompt are masked out, and the response follows. If not (the history leaves out the thinking,
or the response's text has other tokens when it is read again), a new row begins with that prompt. So in every row each
response follows exactly the tokens that the policy saw when it wrote the response.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenRow:
    """One sequence; `response_ids`, `mask` and `log_probs` have one entry for each token after the prompt.

    Attributes:
        prompt_ids: The prompt of the row's first turn.
        log_probs: The engine's log-probability of each token, 0.0 where the mask is 0; None if it gave none.
        response_ids: Responses, with what was shown between them.
        mask: 1 for a token that the policy wrote, 0 for one that it was shown.
        spans: By turn of the episode, from 0, the index of its response's first token and of the token after the last.
    """

    prompt_ids: list[int]
    log_probs: list[float] | None
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)


def add_turn(
    rows: list[TokenRow], prompt_ids: Sequence[int], response_ids: Sequence[int], log_probs: Sequence[float] | None
) -> None:
    """Put the next turn of an episode into its last row, or into a new one.

    Args:
        rows: The rows of the episode so far; changed.
        prompt_ids: The tokens that the policy saw.
        response_ids: The tokens that it wrote, at least one.
        log_probs: Their log-probabilities; None if the engine gave none.

    Raises:
        ValueError: the response is empty, or its log-probabilities are of another number.
    """
    turn = sum(len(row.spans) for row in rows)
    whole = rows[-1].prompt_ids + rows[-1].response_ids if rows else []
    if not rows or list(prompt_ids[: len(whole)]) != whole:
        rows.append(TokenRow(list(prompt_ids), None if log_probs is None else []))
        whole = list(prompt_ids)
    row, shown = rows[-1], prompt_ids[len(whole) :]
    scored = None if log_probs is None else len(log_probs)
    if not response_ids or scored != (None if row.log_probs is None else len(response_ids)):
        raise ValueError("a turn has tokens, and each token of a row a log-probability, or none of them")
    if row.log_probs is not None:
        row.log_probs += [0.0] * len(shown) + list(log_probs or ())
    row.response_ids += [*shown, *response_ids]
    row.mask += [0] * len(shown) + [1] * len(response_ids)
    row.spans[turn] = len(row.response_ids) - len(response_ids), len(row.response_ids)
