"""Writes the rollouts of every k-th training step into the run's folder, for `cobalt watch`.

A file is bounded: it has at most `MOST_GROUPS` prompts of the step, drawn at random, texts are cut in the middle to
`MOST_CHARACTERS`, and no prompt is added once the file has `MOST_BYTES`.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from cobalt.report.rollouts import Group, Response, Sample, rollout_file
from cobalt.stage.atomic import replacing
from cobalt_verl.episodes import prompt_of, session_of
from cobalt_verl.metrics_file import numbers
from cobalt_verl.scoring import FEEDBACK, VERDICT_AT

MOST_GROUPS = 16
MOST_CHARACTERS = 20_000
MOST_BYTES = 8 * 2**20

_FIELDS = ["prompts", "responses", "response_mask", "advantages", "extra_fields", "extra_info"]


def is_due(step: int, every: int) -> bool:
    """Whether the rollouts of a step are written: of the first one, and of every k-th; `every` 0: of none."""
    return every > 0 and (step == 1 or step % every == 0)


def write_rollouts(run: Path, step: int, batch: KVBatchMeta, decode: Callable[[Any], str]) -> None:
    """Write some prompts of a step that has its advantages, with all their samples, into a run's folder.

    `decode` gives the text of tokens, with the marks of the chat template. UserError: the file cannot be written.
    """
    real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    drawn = sorted({prompt_of(key) for key in real})[:MOST_GROUPS]  # veRL names prompts at random
    keys = sorted((key for key in real if prompt_of(key) in drawn), key=session_of)
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=_FIELDS)
    columns = [list(data[name].unbind() if name in _FIELDS[:4] else data[name]) for name in _FIELDS]
    rows: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for key, *row in zip(keys, *columns, strict=True):
        rows[prompt_of(key)][session_of(key)[0]].append(row)
    with replacing(rollout_file(run, step)) as file:
        for samples in rows.values():
            prompt, *_, extra_info = next(iter(samples.values()))[0]
            group = Group(
                problem=str(extra_info.get("id", "")),
                prompt=_cut(decode(prompt)),
                samples=[_sample(sample, decode) for sample in samples.values()],
            )
            file.write(json.dumps(group.model_dump(exclude_none=True)).encode() + b"\n")
            if file.tell() > MOST_BYTES:
                break


def _sample(rows: list[Any], decode: Callable[[Any], str]) -> Sample:
    parts: Mapping[str, Any] = rows[-1][4]["reward_extra_info"]
    responses = []
    for index, (prompt, response, mask, advantages, *_) in enumerate(rows):
        written = advantages[mask.bool()]
        shown, mean = _cut(decode(prompt)) if index else None, float(written.mean())  # of no tokens: not a number
        advantage = mean if math.isfinite(mean) else None
        responses.append(Response(prompt=shown, text=_cut(decode(response)), tokens=len(written), advantage=advantage))
    values = {name: value for name, value in numbers(parts).items() if value and name != VERDICT_AT}
    reward = values.get("score", values.get("acc", 0.0))  # a reward function of the user's own may return one number
    return Sample(reward=reward, parts=values, feedback=_cut(str(parts.get(FEEDBACK, ""))), rows=responses)


def _cut(text: str) -> str:
    """The text; of a long one the beginning and the end. Half surrogates, which no file can have, are replaced."""
    text = text.encode("utf-8", "replace").decode()
    half = MOST_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return text if left_out <= 0 else f"{text[:half]}\n... ({left_out:,} characters) ...\n{text[-half:]}"
