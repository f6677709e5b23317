"""Which engine a model's name asks for: vLLM in this process, or a provider that LiteLLM knows."""

from cobalt.engine.model_check import model_path
from cobalt.stage.errors import UserError
from cobalt.stage.service_flags import EngineKind


def kind_of(model: str) -> EngineKind:
    """The kind of engine that has a model.

    A folder is for vLLM, and so is a hub name whose owner is not a provider of LiteLLM. A name without an owner, and
    one whose owner is a provider, are LiteLLM's.

    Raises:
        UserError: the owner is a provider, and this machine's cache of the Hub has the model.
    """
    if model_path(model) is not None:
        return "vllm"
    owner, slash, _ = model.partition("/")
    if not slash:
        return "litellm"
    try:
        from cobalt.engine.provider_access import import_litellm

        providers = {str(getattr(provider, "value", provider)) for provider in import_litellm().provider_list}
    except UserError:  # LiteLLM is not installed
        return "vllm"
    if owner not in providers:
        return "vllm"
    if _in_cache(model):
        raise UserError(
            f"--model {model}: this machine has a model of this name, and {owner} is a provider of LiteLLM: give"
            " --engine_kind vllm or --engine_kind litellm"
        )
    return "litellm"


def _in_cache(model: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError:  # the name of a provider's model with more than one slash
        return False
