"""Groups of judged responses as token ids with their advantages, for offline training.

The prompt of a row is the group's messages and the response's context. A response ends with the tokenizer's end token,
which the policy has to learn. No torch: `cobalt_verl.offline_batch` makes tensors of the rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cobalt.errors import UserError
from cobalt.offline_groups import OfflineGroup, Status, read_groups
from cobalt.reward.offline import OfflineSettings, offline_advantages

_THINK = "<think>"


@dataclass(frozen=True, slots=True)
class Row:
    """One response with its prompt.

    Attributes:
        prompt: Token ids of the prompt, its context included, up to where the policy begins to write.
        response: Token ids of the response, its end token included.
        advantage: Its weight in the policy gradient.
        accepted: Whether its program is accepted.
    """

    prompt: npt.NDArray[np.int32]
    response: npt.NDArray[np.int32]
    advantage: float
    accepted: bool

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True, slots=True)
class TokenGroup:
    """The rows of one group that are trained on, in the order of its responses.

    Supervised training leaves a group without an accepted response no row. It stays a group, so that all estimators
    take the same number of steps on a file.
    """

    id: str
    rows: tuple[Row, ...]


def load_groups(path: Path, tokenizer: Any, settings: OfflineSettings, max_length: int) -> list[TokenGroup]:
    """Read a file of groups and turn every response into tokens.

    Args:
        path: A file of `cobalt.offline_groups`.
        tokenizer: The policy's, with a chat template.
        settings: Decide the advantages. With the estimator sft a group keeps its accepted responses alone.
        max_length: Most tokens of a prompt with its response.

    Raises:
        UserError: the file is not one of groups, the tokenizer has no chat template or no end token, a response is too
            long, or no group has a response to train on.
    """
    if tokenizer.eos_token_id is None:
        raise UserError("the policy's tokenizer has no eos_token, so the policy could not learn to end a response")
    if not tokenizer.chat_template:
        raise UserError("the policy's tokenizer has no chat template: give an instruction-tuned policy")
    groups = []
    too_long: list[str] = []
    for group in read_groups(path):
        rows = _rows(group, tokenizer, settings)
        too_long += [f"{group.id} ({row.length})" for row in rows if row.length > max_length]
        groups.append(TokenGroup(group.id, rows))
    if too_long:
        raise UserError(
            f"{path}: {len(too_long)} responses are longer with their prompts than data.max_length {max_length}, such"
            f" as in group {too_long[0]}: make the groups with a smaller --max_tokens"
        )
    if not any(group.rows for group in groups):
        raise UserError(f"{path}: no response is accepted, and the estimator sft trains on accepted ones alone")
    return groups


def _rows(group: OfflineGroup, tokenizer: Any, settings: OfflineSettings) -> tuple[Row, ...]:
    rendered = [
        tokenizer.apply_chat_template(group.prompt(response), tokenize=False, add_generation_prompt=True)
        for response in group.responses
    ]
    distinct = list(dict.fromkeys(rendered))
    ids = tokenizer(distinct, add_special_tokens=False)["input_ids"]
    prompts = {text: np.asarray(own, np.int32) for text, own in zip(distinct, ids, strict=True)}
    # A response as a model wrote it may begin with the tag that the prompt ends with.
    texts = [
        response.text.removeprefix(_THINK) if prompt.rstrip().endswith(_THINK) else response.text
        for response, prompt in zip(group.responses, rendered, strict=True)
    ]
    responses = tokenizer(texts, add_special_tokens=False)["input_ids"]
    accepted = np.asarray([response.status is Status.ACCEPTED for response in group.responses])
    rewards = np.asarray([response.reward for response in group.responses], np.float64)
    advantages = offline_advantages(settings, rewards, accepted)
    return tuple(
        Row(prompts[prompt], np.asarray([*own, tokenizer.eos_token_id], np.int32), float(advantage), bool(right))
        for prompt, own, advantage, right in zip(rendered, responses, advantages, accepted, strict=True)
        if right or settings.estimator != "sft"
    )


def with_rows(groups: Sequence[TokenGroup], places: Iterable[int]) -> tuple[list[int], bool]:
    """Which groups a rank hands to the engine of those that are its share, and whether they count.

    Every rank takes part in each call of the engine. A rank whose share has no row repeats a group of another, which
    must not count.

    Args:
        groups: All groups of the file, at least one with a row.
        places: The rank's share.
    """
    own = [int(place) for place in places if groups[place].rows]
    return (own, True) if own else ([next(place for place, group in enumerate(groups) if group.rows)], False)
