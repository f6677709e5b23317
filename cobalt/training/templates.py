"""How responses begin and end under the policy's chat template, held against a training run's configuration.

The text of a response does not show either, so a wrong setting would go unnoticed: a reward would take code in a
thinking that was cut off for the program, or generation would go on to the length limit. The checks before a run
(`cobalt.training.checks`) and veRL's own processes ask here.
"""

from collections.abc import Iterator
from typing import Any

from cobalt.episode.chat_template import head_of_responses
from cobalt.episode.thinking import CLOSE
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.stage.errors import UserError
from cobalt.training.policy import architecture

_SETTING = "reward.custom_reward_function.reward_kwargs.prompt_opens_thinking"

REQUIRE_THINKING = "reward.custom_reward_function.reward_kwargs.require_thinking"
"""The setting that `choose_thinking` decides: `auto`, true or false."""


def opened_by_template(tokenizer: Any, config: Any) -> str:
    """What the chat template of the policy's tokenizer opens in its prompts (`head_of_responses`).

    Raises:
        UserError: the reward's setting in the run's configuration does not fit the template.
    """
    from omegaconf import OmegaConf

    arguments: Any = OmegaConf.to_container(config.data.apply_chat_template_kwargs)
    opened = head_of_responses(tokenizer, arguments)
    for error in _setting_errors("the policy", bool(opened), config):
        raise UserError(error)
    return opened


def template_errors(config: Any, counter: PromptTokenCounter) -> Iterator[str]:
    """What is wrong with a configuration for a policy with this chat template.

    Raises:
        UserError: the template refuses a conversation.
    """
    name = counter.model_name
    yield from _setting_errors(name, counter.opens_thinking(), config)
    if not counter.keeps_thinking_tags():
        yield (
            f"the tokenizer of {name} leaves out </think> when special tokens are, as veRL decodes responses: in a copy"
            ' of its tokenizer.json set "special": false for <think> and </think>'
        )
    end = counter.end_of_turn()
    if end is None:
        yield f"the tokenizer of {name} has no eos_token, so the policy could not learn to end a response"
    elif end[1] not in (stops := _stops(config.actor_rollout_ref.model.path, counter)):
        yield (
            f"the chat template of {name} ends a turn with {end[0]}, where generation would not stop: in a copy of the"
            f" model add {end[1]} to eos_token_id in generation_config.json (now {sorted(stops)})"
        )


def choose_thinking(config: Any) -> str:
    """Set whether the reward requires thinking (`cobalt.reward.RewardSettings.require_thinking`), where it is `auto`.

    It does if the policy's chat template is one of a model that thinks, if the first training prompt has `</think>` in
    it, and, as in the paper, if the tokenizer cannot be read. A continuation decides the same by the same files.

    Args:
        config: The whole configuration, checked, which is changed: its processes get true or false.

    Returns:
        A sentence for the user: which rule, and why.
    """
    from omegaconf import OmegaConf

    chosen = OmegaConf.select(config, REQUIRE_THINKING)
    why = f"{REQUIRE_THINKING} is set"
    if chosen == "auto":
        chosen, why = _thinking_of(config)
        OmegaConf.update(config, REQUIRE_THINKING, chosen)
    rule = "a response must have exactly one </think>" if chosen else "a response without thinking tags is well-formed"
    return f"reward: {rule}, because {why}"


def _thinking_of(config: Any) -> tuple[bool, str]:
    """Whether responses of a run should have a thinking, and the reason."""
    from omegaconf import OmegaConf
    from pyarrow import parquet

    model = config.actor_rollout_ref.model
    name = model.tokenizer_path or model.path
    arguments: Any = OmegaConf.to_container(config.data.apply_chat_template_kwargs)
    try:
        if PromptTokenCounter(name, arguments).thinks():
            return True, f"the chat template of {name} is one of a model that thinks"
    except UserError:
        return True, f"the chat template of {name} cannot be read here ({REQUIRE_THINKING}=false changes it)"
    with parquet.ParquetFile(config.data.train_files) as file:
        first = next(file.iter_batches(1, columns=["prompt"])).to_pylist()[0]["prompt"]
    if any(CLOSE in message["content"] for message in first):
        return True, f"the first prompt of {config.data.train_files} has the tag"
    return False, f"neither the chat template of {name} nor the first prompt shows a model that thinks"


def _setting_errors(name: str, opens: bool, config: Any) -> Iterator[str]:
    from omegaconf import OmegaConf

    if OmegaConf.select(config, _SETTING, default=opens) != opens:
        says = "ends its prompts with <think>" if opens else "does not end its prompts with <think>"
        yield f"the chat template of {name} {says}: set {_SETTING}={str(opens).lower()}"


def _stops(model: str, counter: PromptTokenCounter) -> set[int]:
    """The tokens at which vLLM stops: the tokenizer's own, and those that the model names."""
    from transformers import GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # the model has no generation_config.json
        named = getattr(architecture(model), "eos_token_id", None)
    stops = {counter.eos_token_id, *([named] if isinstance(named, int) else named or ())}
    return {stop for stop in stops if stop is not None}
