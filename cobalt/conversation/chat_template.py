"""What the rest of the project must know of a chat template: its thinking switch, how its prompts and turns end.

Collection (`cobalt.engine`), the counting of tokens (`cobalt.conversation.token_count`) and training (veRL's
`data.apply_chat_template_kwargs`) must render the same prompt for the same conversation, and agree on where a response
begins and ends. Tokenizers are arguments; none is loaded here.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jinja2

from cobalt.conversation.thinking import CLOSE, OPEN

TemplateThinking = Literal["default", "on", "off"]
"""The template's switch `enable_thinking`. "default" does not pass it, so that the template's own default holds (paper;
Qwen3's template then lets the model think); "on" passes true, "off" false. Templates without the switch ignore it."""


_ANSWER = "cobalt-answer"
"""A message that no template has in it."""


def template_arguments(thinking: TemplateThinking) -> dict[str, Any]:
    """The arguments of `apply_chat_template` that set the switch; {} for "default"."""
    return {} if thinking == "default" else {"enable_thinking": thinking == "on"}


def opened_thinking(prompt: str) -> str:
    """The end of a rendered prompt from `<think>` on, with the white space after it; "" if the prompt does not end so.

    R1-Distill's prompts end with the tag: the response then starts inside its thinking, and what the model generates
    does not contain the tag. Engines put this text at the head of the response, and training needs
    `cobalt.reward.RewardSettings.prompt_opens_thinking`.
    """
    length = len(prompt.rstrip())
    return prompt[length - len(OPEN) :] if prompt[:length].endswith(OPEN) else ""


def head_of_responses(tokenizer: Any, arguments: Mapping[str, Any]) -> str:
    """What a tokenizer's template opens in its prompts (`opened_thinking`), with these arguments of the template.

    Raises:
        jinja2.TemplateError: the template refuses a conversation of one user message.
    """
    message = {"role": "user", "content": "."}
    return opened_thinking(
        tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True, **arguments)
    )


def end_of_turn(tokenizer: Any, arguments: Mapping[str, Any]) -> int | None:
    """The token with which a response ends: the one that a tokenizer's template puts after an assistant's message.

    It need not be the tokenizer's own `eos_token`, which is the answer if the template ends its turns without a token,
    or refuses an assistant's message. None if there is no such token either.
    """
    turn = [{"role": "user", "content": "."}, {"role": "assistant", "content": _ANSWER}]
    default: int | None = tokenizer.eos_token_id
    try:
        text: str = tokenizer.apply_chat_template(turn, tokenize=False, **arguments)
    except jinja2.TemplateError:
        return default
    rest = text.rpartition(_ANSWER)[2].lstrip()
    tokens = {str(token): place for place, token in tokenizer.added_tokens_decoder.items()}
    return max(
        ((len(token), place) for token, place in tokens.items() if rest.startswith(token)), default=(0, default)
    )[1]


def keeps_thinking_tags(tokenizer: Any) -> bool:
    """Whether `</think>` survives in a response that is decoded without special tokens, as veRL decodes it.

    True as well for a tokenizer that cannot write the tag at all.
    """
    ids = tokenizer.encode(f"{OPEN}.{CLOSE}", add_special_tokens=False)
    return CLOSE in tokenizer.decode(ids, skip_special_tokens=True) or CLOSE not in tokenizer.decode(ids)
