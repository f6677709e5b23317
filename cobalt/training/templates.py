"""Beginning and end of responses under the policy's chat template, held against a training run's configuration.

The text of a response does not show either, so a wrong setting would go unnoticed: a reward would take code in a
thinking that was cut off for the program, or generation would go on to the length limit.
"""

from collections.abc import Iterator
from typing import Any

from cobalt.episode.chat_template import end_of_turn, head_of_responses, keeps_thinking_tags, template_thinks
from cobalt.episode.thinking import CLOSE
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.stage.errors import UserError
from cobalt.training.policy import architecture

_SETTING = "reward.custom_reward_function.reward_kwargs.prompt_opens_thinking"

REQUIRE_THINKING = "reward.custom_reward_function.reward_kwargs.require_thinking"
"""The setting that `choose_thinking` decides: `auto`, true or false."""


def prompt_counter(config: Any) -> PromptTokenCounter:
    """The policy's tokenizer and its template's arguments in a configuration (UserError: it cannot be used)."""
    model = config.actor_rollout_ref.model
    return PromptTokenCounter(model.tokenizer_path or model.path, dict(config.data.apply_chat_template_kwargs))


def opened_by_template(tokenizer: Any, config: Any) -> str:
    """Text that the policy's chat template opens in its prompts (UserError: the reward's setting does not fit that)."""
    from omegaconf import OmegaConf

    opened = head_of_responses(tokenizer, dict(config.data.apply_chat_template_kwargs))
    if OmegaConf.select(config, _SETTING, default=bool(opened)) != bool(opened):
        says = "ends its prompts with <think>" if opened else "does not end its prompts with <think>"
        raise UserError(f"the policy's chat template {says}: set {_SETTING}={str(bool(opened)).lower()}")
    return opened


def template_errors(config: Any, counter: PromptTokenCounter) -> Iterator[str]:
    """Errors of a configuration for a policy with this chat template; UserError as `opened_by_template`."""
    name, tokenizer = counter.model_name, counter.tokenizer
    opened_by_template(tokenizer, config)
    if not keeps_thinking_tags(tokenizer):
        yield (
            f"the tokenizer of {name} leaves out </think> when special tokens are, as veRL decodes responses: in a copy"
            ' of its tokenizer.json set "special": false for <think> and </think>'
        )
    end = end_of_turn(tokenizer, counter.arguments)
    if end is None:
        yield f"the tokenizer of {name} has no eos_token, so the policy could not learn to end a response"
    elif end not in (stops := _stops(config.actor_rollout_ref.model.path, tokenizer)):
        yield (
            f"the chat template of {name} ends a turn with {tokenizer.convert_ids_to_tokens(end)}, where generation"
            f" would not stop: in a copy of the model add {end} to eos_token_id in generation_config.json (now"
            f" {sorted(stops)})"
        )


def choose_thinking(config: Any) -> str:
    """Set whether the reward requires thinking (`cobalt.reward.RewardSettings.require_thinking`), where it is `auto`.

    It does if the policy's chat template is one of a model that thinks, if the first training prompt has `</think>` in
    it, and, as in the paper, if the tokenizer cannot be read. A continuation decides the same by the same files.
    Returns a sentence for the user: which rule, and why.
    """
    from omegaconf import OmegaConf
    from pyarrow import parquet

    chosen, why = OmegaConf.select(config, REQUIRE_THINKING), f"{REQUIRE_THINKING} is set"
    if chosen == "auto":
        try:
            counter = prompt_counter(config)
            with parquet.ParquetFile(config.data.train_files) as file:
                [first] = next(file.iter_batches(1, columns=["prompt"])).to_pylist()
            tags = [CLOSE in message["content"] for message in first["prompt"]]
            chosen = template_thinks(counter.tokenizer, counter.arguments) or any(tags)
            has = "has" if chosen else "lacks"
            why = f"the chat template of {counter.model_name} or the first prompt {has} the tag"
        except UserError as error:
            chosen, why = True, str(error)
        OmegaConf.update(config, REQUIRE_THINKING, chosen)
    rule = "a response must have exactly one </think>" if chosen else "a response without thinking tags is well-formed"
    return f"reward: {rule}, because {why}"


def _stops(model: str, tokenizer: Any) -> set[int]:
    """The tokens at which vLLM stops: the tokenizer's own, and those that the model names."""
    from transformers import GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # the model has no generation_config.json
        named = getattr(architecture(model), "eos_token_id", None)
    stops = {tokenizer.eos_token_id, *([named] if isinstance(named, int) else named or ())}
    return {stop for stop in stops if stop is not None}
