"""What a chat template is asked about thinking, in the same way wherever a conversation becomes a prompt.

Collection (`cobalt.engine`), the counting of tokens (`cobalt.conversation.token_count`) and training (veRL's
`data.apply_chat_template_kwargs`) must render the same prompt for the same conversation. Nothing is rendered here.
"""

from typing import Any, Literal

from cobalt.conversation.thinking import OPEN

TemplateThinking = Literal["default", "on", "off"]
"""The template's switch `enable_thinking`: not passed at all, so that the template's own default holds (paper; Qwen3's
template then lets the model think), or true, or false. Templates without the switch ignore it."""


def template_arguments(thinking: TemplateThinking) -> dict[str, Any]:
    """The arguments of `apply_chat_template` that the switch stands for; {} for "default"."""
    return {} if thinking == "default" else {"enable_thinking": thinking == "on"}


def opens_thinking(prompt: str) -> bool:
    """Whether a rendered prompt ends with `<think>`, as R1-Distill's do: the response then starts inside its thinking.

    The response alone does not show it: engines put the tag at its head, and training needs
    `cobalt.reward.RewardSettings.prompt_opens_thinking`.
    """
    return prompt.rstrip().endswith(OPEN)
