"""The answer of Ray Serve's HTTP proxy when a replica dies during a request: "try again" instead of 500.

A proxy loads `middlewares` if `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names it when Ray is started.
`scripts/ray_cluster.sh` sets that variable.
"""

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def middlewares() -> list[Middleware]:
    """The middlewares of Serve's proxy, which calls this function when it starts."""
    return [Middleware(_answering)]


def _answering(app: ASGIApp) -> ASGIApp:
    """An app that answers what another leaves without an answer, with the status at which the route's clients retry."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        unanswered = scope["type"] == "http"

        async def watched(message: Message) -> None:
            nonlocal unanswered
            unanswered = unanswered and message["type"] != "http.response.start"
            await send(message)

        await app(scope, receive, watched)
        if unanswered:
            status = 504 if scope["path"].rstrip("/").endswith("/run_code") else 503
            error = {"error": "the replica that had the request died: try again"}
            await JSONResponse(error, status)(scope, receive, send)

    return answer
