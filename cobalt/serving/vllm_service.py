"""A vLLM engine as a Ray Serve app, on GPUs or CPUs; `vllm_engine_actor.py` is its entry point.

Each replica is one `AsyncLLM`: requests of all callers are batched continuously, and each call returns when its own
completions are finished. Conversations are rendered by the model's chat template and sent as token ids, so that no
special token is added twice. The module imports Ray, and vLLM only inside a replica.
"""

import asyncio
import copy
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field, ValidationError
from ray import serve
from ray.serve.schema import LoggingConfig

from cobalt.engine.base import Completion, GenerationSettings
from cobalt.engine.model_check import NO_TEMPLATE, check_folder, model_path
from cobalt.engine.model_name import fingerprint, model_name
from cobalt.engine.startup import EngineOutput
from cobalt.engine.vllm_engine import render
from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX, default_dtype
from cobalt.episode import Message
from cobalt.episode.chat_template import (
    end_of_turn,
    head_of_responses,
)
from cobalt.serving import cluster
from cobalt.serving.engine_settings import EngineServiceSettings
from cobalt.serving.http_guard import Guard, Refused, field_error, guarded_api, within
from cobalt.serving.openai_routes import OpenAIRoutes
from cobalt.stage.environment import passed_on
from cobalt.stage.errors import InfrastructureError, UserError, last_line
from cobalt.stage.settings import read_settings

logger = logging.getLogger(__name__)


class GenerateRequest(GenerationSettings):
    """The body of an HTTP request: a conversation and the settings for its continuation."""

    model_config = ConfigDict(allow_inf_nan=False)

    messages: list[dict[str, str]] = Field(min_length=1)
    n: int = Field(1, ge=1)


_api = guarded_api()


class VllmEngineActor:
    """One replica with one engine. It starts only on a private cluster or if `allow_open_cluster` is set."""

    def __init__(self, settings: EngineServiceSettings, on_gpu: bool) -> None:
        self._private = cluster.require_private(allow_open=settings.allow_open_cluster)
        self._settings = settings
        self._device = "gpu" if on_gpu else "cpu"
        self._guard = Guard.of(settings, ENVIRONMENT_PREFIX)
        self._engine = _start_engine(settings, on_gpu=on_gpu)
        # vLLM's own is used by the thread that renders the prompts of OpenAI's routes.
        self._tokenizer = copy.deepcopy(self._engine.get_tokenizer())
        if not getattr(self._tokenizer, "chat_template", True):  # some tokenizers bring a template of another kind
            raise UserError(NO_TEMPLATE.format(model=settings.model))
        head_of_responses(self._tokenizer, {})  # raises if the template cannot be used, before the first request
        # vLLM stops at the tokenizer's end token and at those of the model's generation_config.json, which need not
        # have the token with which the template ends a turn.
        end = end_of_turn(self._tokenizer, {})
        self._stops = [] if end is None else [end]
        self._limit: int = self._engine.model_config.max_model_len
        self._numbers = itertools.count()
        # A thread, so that rendering does not block the event loop; only one, because the tokenizer is not shared.
        self._renderer = ThreadPoolExecutor(max_workers=1)
        folder = Path(settings.model)
        # After vLLM has loaded the model, so that one from the Hub is in the cache.
        self._name = settings.served_model_name or model_name(settings.model)
        self._openai = OpenAIRoutes(
            self._engine,
            [self._name, folder.name if folder.is_dir() else settings.model],
            self._stops,
            self._guard,
            settings.max_completions,
            settings.max_request_seconds,
        )

    async def generate(self, conversation: Sequence[Message], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Continue one conversation; returns `n` completions as mappings (see `Completion`)."""
        wanted = GenerationSettings(**settings)
        loop = asyncio.get_running_loop()
        tokens, opened = await loop.run_in_executor(
            self._renderer, render, self._tokenizer, list(conversation), wanted.chat_template_thinking
        )
        room = self._limit - len(tokens)
        if room < 1:
            message = f"the conversation has {len(tokens)} tokens, the model takes {self._limit} with the response"
            completion = Completion(
                text="", finish_reason="prompt_too_long", prompt_tokens=len(tokens), message=message
            )
            return [completion.model_dump()] * wanted.n
        # One request for each sample, as vLLM itself makes them of a request for n. It reports the cached tokens of a
        # request, and of a request for n those of one sample.
        number = next(self._numbers)
        completions = await asyncio.gather(
            *(
                self._complete_one(tokens, wanted, min(wanted.max_tokens, room), number, sample)
                for sample in range(wanted.n)
            )
        )
        return [completion | {"text": opened + completion["text"]} for completion in completions]

    async def _complete_one(
        self, tokens: list[int], wanted: GenerationSettings, max_tokens: int, number: int, sample: int
    ) -> dict[str, Any]:
        """One sample of a call; samples of a call with a seed have seeds that follow one another."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            max_tokens=max_tokens,
            seed=None if wanted.seed is None else wanted.seed + sample,
            stop_token_ids=self._stops,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_special_tokens=False,
        )
        final = None
        prompt = TokensPrompt(prompt_token_ids=tokens)
        async for output in self._engine.generate(prompt, parameters, f"{number}-{sample}"):
            final = output
        assert final is not None
        [output] = final.outputs
        return {
            "text": self._clean(output.text),
            "finish_reason": output.finish_reason,
            "prompt_tokens": len(tokens),
            "completion_tokens": len(output.token_ids),
            "cached_tokens": final.num_cached_tokens or 0,
            "message": "",
        }

    def describe(self) -> dict[str, Any]:
        """The settings that decide this engine's answers, its device, and the model's name (`name`).

        The description has a fingerprint too if the model is a folder, and `"private": false` on an open cluster.
        """
        decisive = self._settings.model_dump(include={"model", "dtype", "seed"})
        decisive |= {"max_model_len": self._limit, "device": self._device, "name": self._name}
        folder = Path(self._settings.model)
        if folder.is_dir():
            decisive |= {"model": folder.name, "fingerprint": fingerprint(folder)}
        return decisive if self._private else decisive | {"private": False}

    async def check_health(self) -> None:
        """Raise if the engine has died, so that Serve replaces the replica."""
        await self._engine.check_health()

    @_api.post("/")
    async def generate_over_http(self, request: Request) -> JSONResponse:
        """`POST` a `GenerateRequest` as JSON; the answer has `responses` and the full `completions`."""
        async with within(self._settings.max_request_seconds):
            payload = await self._guard.read(request)
            if not isinstance(payload, dict):
                raise Refused(400, "the body must be one JSON object")
            try:
                body = GenerateRequest.model_validate(payload)
            except ValidationError as error:
                raise field_error(error) from None
            if body.n > self._settings.max_completions:
                raise UserError(f"field 'n': more than {self._settings.max_completions} (max_completions)")
            messages: Any = body.messages
            completions = await self.generate(messages, body.model_dump(exclude={"messages"}))
        return JSONResponse({"responses": [item["text"] for item in completions], "completions": completions})

    @_api.get("/v1/models")
    async def models_over_http(self, request: Request) -> Response:
        """The one model that is served, in OpenAI's form."""
        return await self._openai.models(request)

    @_api.post("/v1/completions")
    async def completions_over_http(self, request: Request) -> Response:
        """Continue prompts, in OpenAI's form."""
        return await self._openai.completions(request)

    @_api.post("/v1/chat/completions")
    async def chat_over_http(self, request: Request) -> Response:
        """Continue a conversation, in OpenAI's form."""
        return await self._openai.chat(request)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.shutdown()

    def _clean(self, text: str) -> str:
        """Remove the end-of-turn token; other special tokens stay, because thinking tags may be among them."""
        end = self._tokenizer.eos_token
        return text.removesuffix(end) if end else text


def _start_engine(settings: EngineServiceSettings, *, on_gpu: bool) -> Any:
    """Start vLLM, an `AsyncLLM`; where it fails, the message has vLLM's first error."""
    options: dict[str, Any] = {}
    if on_gpu:
        options["gpu_memory_utilization"] = settings.gpu_memory_utilization
        # vLLM 0.24 samples with FlashInfer, whose kernel is compiled when an engine starts: by nvcc, of a CUDA toolkit,
        # which a GPU's node need not have.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    else:
        # vLLM's CPU build reads these when it is imported and when it starts its workers.
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_cache_gib)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ["OMP_NUM_THREADS"] = str(settings.cpu_threads)
        # vLLM 0.28 rewinds a request's own random generator after each chunk of a prompt, which a CPU generator
        # cannot do. Without chunks there is nothing to rewind.
        options["enable_chunked_prefill"] = False
        # Attention computes whole blocks, and prompts share whole blocks. vLLM's own choice for CPUs is 128 tokens;
        # its kernels for them want multiples of 32.
        options["block_size"] = 32
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    if not on_gpu and settings.tensor_parallel_size == 1:
        # The class and not its name "uni", which vLLM changes to "mp" on a CPU. That would start a worker process, and
        # the engine's process would use a whole core to wait for it.
        from cobalt.engine.vllm_executor import BoundExecutor

        options["distributed_executor_backend"] = BoundExecutor
    output = EngineOutput(None)
    arguments = AsyncEngineArgs(
        model=settings.model,
        tensor_parallel_size=settings.tensor_parallel_size,
        dtype=settings.dtype or "auto",
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        enforce_eager=not on_gpu if settings.enforce_eager is None else settings.enforce_eager,
        trust_remote_code=settings.trust_remote_code,
        seed=settings.seed,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **options,
    )
    try:
        return AsyncLLM.from_engine_args(arguments)
    except RuntimeError as error:
        raise InfrastructureError(f"vLLM's engine did not start{output.failure()}") from error


# Not a decorator: Ray would then send the class to replicas by value, without the names that the module defines after
# the class. Under a name of its own, the class is imported by the replicas.
_Ingress = serve.ingress(_api)(VllmEngineActor)


def _gpus_of_nodes() -> list[float]:
    """GPUs of each node of the cluster, which this process joins; without one, it starts that of `serve run`."""
    import ray
    from ray.exceptions import AuthenticationError

    if not ray.is_initialized():  # `serve run` would do so only after the app is built
        address = cluster.running_cluster()
        try:
            ray.init(address=address or "local", namespace="serve")
        except (ConnectionError, AuthenticationError) as error:
            said = last_line(str(error))
            raise InfrastructureError(f"the Ray cluster at {address} cannot be joined ({said})") from None
    return [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]


def check_gpus(replicas: int, tensor_parallel: int, nodes: Sequence[float]) -> None:
    """Check that a cluster has the GPUs for an app, for which Serve would otherwise wait without end.

    GPUs that another program holds count: Serve waits until they are free.

    Args:
        replicas: How many engines.
        tensor_parallel: GPUs of one engine, which must be on one node.
        nodes: GPUs of each node.

    Raises:
        UserError: there are too few.
    """
    possible = sum(int(gpus // tensor_parallel) for gpus in nodes)
    if possible >= replicas:
        return
    counts = " + ".join(f"{gpus:g}" for gpus in nodes if gpus) or "none"
    raise UserError(
        f"num_replicas={replicas} x tensor_parallel_size={tensor_parallel} needs {replicas * tensor_parallel} GPUs,"
        f" {tensor_parallel} on one node for each replica, and the nodes have {counts}: lower one of the two settings"
    )


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """Build the app from `key=value` arguments, `COBALT_VLLM_*` variables and an optional settings file.

    Raises:
        UserError: a setting is unknown or has a bad value, the model cannot be found or has no chat template, the
            cluster is not private, or it has too few GPUs.
        InfrastructureError: the cluster does not answer.
    """
    settings = read_settings(EngineServiceSettings, arguments, os.environ, ENVIRONMENT_PREFIX)
    path = model_path(settings.model)
    if path is not None:
        check_folder(path)
    cluster.require_private(allow_open=settings.allow_open_cluster)
    if path is not None:
        # Replicas do not run in this process's working folder.
        name = settings.served_model_name or model_name(settings.model)
        settings = settings.model_copy(update={"model": str(path.resolve()), "served_model_name": name})
    nodes = [] if settings.device == "cpu" else _gpus_of_nodes()
    on_gpu = settings.device == "gpu" or any(nodes)
    if on_gpu:
        check_gpus(settings.num_replicas, settings.tensor_parallel_size, nodes)
    settings = settings.model_copy(update={"dtype": settings.dtype or default_dtype(on_gpu=on_gpu)})
    resources: dict[str, Any] = {"num_cpus": 0.1, "runtime_env": {"env_vars": passed_on(os.environ)}}
    if on_gpu:
        resources["num_gpus"] = settings.tensor_parallel_size
    deployment = serve.deployment(
        name="VllmEngineActor",
        num_replicas=settings.num_replicas,
        max_ongoing_requests=settings.max_ongoing_requests,
        max_constructor_retry_count=1,  # what keeps vLLM from starting does so again, a minute later
        ray_actor_options=resources,
        health_check_timeout_s=120,
        graceful_shutdown_wait_loop_s=0.1,  # Serve's 2 s pass even if no request is left
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )(_Ingress)
    return deployment.bind(settings, on_gpu)
