r"""vLLM as a Ray Serve app.

    serve run vllm_engine_actor:app model=Qwen/Qwen3-8B num_replicas=2 tensor_parallel_size=2 \
        --name vllm_actor --route-prefix /vllm_actor

Settings are `key=value` arguments or `COBALT_VLLM_<NAME>` variables; their names and defaults are in
`cobalt.serving.settings`.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> "Application":
    """Build the app from the arguments of `serve run`."""
    from cobalt.serving.ray_serve import engine_app, for_serve_run

    return for_serve_run(engine_app, args)


if __name__ == "__main__":
    sys.stdout.write(f"{__doc__}\n")
