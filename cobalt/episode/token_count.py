"""Count the tokens of a conversation as a prompt, with a model's own chat template.

Only a tokenizer is loaded, never a model's weights. transformers is imported when a counter is made, not before.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cobalt.episode.chat_template import Conversation, render_prompts
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import made_by
from cobalt.stage.run import Flag

logger = logging.getLogger(__name__)

PolicyName = Annotated[
    str | None,
    Flag(
        "model",
        "--model_name",
        text="The policy, a Hugging Face id or a folder; its chat template decides how long a prompt is. Default: the"
        " model of the Hub that wrote the trajectories, or Qwen/Qwen3-8B (paper) where no manifest says which; a"
        " message names it.",
    ),
]

PAPER_POLICY = "Qwen/Qwen3-8B"
"""The model whose tokenizer measures prompts in the authors' scripts."""


class NoChatTemplate(UserError):
    """A tokenizer has no chat template, so that the model cannot be sent conversations."""


class PromptTokenCounter:
    """Counts the `input_ids` of prompts as the model will get them: chat template and generation prompt.

    Attributes:
        model_name: The model whose tokenizer counts.
        tokenizer: Its tokenizer.
        arguments: Of the chat template, besides the messages.
        fingerprint: A digest of the vocabulary, the template and its arguments, the same wherever the files lie.
    """

    def __init__(self, model_name: str, template_arguments: Mapping[str, Any] | None = None) -> None:
        """Load the tokenizer of a model (`load_tokenizer`); NoChatTemplate: it has no chat template.

        `template_arguments` are those of the chat template besides the messages
        (`cobalt.episode.chat_template.template_arguments`), the same as in collection and training.
        """
        self.model_name = model_name
        self.tokenizer = load_tokenizer(model_name)
        template = self.tokenizer.chat_template
        if not template:
            raise NoChatTemplate(
                f"the tokenizer of {model_name} has no chat template: give an instruction-tuned model, or a copy of"
                " the tokenizer's folder with a chat_template.jinja in it"
            )
        self.arguments = dict(template_arguments or {})
        content = repr(sorted(self.tokenizer.get_vocab().items())) + repr(template)
        if self.arguments:
            content += repr(sorted(self.arguments.items()))
        self.fingerprint = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]

    def count(self, conversations: Sequence[Conversation]) -> list[int]:
        """The number of tokens of each conversation, generation prompt included; raises as `render_prompts`."""
        if not conversations:
            return []
        return self._count_texts(render_prompts(self.tokenizer, conversations, self.arguments))

    def _count_texts(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def count_responses(self, responses: Sequence[str]) -> list[int]:
        """The number of tokens of each response as the model writes it, with its end; raises as `check_end`."""
        self.check_end()
        return [tokens + 1 for tokens in self._count_texts(responses)] if responses else []

    def check_end(self) -> None:
        """Raise UserError if the tokenizer has no token that marks the end of a text."""
        if self.tokenizer.eos_token_id is None:
            raise UserError(
                f"the tokenizer of {self.model_name} has no eos_token, so the policy could not learn to end a response:"
                " give another model, or set eos_token in a copy of its tokenizer_config.json"
            )

    def count_fitting(self, chains: Sequence[Sequence[Conversation]], limit: int) -> list[int]:
        """For each chain of conversations, how many of its first ones are at most `limit` tokens long.

        In a chain each conversation continues the one before it. A longer conversation never has fewer tokens, so the
        last of each chain is measured first, and most chains are measured once.
        """
        fitting = [len(chain) for chain in chains]
        undecided = [index for index, chain in enumerate(chains) if chain]
        while undecided:
            lengths = self.count([chains[index][fitting[index] - 1] for index in undecided])
            too_long = [index for index, length in zip(undecided, lengths, strict=True) if length > limit]
            for index in too_long:
                fitting[index] -= 1
            undecided = [index for index in too_long if fitting[index]]
        return fitting


def recorded_policy(source: Path) -> str:
    """The model by whose tokenizer prompts are measured where the user names none; a message says which.

    It is the model of the Hub that wrote the trajectories of a file, and where no manifest says which, the paper's.
    Raises UserError: the model lies in a folder, of which manifests have the name alone, or is a provider's.
    """
    engine: Mapping[str, Any] = next((made["engine"] for made in made_by(source) if "engine" in made), {})
    if "model_name" in engine or "fingerprint" in engine:
        raise UserError(
            f"the trajectories of {source} are of the model {engine.get('model') or engine['model_name']!r}, which"
            " cannot be found by this name: name the policy, whose tokenizer measures prompts, with --model"
        )
    model: str = engine.get("model") or PAPER_POLICY
    logger.info("without --model prompts are measured by the tokenizer of %s (of %s, or the paper's)", model, source)
    return model


def load_tokenizer(model_name: str) -> Any:
    """The tokenizer of a model, a Hugging Face id or a folder that holds tokenizer files.

    Raises UserError: there is no such model, or it cannot be fetched.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError("counting tokens needs transformers: scripts/setup.sh --profile cpu installs it") from None
    # Without a network the library warns of every attempt; the error raised below says all that is needed.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name)
        # The library makes a tokenizer of a folder without a vocabulary, too.
        reason = "" if tokenizer("a")["input_ids"] else "it makes no token of a text"
    except Exception as error:  # noqa: BLE001 - broken files make the library raise whatever their reading ran into
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if reason:
        raise UserError(
            f"cannot load the tokenizer of {model_name!r}: give a model of the Hub, or a folder with tokenizer.json,"
            f" tokenizer_config.json and chat template ({reason})"
        )
    return tokenizer
