"""Choices of the engine app on GPUs, by vLLM's own rules on a platform that says it is one.

`COBALT_VLLM_GPU_SOURCES` names a folder with the unpacked wheel of the vLLM that requirements/gpu.lock has. The same is
then asked of its sources; the profile cpu has another version.
"""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = pytest.mark.slow

GPU_SOURCES = os.environ.get("COBALT_VLLM_GPU_SOURCES", "")

ENGINES = """
import json, os, sys, types
from vllm import platforms
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum


class Hopper(Platform):
    _enum = PlatformEnum.CUDA
    device_name = device_type = "cuda"
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    device_count = classmethod(lambda cls: 2)


platforms._current_platform = Hopper()

# FlashInfer itself is not installed here. It supports this capability.
backend = types.ModuleType("vllm.v1.attention.backends.flashinfer")
backend.FlashInferBackend = types.SimpleNamespace(supports_compute_capability=lambda capability: True)
sys.modules[backend.__name__] = backend

import vllm
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.sample.ops.topk_topp_sampler import flashinfer_sampler_supported

from cobalt.engine.startup import EngineOutput, start
from cobalt.engine.vllm_settings import VllmSettings
from cobalt.stage.errors import UserError

seen = {"version": vllm.__version__, "vLLM alone": flashinfer_sampler_supported()}


class Seen(Exception):
    pass


def of_an_engine(**settings):
    def record(arguments):
        raise Seen(arguments.enforce_eager, flashinfer_sampler_supported())

    AsyncLLM.from_engine_args = record
    try:
        start(VllmSettings(model=".", **settings), EngineOutput(None))
    except Seen as made:
        return made.args
    except UserError as error:
        return str(error)


seen["eager, FlashInfer"] = of_an_engine()
seen["eager as set"] = of_an_engine(enforce_eager=True)[0]
os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "1"
seen["too few GPUs"] = "tensor_parallel_size" in of_an_engine(tensor_parallel_size=3)
seen["another device"] = "device" in of_an_engine(device="cpu")
seen["FlashInfer as set"] = of_an_engine()[1]
print(json.dumps(seen))
"""


def pinned():
    [version] = [
        line.removeprefix("vllm==").strip()
        for line in (ROOT / "requirements" / "gpu.lock").read_text().splitlines()
        if line.startswith("vllm==")
    ]
    return version


@pytest.mark.parametrize(
    "sources",
    [
        "",
        pytest.param(
            GPU_SOURCES,
            marks=pytest.mark.skipif(not GPU_SOURCES, reason="COBALT_VLLM_GPU_SOURCES names no sources of vLLM"),
        ),
    ],
    ids=["installed", "pinned for GPUs"],
)
def test_an_engine_on_a_gpu_compiles_no_sampler_and_uses_cuda_graphs_unless_it_is_told_to(sources):
    path = os.pathsep.join(filter(None, [sources, str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    finished = subprocess.run(
        [sys.executable, "-c", ENGINES],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    seen = json.loads(finished.stdout.splitlines()[-1])
    version = seen.pop("version")
    assert not sources or version == pinned()
    assert seen == {
        "vLLM alone": True,
        "eager, FlashInfer": [False, False],
        "eager as set": True,
        "too few GPUs": True,
        "another device": True,
        "FlashInfer as set": True,
    }
