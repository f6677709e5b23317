"""The page of a training run (`cobalt.report.watched`): one file, or served on loopback, where it asks for what is new.

The served page and its data lie below a path that only the printed address has, so that other users of the machine and
pages of other sites cannot read them. As in the viewer, only the page's own script runs.
"""

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cobalt.report.rollouts import read_rollouts
from cobalt.report.viewer.page import asset, block, check_page_path, filled
from cobalt.report.watched import watched
from cobalt.stage.atomic import replace_text
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_result_path

_SCRIPTS = ("dom.js", "blocks.js", "figures.js", "curves.js", "rollouts.js", "watch.js")


def write_watch(run: Path, output: Path) -> None:
    """Write the page of a training run as it is now, with all recorded rollouts, into one HTML file.

    Raises:
        UserError: the folder is not one of a training run or is malformed, or the page cannot be written.
    """
    check_page_path(output)
    check_result_path(output)
    state = watched(run)
    blocks = [block("index", state)]
    blocks += [block(f"rollouts-{step}", _rollouts(run, step)) for step in state["recorded"]]
    replace_text(output, _page(state["name"], "".join(blocks)))


@contextlib.contextmanager
def serving(run: Path, port: int) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """A server of the page on the loopback interface, which answers in `serve_forever`, and the page's address.

    Raises:
        UserError: the folder is not one of a training run or is malformed, or the port is taken.
    """
    watched(run)
    secret = secrets.token_urlsafe(16)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, run, secret))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"port {port} of 127.0.0.1 cannot be used ({reason}): give another --port, or 0") from None
    with server:
        yield server, f"http://127.0.0.1:{server.server_port}/{secret}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page, its index, or the rollouts of a step."""

    def __init__(self, run: Path, secret: str, *arguments: Any) -> None:
        self._run, self._secret = run, secret
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer one request."""
        secret, _, name = self.path.removeprefix("/").partition("/")
        step = re.fullmatch(r"rollouts-(\d{1,9})", name)
        if not secrets.compare_digest(secret.encode(), self._secret.encode()) or (
            name not in ("", "index") and not step
        ):
            self.send_error(404)
            return
        status, kind = 200, "application/json" if name else "text/html"
        try:
            content = _rollouts(self._run, int(step[1])) if step else watched(self._run)
            text = json.dumps(content) if name else _page(self._run.resolve().name)
        except UserError as error:  # the folder was removed or damaged meanwhile; the page shows the sentence
            status, kind, text = 503, "text/plain", str(error)
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(text.encode("utf-8", "replace"))

    def log_message(self, *_: Any) -> None:
        """Nothing: the terminal keeps the address."""


def _rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    return [group.model_dump() for group in read_rollouts(run, step)]


def _page(name: str, blocks: str = "") -> str:
    """The page; without blocks it asks its server for the data."""
    scripts = {"script": "\n".join(map(asset, _SCRIPTS))}
    more = "" if blocks else "; connect-src 'self'"
    return filled(asset("watch.html"), name, asset("page.css") + asset("watch.css"), scripts, more, blocks=blocks)
