"""Divergence of a policy from another one: `python -m studies.divergence`.

Offline training validates its own policy with KL(start || policy) (`validation/kl`, docs/offline_rl.md). This command
estimates the same of any two policies that share a tokenizer, for instance of a policy that online training made. Their
log-probs are computed in float32, one response at a time, on the first GPU if there is one. That is meant for a file of
validation, and not for speed.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import tyro

from cobalt.episode.chat_template import TemplateThinking
from cobalt.episode.token_count import load_tokenizer
from cobalt.reward.offline import OfflineSettings
from cobalt.stage.atomic import replace_text
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.manifest import open_manifest
from cobalt.training.offline_tokens import Row, load_groups
from cobalt.training.policy import policy_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Estimate KL(start || policy) in nats a token on responses that the starting policy sampled at temperature 1."""

    start: str
    """The starting policy: a folder or a hub name."""
    model: str
    """The policy: a folder or a hub name."""
    groups: Path
    """The responses: validation.jsonl of preproc/preproc_judged.py."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The result (JSON)."""
    chat_template_thinking: TemplateThinking = "default"
    """The chat template's thinking switch, the same as when the groups were made."""


def divergence(start: str, model: str, groups: Path, thinking: TemplateThinking = "default") -> tuple[float, int, int]:
    """KL(start || policy) in nats a token (see `Arguments`), and how many responses and response tokens it is of.

    It is the mean over all response tokens of exp(l - l0) - (l - l0) - 1, where l and l0 are a token's log-probs under
    the policy and under the starting policy. On samples of the starting policy at temperature 1 it is unbiased.

    Raises UserError if a policy or the file cannot be read, or the two policies' tokenizers make different tokens.
    """
    policies = [str(policy_path(policy)) for policy in (start, model)]
    rows, others = (
        [
            row
            for group in load_groups(groups, load_tokenizer(policy), OfflineSettings(), 32768, thinking)
            for row in group
        ]
        for policy in policies
    )
    for one, other in zip(rows, others, strict=True):
        if not (np.array_equal(one.prompt, other.prompt) and np.array_equal(one.response, other.response)):
            raise UserError(f"the tokenizers of {start} and {model} make different tokens of {groups}")
    before, after = (_log_probs(policy, rows) for policy in policies)
    change = after - before
    return float((np.exp(change) - change - 1).mean()), len(rows), len(change)


def _log_probs(policy: str, rows: Iterable[Row]) -> npt.NDArray[np.float64]:
    """The log-probs of all response tokens, one response after the other."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).to(device).eval()
    except (OSError, ValueError) as error:
        raise UserError(f"{policy} cannot be loaded as a language model: {error}") from None
    chosen = []
    with torch.inference_mode():
        for row in rows:
            tokens = torch.from_numpy(np.concatenate((row.prompt, row.response)).astype(np.int64)).to(device)
            # The logits at a token are about the token after it, and nothing is wanted about the prompt's.
            logits = model(tokens[None], logits_to_keep=len(row.response) + 1).logits[0, :-1]
            log_probs = logits.log_softmax(-1).gather(1, tokens[len(row.prompt) :, None])[:, 0]
            chosen.append(log_probs.double().cpu().numpy())
    return np.concatenate(chosen)


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    result, groups = arguments.output_file, arguments.groups
    settings = {name: getattr(arguments, name) for name in ("start", "model", "chat_template_thinking")}
    check_files([groups], [result])
    open_manifest(result, {"stage": "divergence", **settings}, [groups])
    kl, responses, tokens = divergence(arguments.start, arguments.model, groups, arguments.chat_template_thinking)
    replace_text(result, json.dumps({"kl": kl, "responses": responses, "tokens": tokens}) + "\n")
    logger.info("KL %.4f nats a token over %d responses (%d tokens): %s", kl, responses, tokens, result)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
