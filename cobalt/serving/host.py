"""The judge's or the engine's app under uvicorn, as a child process (`cobalt.stage.app_process` starts it).

    python -m cobalt.serving.host judge|engine

The first line of standard input is a JSON object with the app's `settings`, and the `port` on 127.0.0.1 (0: a free one)
or the path of a Unix `socket`. `COBALT_JUDGE_*` and `COBALT_VLLM_*` variables count as always; messages go to standard
error. The process ends when its standard input ends, and so with its parent, however that ends.

It answers with one line of JSON on standard output: `{"url": "http://127.0.0.1:8000/evaluator"}` or `{"url":
"unix:PATH"}` when requests are answered, or `{"error": "...", "mistake": true}` if it cannot start; `mistake` is false
for what is not the user's mistake.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cobalt.stage.errors import CobaltError, UserError
from cobalt.stage.servers import UNIX

_ROUTES = {"judge": "/evaluator", "engine": "/vllm_actor"}  # as on Ray Serve; an app also answers without its own
_SECONDS_TO_END = 10.0  # for requests in flight when the process is to end


def main() -> None:
    """Serve one app until standard input ends; exit code 1 if it could not start, 130 if it was ended before."""
    asked = json.loads(sys.stdin.readline())
    # What libraries print must not come between the lines of the answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(fields) + "\n")

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with _listening(asked.get("port", 0), asked.get("socket")) as listener:
            asyncio.run(_serve(sys.argv[1], asked["settings"], listener, answer))
    except CobaltError as error:
        answer(error=str(error), mistake=isinstance(error, UserError))
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


def _listening(port: int, path: str | None) -> socket.socket:
    if path is not None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        return listener
    try:
        return socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise UserError(f"port {port} cannot be used ({error}): give another port (http_port)") from None


async def _serve(name: str, settings: Mapping[str, Any], listener: socket.socket, answer: Callable[..., None]) -> None:
    import uvicorn

    path_or_address = listener.getsockname()
    url = f"{UNIX}{path_or_address}"
    if listener.family != socket.AF_UNIX:
        url = f"http://127.0.0.1:{path_or_address[1]}{_ROUTES[name]}"

    class Server(uvicorn.Server):
        """Says when requests are answered."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            answer(url=url)

    api = _api(name, settings)
    api.root_path = _ROUTES[name]
    config = uvicorn.Config(
        api,
        lifespan="off",  # it is entered here, where its errors are seen
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the guard looks at the sender itself
        timeout_graceful_shutdown=int(_SECONDS_TO_END),
    )
    server = Server(config)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:  # in the loop, so that `started` stays as it is
        if server.started:
            server.should_exit = True
        else:
            task.cancel()  # so that sandboxes are closed: bubblewrap leaves its child if it is killed while it starts

    def end_with_parent() -> None:
        _wait_for_parent(listener)
        if name == "engine" and not server.started:
            os._exit(1)  # the start of vLLM blocks the loop, and its processes end with this one
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end)

    threading.Thread(target=end_with_parent, daemon=True).start()
    async with api.router.lifespan_context(api):
        await server.serve(sockets=[listener])


def _wait_for_parent(listener: socket.socket) -> None:
    """Wait until standard input ends, by which the parent says that this process is to end, or has ended itself."""
    while os.read(0, 1024):
        pass
    signal.alarm(int(2 * _SECONDS_TO_END))  # whatever hangs, nothing is left
    if listener.family == socket.AF_UNIX:  # its folder goes with the last socket, also of a parent that was killed
        with contextlib.suppress(OSError):
            path = Path(listener.getsockname())
            path.unlink()
            path.parent.rmdir()


def _api(name: str, settings: Mapping[str, Any]) -> Any:
    """The FastAPI app of a service with these settings."""
    if name == "judge":
        from cobalt.serving.judge_app import JudgeService, judge_api
        from cobalt.serving.settings import ServiceSettings

        return judge_api(JudgeService(ServiceSettings.read(settings)))
    from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
    from cobalt.serving.engine_app import EngineService, engine_api
    from cobalt.serving.settings import EngineServiceSettings
    from cobalt.stage.settings import read_settings

    return engine_api(EngineService(read_settings(EngineServiceSettings, settings, os.environ, ENVIRONMENT_PREFIX)))


if __name__ == "__main__":
    main()
