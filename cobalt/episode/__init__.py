"""Conversations: prompt templates, turns, the thinking split and code extraction. No model, no judge."""

from cobalt.episode.chat_template import TemplateThinking as TemplateThinking
from cobalt.episode.program import extract_code as extract_code
from cobalt.episode.program import fence_around as fence_around
from cobalt.episode.prompt_set import PromptSet as PromptSet
from cobalt.episode.prompt_set import load_prompts as load_prompts
from cobalt.episode.thinking import split_thinking as split_thinking
from cobalt.episode.turns import ALL_PUBLIC_PASSED as ALL_PUBLIC_PASSED
from cobalt.episode.turns import Message as Message
from cobalt.episode.turns import TruncatedThinking as TruncatedThinking
from cobalt.episode.turns import check_wording as check_wording
from cobalt.episode.turns import first_messages as first_messages
from cobalt.episode.turns import history_text as history_text
from cobalt.episode.turns import opening_messages as opening_messages
from cobalt.episode.turns import program_of as program_of
