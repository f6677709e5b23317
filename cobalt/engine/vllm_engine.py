"""A vLLM engine in this process, on GPUs or CPUs: an `AsyncLLM`, whose model runs in a process of its own.

Requests of all callers are batched continuously, and each call returns when its own completions are finished.
Conversations are rendered by the model's chat template and sent as token ids, so that no special token is added twice.
vLLM is imported when the engine starts.
"""

import asyncio
import copy
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.engine.model_check import NO_TEMPLATE
from cobalt.engine.model_name import fingerprint, model_name
from cobalt.engine.startup import EngineOutput, start
from cobalt.engine.vllm_settings import VllmSettings, with_checked_model
from cobalt.episode import Message, TemplateThinking
from cobalt.episode.chat_template import (
    end_of_turn,
    head_of_responses,
    opened_thinking,
    render_prompts,
    template_arguments,
)
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError


class VllmEngine:
    """An `Engine`; an async context manager, which starts vLLM and stops it.

    Enter it in the main thread where signals must be able to end the start, and before processes are started that
    must not share descriptors with vLLM's.

    Args:
        settings: The model, and how it is run.
        log: File for the output of vLLM's process, which is removed after a clean end; None: this process's own output.

    Attributes:
        llm: vLLM's `AsyncLLM`.
        stops: Tokens that end a generation, besides those that vLLM knows.

    Raises UserError: the folder holds no model or no chat template.
    """

    def __init__(self, settings: VllmSettings, *, log: Path | None = None) -> None:
        self.settings = with_checked_model(settings)
        self._log = log
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        """Start the engine, which blocks the event loop until the model is loaded; see `cobalt.engine.startup.start`.

        Raises UserError also where the template of the model cannot be used.
        """
        await asyncio.sleep(0)  # raises where the task was cancelled before, because the start does not
        self._output = EngineOutput(self._log)
        self.llm, self._device, self._dtype = start(self.settings, self._output)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def _prepare(self) -> None:
        # vLLM's own tokenizer is used by the thread that renders the prompts of OpenAI's routes.
        self._tokenizer = copy.deepcopy(self.llm.get_tokenizer())
        if not getattr(self._tokenizer, "chat_template", True):  # some tokenizers bring a template of another kind
            raise UserError(NO_TEMPLATE.format(model=self.settings.model))
        head_of_responses(self._tokenizer, {})  # raises if the template cannot be used, before the first request
        # vLLM stops at the tokenizer's end token and at those of the model's generation_config.json, which need not
        # have the token with which the template ends a turn.
        end = end_of_turn(self._tokenizer, {})
        self.stops = [] if end is None else [end]
        self._limit: int = self.llm.model_config.max_model_len
        # A thread, so that rendering does not block the event loop; only one, because the tokenizer is not shared.
        self._renderer = ThreadPoolExecutor(max_workers=1)
        # After vLLM has loaded the model, so that one from the Hub is in the cache.
        model, folder = self.settings.model, Path(self.settings.model)
        self._description: dict[str, Any] = {
            "model": folder.resolve().name if folder.is_dir() else model,
            "dtype": self._dtype,
            "seed": self.settings.seed,
            "max_model_len": self._limit,
            "device": self._device,
            "name": model_name(model),
            **({"fingerprint": fingerprint(folder)} if folder.is_dir() else {}),
        }

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine. Its log stays if it had died."""
        died = self.llm.errored
        self.llm.shutdown()
        if not died:
            self._output.remove()

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call | None = None
    ) -> list[Completion]:
        """Draw completions; see `Engine.generate`. Raises UserError: as for `render`."""
        loop = asyncio.get_running_loop()
        tokens, opened = await loop.run_in_executor(
            self._renderer, render, self._tokenizer, list(conversation), settings.chat_template_thinking
        )
        free = self._limit - len(tokens)
        if free < 1:
            message = f"the conversation has {len(tokens)} tokens, the model takes {self._limit} with the response"
            return [
                Completion(text="", finish_reason="prompt_too_long", prompt_tokens=len(tokens), message=message)
            ] * settings.n
        # One request for each sample, as vLLM itself makes them of a request for n. It reports the cached tokens of a
        # request, and of a request for n those of one sample.
        number = next(self._numbers)
        settings = settings.model_copy(update={"max_tokens": min(settings.max_tokens, free)})
        return await asyncio.gather(
            *(self._complete_one(tokens, opened, settings, number, sample) for sample in range(settings.n))
        )

    async def _complete_one(
        self, tokens: list[int], opened: str, settings: GenerationSettings, number: int, sample: int
    ) -> Completion:
        """One sample of a call; samples of a call with a seed have seeds that follow one another."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        parameters = SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=None if settings.seed is None else settings.seed + sample,
            stop_token_ids=self.stops,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_special_tokens=False,
        )
        final = None
        prompt = TokensPrompt(prompt_token_ids=tokens)
        try:
            async for output in self.llm.generate(prompt, parameters, f"{number}-{sample}"):
                final = output
        except EngineDeadError as error:
            raise ServiceDown(f"vLLM's engine has died{self._output.failure()}: run the same command again") from error
        except EngineGenerateError as error:
            raise InfrastructureError(f"the engine failed: {error.__cause__ or error!r}") from error
        assert final is not None
        [output] = final.outputs
        if output.finish_reason not in ("stop", "length"):  # cut off, such as by the engine's end: not an answer
            raise InfrastructureError(f"the engine ended a completion early ({output.finish_reason})")
        return Completion(
            text=opened + without_end(self._tokenizer, output.text),
            finish_reason=output.finish_reason,
            prompt_tokens=len(tokens),
            completion_tokens=len(output.token_ids),
            cached_tokens=final.num_cached_tokens or 0,
        )

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide this engine's answers, and a model folder's fingerprint; see `Engine.describe`."""
        return self._description

    async def check_health(self) -> None:
        """Raise ServiceDown if the engine has died."""
        if self.llm.errored:
            raise ServiceDown(f"vLLM's engine has died{self._output.failure()}")


def without_end(tokenizer: Any, text: str) -> str:
    """A response without the end token; other special tokens stay, because thinking tags may be among them."""
    return text.removesuffix(getattr(tokenizer, "eos_token", None) or "")


def render(tokenizer: Any, conversation: list[Message], thinking: TemplateThinking) -> tuple[list[int], str]:
    """Token ids of a conversation as a prompt, and what the template has opened in it (`opened_thinking`).

    Raises UserError: the template refuses the conversation, or leaves a message's text out.
    """
    [text] = render_prompts(tokenizer, [conversation], template_arguments(thinking))
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens, opened_thinking(text)
