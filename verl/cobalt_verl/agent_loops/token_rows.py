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
        response_ids: Responses, with what was shown between them.
        mask: 1 for a token that the policy wrote, 0 for one that it was shown.
        log_probs: The engine's log-probability of each token, 0.0 where the mask is 0; None if it gave none.
        spans: First token and token after the last one of each response, as places in `response_ids`.
        turns: The turns of the row, counted from 0 in the episode.
    """

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def continues_with(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt begins with the row's tokens."""
        whole = self.prompt_ids + self.response_ids
        return list(prompt_ids[: len(whole)]) == whole

    def add_shown(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not write."""
        self._append(token_ids, 0, None if self.log_probs is None else [0.0] * len(token_ids))

    def add_response(self, token_ids: Sequence[int], log_probs: Sequence[float] | None, turn: int) -> None:
        """Append what the policy wrote at a turn."""
        start = len(self.response_ids)
        if not start and log_probs is not None:
            self.log_probs = []
        self._append(token_ids, 1, log_probs)
        self.spans.append((start, len(self.response_ids)))
        self.turns.append(turn)

    def _append(self, token_ids: Sequence[int], mask: int, log_probs: Sequence[float] | None) -> None:
        if (log_probs is None) != (self.log_probs is None) or (log_probs and len(log_probs) != len(token_ids)):
            raise ValueError("each token of a row needs a log-probability, or none of them may have one")
        self.response_ids += token_ids
        self.mask += [mask] * len(token_ids)
        if self.log_probs is not None and log_probs is not None:
            self.log_probs += log_probs


def add_turn(
    rows: list[TokenRow], prompt_ids: Sequence[int], response_ids: Sequence[int], log_probs: Sequence[float] | None
) -> TokenRow:
    """Put the next turn of an episode into its last row, or into a new one; returns that row.

    Args:
        rows: The rows of the episode so far; changed.
        prompt_ids: The tokens that the policy saw.
        response_ids: The tokens that it wrote, at least one.
        log_probs: Their log-probabilities; None if the engine gave none.

    Raises:
        ValueError: the response is empty, or its log-probabilities are of another number.
    """
    if not response_ids:
        raise ValueError("a turn has no tokens")
    turn = sum(len(row.turns) for row in rows)
    if rows and rows[-1].continues_with(prompt_ids):
        row = rows[-1]
        row.add_shown(prompt_ids[len(row.prompt_ids) + len(row.response_ids) :])
    else:
        row = TokenRow(list(prompt_ids))
        rows.append(row)
    row.add_response(response_ids, log_probs, turn)
    return row
