"""A model provider on loopback that misbehaves by a script; no tests."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(text="hello", finish_reason="stop", usage=(10, 5), **message):
    """A chat completion as OpenAI's API sends it."""
    content = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text} | message}
        ],
    }
    if usage:
        content["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return 200, {}, json.dumps(content)


def failure(status, message="no", headers=None, **error):
    """An error as OpenAI's API sends it."""
    return status, headers or {}, json.dumps({"error": {"message": message, "type": "t"} | error})


class Provider:
    """Gives `script[i]` as its i-th answer to a POST, and the last one again and again.

    An item is (status, headers, body), "hang", "cut" (a body shorter than announced) or a function of the request.
    `models` are the entries of its list of models.
    """

    def __init__(self, script):
        self.script = script
        self.models = [{"id": "m", "max_model_len": 100}]
        self.requests = []
        self.times = []
        self.lock = threading.Lock()
        self.done = threading.Event()

    def item(self, request):
        with self.lock:
            index = len(self.requests)
            self.requests.append(request)
            self.times.append(time.monotonic())
        item = self.script[min(index, len(self.script) - 1)]
        return item(request) if callable(item) else item


@contextmanager
def serve(*script):
    """Yield a `Provider` that answers; its `url` is an OpenAI-compatible base URL."""
    provider = Provider(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            item = provider.item({"path": self.path, "body": body, "headers": dict(self.headers)})
            if item == "hang":
                provider.done.wait(100)
                self.close_connection = True
            elif item == "cut":
                self.answer(200, {"Content-Length": "1000"}, '{"id": "c", "choices": [')
                self.close_connection = True
            else:
                self.answer(*item)

        def do_GET(self):
            listed = self.path == "/v1/models"
            self.answer(200 if listed else 404, {}, json.dumps({"data": provider.models} if listed else {"detail": ""}))

        def answer(self, status, headers, text):
            content = text.encode()
            own = {"Content-Type": "application/json", "Content-Length": str(len(content))}
            self.send_response(status)
            for name, value in (own | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # how often it looks whether it is to end
    thread.start()
    try:
        yield provider
    finally:
        provider.done.set()
        server.shutdown()
        server.server_close()
        thread.join()
