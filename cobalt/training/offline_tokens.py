"""Groups of judged responses as token ids with their advantages, for offline training.

The prompt of a row is the group's messages and the response's context. A response ends with the tokenizer's end token,
which the policy has to learn. `cobalt_verl.offline_batch` makes tensors of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cobalt.datasets.offline.groups import OfflineGroup, Status, read_groups
from cobalt.episode import chat_template
from cobalt.episode.chat_template import TemplateThinking
from cobalt.reward.offline import OfflineSettings, offline_advantages
from cobalt.stage.errors import UserError


@dataclass(frozen=True, slots=True)
class Row:
    """One response with its prompt."""

    prompt: npt.NDArray[np.int32]  # token ids, the context included, up to where the policy begins to write
    response: npt.NDArray[np.int32]  # token ids, the end token included
    advantage: float  # its weight in the policy gradient
    accepted: bool

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.prompt) + len(self.response)


TokenGroup = tuple[Row, ...]
"""The rows of one group that are trained on, in the order of its responses. With sft there may be none. It stays a
group, so that all estimators take the same number of steps on a file."""


def load_groups(
    path: Path, tokenizer: Any, settings: OfflineSettings, max_length: int, thinking: TemplateThinking = "default"
) -> list[TokenGroup]:
    """Read a file of `cobalt.datasets.offline.groups` and turn every response into tokens of the policy's tokenizer.

    With the estimator sft a group keeps its accepted responses alone. `max_length` is in tokens of a prompt with its
    response, and `thinking` must be as when the groups were made.

    Raises:
        UserError: the file is not one of groups, the tokenizer has no end token or no chat template that can be used, a
            response is too long, or no group has a response to train on.
    """
    if tokenizer.eos_token_id is None:
        raise UserError("the policy's tokenizer has no eos_token, so the policy could not learn to end a response")
    arguments = chat_template.template_arguments(thinking)
    groups = {group.id: _rows(group, tokenizer, settings, arguments) for group in read_groups(path)}
    too_long = [f"{name} ({row.length})" for name, rows in groups.items() for row in rows if row.length > max_length]
    if too_long:
        longer = f"{len(too_long)} responses are longer with their prompts than data.max_length {max_length}"
        raise UserError(
            f"{path}: {longer}, as in group {too_long[0]}: make the groups with --model_name and a smaller --max_tokens"
        )
    if not any(groups.values()):
        raise UserError(f"{path}: no response is accepted, and the estimator sft trains on accepted ones alone")
    return list(groups.values())


def _rows(group: OfflineGroup, tokenizer: Any, settings: OfflineSettings, arguments: dict[str, Any]) -> TokenGroup:
    end = chat_template.end_of_turn(tokenizer, arguments)
    conversations = [group.prompt(response) for response in group.responses]
    rendered = chat_template.render_prompts(tokenizer, conversations, arguments)
    distinct = list(dict.fromkeys(rendered))
    ids = tokenizer(distinct, add_special_tokens=False)["input_ids"]
    prompts = {text: np.asarray(own, np.int32) for text, own in zip(distinct, ids, strict=True)}
    texts = []
    for response, prompt in zip(group.responses, rendered, strict=True):
        head = chat_template.opened_thinking(prompt)  # which an engine puts before the response, with its white space
        texts.append(response.text.removeprefix(head if response.text.startswith(head) else head.rstrip()))
    responses = tokenizer(texts, add_special_tokens=False)["input_ids"]
    accepted = np.asarray([response.status is Status.ACCEPTED for response in group.responses])
    rewards = np.asarray([response.reward for response in group.responses], np.float64)
    advantages = offline_advantages(settings, rewards, accepted)
    rows = []
    for prompt, own, advantage, right in zip(rendered, responses, advantages, accepted, strict=True):
        if right or settings.estimator != "sft":
            ids = np.asarray(own if own[-1:] == [end] else [*own, end], np.int32)
            rows.append(Row(prompts[prompt], ids, float(advantage), bool(right)))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class RowIndex:
    """A row of a group, by their indices; `counts`: in the loss."""

    group: int
    row: int
    counts: bool = True


def share(groups: Sequence[TokenGroup], chosen: Sequence[int], rank: int, ranks: int) -> list[RowIndex]:
    """The rows of the chosen groups that a rank hands to the engine: as many as every other rank does.

    Every rank takes part in each call of the engine, with as many micro-batches as the others. A rank with fewer rows
    than another repeats one that does not count. Each chosen group is whole on one rank, and at least one of `groups`,
    all of the file, has a row. Where no chosen group has one, there are none on any rank.
    """
    shares = [
        [RowIndex(int(group), row) for group in chosen[one::ranks] for row in range(len(groups[group]))]
        for one in range(ranks)
    ]
    own, most = shares[rank], max(map(len, shares))
    spare = own[0].group if own else next(index for index, group in enumerate(groups) if group)
    return own + [RowIndex(spare, 0, False)] * (most - len(own))
