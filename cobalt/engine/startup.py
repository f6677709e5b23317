"""The start of vLLM's `AsyncLLM`: its variables, its output, and what ends or explains a start that fails.

vLLM's engine runs in a process of its own, which shares this one's standard output and error. It writes its traceback
there, and this process only learns that the engine has died ("see root cause above").
"""

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import ValidationError

from cobalt.engine.vllm_process import PARENT, EarlyProcess
from cobalt.engine.vllm_settings import VllmSettings, default_dtype, threads_for
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import InfrastructureError, UserError

logger = logging.getLogger(__name__)

Device = Literal["cpu", "gpu"]

_ERROR = re.compile(r"(?:^|[\s|])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)): (\S.*)$")
_SAYS_NOTHING = ("Engine core initialization failed", "WorkerProc initialization failed")
_LONGEST = 2**20


class EngineOutput:
    """Output of the engine's process: a file `log`, which is made anew, or (None) this process's own output."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        # Ray's workers and the children of `cobalt serve` have a file as their standard error.
        self._path = Path("/proc/self/fd/2").resolve() if log is None else log
        self._start = 0
        if log is None and self._path.is_file():
            self._start = self._path.stat().st_size

    @contextlib.contextmanager
    def redirected(self) -> Iterator[None]:
        """Let this process, and those that it starts meanwhile, write into the file."""
        if self.log is None:
            yield
            return
        sys.stdout.flush()
        own = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
        file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        for descriptor, _ in own:
            os.dup2(file, descriptor)
        os.close(file)
        try:
            yield
        finally:
            sys.stdout.flush()
            for descriptor, copy in own:
                os.dup2(copy, descriptor)
                os.close(copy)

    def take_logs(self) -> None:
        """Let what vLLM logs in this process go to the file too, and not to the terminal."""
        if self.log is not None:
            logging.getLogger("vllm").handlers = [logging.FileHandler(self.log)]

    def remove(self) -> None:
        """Remove the file."""
        if self.log is not None:
            self.log.unlink(missing_ok=True)

    def failure(self) -> str:
        """The first error that the engine has written, and the file's name, as the end of a sentence; "" without."""
        said = ""
        if self._path.is_file():
            with self._path.open("rb") as handle:
                handle.seek(self._start)
                cause = first_error(handle.read(_LONGEST).decode(errors="replace"))
            said = f": {cause}" if cause else ""
        return said if self.log is None else f"{said} (its output is in {self.log})"


def first_error(said: str) -> str:
    """The exception that the first traceback in a log ends with, as "Type: message"; "" if there is none.

    Exceptions that only say that another process failed are passed over.
    """
    _, _, tracebacks = said.partition("Traceback (most recent call last):")
    for line in tracebacks.splitlines():
        error = _ERROR.search(line.rstrip())
        if error and not error[2].startswith(_SAYS_NOTHING):
            return f"{error[1].rpartition('.')[2]}: {error[2]}"
    return ""


def start(settings: VllmSettings, output: EngineOutput) -> tuple[Any, Device, str]:
    """Start an engine: vLLM's `AsyncLLM`, what it computes on, and its setting `dtype` with the default.

    Blocks until the model is loaded.

    Call it where the event loop runs that will use the engine, and before a process has threads or descriptors that
    the engine's process must not have.

    Raises UserError: vLLM is built for another device, refuses the settings, or needs more GPUs than there are.
    Raises InfrastructureError: vLLM did not start; the message has its first error. After KeyboardInterrupt nothing is
    left of the engine.
    """
    _set_variables(settings)
    # The latter is read when torch is loaded, and is not meant for other children of this process.
    threads = settings.cpu_threads or threads_for(settings.model)
    own = environment_variables(**{PARENT: str(os.getpid()), "OMP_NUM_THREADS": str(threads)})
    with interruptible(), output.redirected(), own:
        try:
            llm, device, dtype = _start(settings)
            output.take_logs()
        except BaseException as error:
            for child in multiprocessing.active_children():
                if child.name.startswith("EngineCore"):  # vLLM's own shutdown waits for seconds
                    child.kill()
                    child.join()
            if isinstance(error, RuntimeError):
                raise InfrastructureError(f"vLLM's engine did not start{output.failure() or f': {error}'}") from error
            output.remove()
            if isinstance(error, ValueError):
                said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                said = " ".join(said.removeprefix("Value error, ").split())
                raise UserError(f"vLLM refuses the engine's settings: {said}") from None
            raise
    if settings.dtype is None and dtype == "float32":
        logger.info(
            "the engine computes in float32, because this CPU has no instructions for bfloat16, which would be several"
            " times slower; the engine's setting dtype=auto or dtype=bfloat16 asks for it all the same"
        )
    return llm, device, dtype


def _set_variables(settings: VllmSettings) -> None:
    """Set what torch and vLLM read when they are imported, and vLLM when it starts its processes."""
    os.environ |= {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit this process's descriptors
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def _start(settings: VllmSettings) -> tuple[Any, Device, str]:
    process = EarlyProcess()  # each of the two imports takes seconds
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine import utils
    from vllm.v1.engine.async_llm import AsyncLLM

    on_gpu = not current_platform.is_cpu()
    device: Device = "gpu" if on_gpu else "cpu"
    if settings.device not in ("auto", device):
        raise UserError(f"setting 'device': {settings.device}, and the installed vLLM is built for {device.upper()}s")
    options: dict[str, Any]
    if on_gpu:
        size, gpus = settings.tensor_parallel_size, current_platform.device_count()
        if gpus < size:  # vLLM's own words name flags of its own
            raise UserError(f"tensor_parallel_size={size} needs as many GPUs, and this machine has {gpus}: lower it")
        options = {"gpu_memory_utilization": settings.gpu_memory_utilization}
        os.environ.pop("OMP_NUM_THREADS")
        # vLLM 0.24 samples with FlashInfer, whose kernel is compiled when an engine starts: by nvcc, of a CUDA toolkit,
        # which a GPU's node need not have.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    else:
        # vLLM 0.28 rewinds a request's own random generator after each chunk of a prompt, which a CPU generator
        # cannot do. Without chunks there is nothing to rewind.
        # Attention computes whole blocks, and prompts share whole blocks. vLLM's own choice for CPUs is 128 tokens;
        # its kernels for them want multiples of 32.
        options = {"enable_chunked_prefill": False, "block_size": 32}
        if settings.tensor_parallel_size == 1:
            # The class and not its name "uni", which vLLM changes to "mp" on a CPU. That would start a worker process,
            # and the engine's process would use a whole core to wait for it.
            from cobalt.engine.vllm_executor import BoundExecutor

            options["distributed_executor_backend"] = BoundExecutor
    dtype = settings.dtype or default_dtype(on_gpu=on_gpu)
    same = {"model", "tensor_parallel_size", "max_model_len", "max_num_seqs", "trust_remote_code", "seed"}
    arguments = AsyncEngineArgs(
        **settings.model_dump(include=same),
        dtype=dtype,
        enforce_eager=not on_gpu if settings.enforce_eager is None else settings.enforce_eager,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **options,
    )
    own = utils.get_mp_context
    utils.get_mp_context = lambda: SimpleNamespace(Process=process.for_work)
    try:
        return AsyncLLM.from_engine_args(arguments), device, dtype
    finally:
        utils.get_mp_context = own


class _Interrupted(BaseException):
    """An interrupt while vLLM starts, which would swallow a KeyboardInterrupt and go on."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block by KeyboardInterrupt at once, also where asyncio's loop is blocked."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = []

    def interrupt(*_: object) -> None:
        interrupts.append(True)
        raise _Interrupted

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if interrupts:
            raise KeyboardInterrupt  # also where a destructor has swallowed the other one
