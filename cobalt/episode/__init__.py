"""Conversations: prompt templates, turns, the thinking split and code extraction. No model, no judge."""

from cobalt.episode.chat_template import TemplateThinking
from cobalt.episode.program import extract_code, fence_around
from cobalt.episode.prompt_set import PromptSet, load_prompts
from cobalt.episode.thinking import split_thinking
from cobalt.episode.turns import (
    ALL_PUBLIC_PASSED,
    Message,
    TruncatedThinking,
    check_wording,
    first_messages,
    history_text,
    opening_messages,
    program_of,
)

__all__ = [
    "ALL_PUBLIC_PASSED",
    "Message",
    "PromptSet",
    "TemplateThinking",
    "TruncatedThinking",
    "check_wording",
    "extract_code",
    "fence_around",
    "first_messages",
    "history_text",
    "load_prompts",
    "opening_messages",
    "program_of",
    "split_thinking",
]
