"""Facts about a chat template that the rest of the project needs: its thinking switch, ends of its prompts and turns.

Collection (`cobalt.engine`), the counting of tokens (`cobalt.episode.token_count`) and training (veRL's
`data.apply_chat_template_kwargs`) must render the same prompt for the same conversation, and agree on where a response
begins and ends. Tokenizers are arguments; none is loaded here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cobalt.episode.thinking import CLOSE, OPEN
from cobalt.stage.errors import UserError

TemplateThinking = Literal["default", "on", "off"]
"""The template's switch `enable_thinking`. "default" does not pass it, so that the template's own default holds (paper;
Qwen3's template then lets the model think); "on" passes true, "off" false. Templates without the switch ignore it."""


Conversation = Sequence[Mapping[str, object]]
"""Messages with `role` and `content`."""

_ANSWER = "cobalt-answer"
"""A message that no template has in it."""


def template_arguments(thinking: TemplateThinking) -> dict[str, Any]:
    """The arguments of `apply_chat_template` that set the switch; {} for "default"."""
    return {} if thinking == "default" else {"enable_thinking": thinking == "on"}


def render_prompts(tokenizer: Any, conversations: Sequence[Conversation], arguments: Mapping[str, Any]) -> list[str]:
    """Conversations as prompts: the text that a tokenizer's chat template makes of them, generation prompt included.

    `arguments` are those of the template besides the messages. Raises UserError: the template cannot be used, refuses a
    conversation, or leaves a message's text out.
    """
    for roles in {tuple(str(message["role"]) for message in conversation) for conversation in conversations}:
        _check_shows_texts(tokenizer, roles, arguments)
    return [_render(tokenizer, conversation, arguments) for conversation in conversations]


def _check_shows_texts(tokenizer: Any, roles: tuple[str, ...], arguments: Mapping[str, Any]) -> None:
    """Render other texts; a template that expects contents to be lists of parts passes over them silently."""
    probe = [{"role": role, "content": f"{_ANSWER}-{index}."} for index, role in enumerate(roles)]
    text = _render(tokenizer, probe, arguments)
    for message in probe:
        if message["content"] not in text:
            raise UserError(
                f"the chat template of {_name(tokenizer)} leaves the text of a message of the role {message['role']!r}"
                " out of the prompt: give a copy of the tokenizer's folder with a chat_template.jinja that shows texts"
            )


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "")) or "the model"


def _render(tokenizer: Any, conversation: Conversation, arguments: Mapping[str, Any]) -> str:
    try:
        text: str = tokenizer.apply_chat_template(
            list(conversation), add_generation_prompt=True, tokenize=False, **arguments
        )
    except Exception as error:  # noqa: BLE001 - a template is a program of the model's authors, and raises anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the chat template of {_name(tokenizer)} refuses a conversation: {reason}") from None
    return text


def opened_thinking(prompt: str) -> str:
    """The end of a rendered prompt from `<think>` on, with the white space after it; "" if the prompt does not end so.

    R1-Distill's prompts end with the tag: the response then starts inside its thinking, and what the model generates
    does not contain the tag. Engines put this text at the head of the response, and training needs
    `cobalt.reward.RewardSettings.prompt_opens_thinking`.
    """
    length = len(prompt.rstrip())
    return prompt[length - len(OPEN) :] if prompt[:length].endswith(OPEN) else ""


def head_of_responses(tokenizer: Any, arguments: Mapping[str, Any]) -> str:
    """Thinking that a tokenizer's template opens in prompts (`opened_thinking`); arguments as for `render_prompts`."""
    return opened_thinking(_shortest_prompt(tokenizer, arguments))


def _shortest_prompt(tokenizer: Any, arguments: Mapping[str, Any]) -> str:
    [prompt] = render_prompts(tokenizer, [[{"role": "user", "content": "."}]], arguments)
    return prompt


def template_thinks(tokenizer: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a tokenizer's template, with these arguments, is one of a model that ends its thinking with `</think>`.

    It is if it opens the thinking in its prompts (R1-Distill), or deals with the tag anywhere (Qwen3, which takes the
    thinking out of earlier answers). It is not if its prompts end with a thinking that is closed (Qwen3 with
    `enable_thinking` off), or it has no such tag (SmolLM2, Llama 3, Qwen2.5-Coder). Raises UserError: as for
    `render_prompts`.
    """
    prompt = _shortest_prompt(tokenizer, arguments)
    if opened_thinking(prompt):
        return True
    return not prompt.rstrip().endswith(CLOSE) and CLOSE in tokenizer.get_chat_template()


def end_of_turn(tokenizer: Any, arguments: Mapping[str, Any]) -> int | None:
    """The token with which a response ends: the one that a tokenizer's template puts after an assistant's message.

    It need not be the tokenizer's own `eos_token`, which is the answer if the template ends its turns without a token,
    or refuses an assistant's message. None if there is no such token either.
    """
    turn = [{"role": "user", "content": "."}, {"role": "assistant", "content": _ANSWER}]
    default: int | None = tokenizer.eos_token_id
    try:
        text: str = tokenizer.apply_chat_template(turn, tokenize=False, **arguments)
    except Exception:  # noqa: BLE001 - whatever the template raises of a conversation that ends on an answer
        return default
    rest = text.rpartition(_ANSWER)[2].lstrip()
    ends = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    longest = max((token for token in ends if rest.startswith(token)), key=len, default=None)
    return default if longest is None else ends[longest]


def keeps_thinking_tags(tokenizer: Any) -> bool:
    """Whether `</think>` survives in a response that is decoded without special tokens, as veRL decodes it.

    True as well for a tokenizer that cannot write the tag at all.
    """
    ids = tokenizer.encode(f"{OPEN}.{CLOSE}", add_special_tokens=False)
    return CLOSE in tokenizer.decode(ids, skip_special_tokens=True) or CLOSE not in tokenizer.decode(ids)
