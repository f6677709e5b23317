"""The answer of Ray Serve's HTTP proxy when a replica dies during a request: "try again" instead of 500.

A proxy loads `middlewares` if `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names it when Ray is started.
`scripts/ray_cluster.sh` sets that variable.
"""

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class AnswerForDeadReplica:
    """Answers requests that Serve has left without an answer, which it does when a replica dies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer it if nothing else does.

        The status is 504 on SandboxFusion's route, whose clients retry only on 504, and 503 elsewhere.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = False

        async def watched(message: Message) -> None:
            nonlocal answered
            answered = answered or message["type"] == "http.response.start"
            await send(message)

        await self._app(scope, receive, watched)
        if not answered:
            status = 504 if scope["path"].rstrip("/").endswith("/run_code") else 503
            await JSONResponse({"error": "the replica that had the request died: try again"}, status)(
                scope, receive, send
            )


def middlewares() -> list[Middleware]:
    """The middlewares of Serve's proxy, which calls this function when it starts."""
    return [Middleware(AnswerForDeadReplica)]
