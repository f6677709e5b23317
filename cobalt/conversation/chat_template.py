"""The chat template's thinking switch, set in the same way wherever a conversation becomes a prompt.

Collection (`cobalt.engine`), the counting of tokens (`cobalt.conversation.token_count`) and training (veRL's
`data.apply_chat_template_kwargs`) must render the same prompt for the same conversation. Nothing is rendered here.
"""

from typing import Any, Literal

from cobalt.conversation.thinking import OPEN

TemplateThinking = Literal["default", "on", "off"]
"""The template's switch `enable_thinking`. "default" does not pass it, so that the template's own default holds (paper;
Qwen3's template then lets the model think); "on" passes true, "off" false. Templates without the switch ignore it."""


def template_arguments(thinking: TemplateThinking) -> dict[str, Any]:
    """The arguments of `apply_chat_template` that set the switch; {} for "default"."""
    return {} if thinking == "default" else {"enable_thinking": thinking == "on"}


def opens_thinking(prompt: str) -> bool:
    """Whether a rendered prompt ends with `<think>`, as R1-Distill's do: the response then starts inside its thinking.

    A generated response does not contain the tag then: engines put it at the head of the response, and training needs
    `cobalt.reward.RewardSettings.prompt_opens_thinking`.
    """
    return prompt.rstrip().endswith(OPEN)
