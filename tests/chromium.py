"""A small driver for a real headless Chromium, over its debugging socket on the loopback interface; no tests."""

import contextlib
import importlib.util
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = (
    (shutil.which("chromium") or shutil.which("google-chrome")) if importlib.util.find_spec("websockets") else None
)
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]


class Chromium:
    """One browser with one page; use it as a context manager."""

    def __init__(self, profile):
        from websockets.sync.client import connect

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        listening, end = Path(profile) / "DevToolsActivePort", time.monotonic() + 60
        while not listening.exists() or listening.read_text().count("\n") < 1:
            assert time.monotonic() < end and self._process.poll() is None, "Chromium does not start"
            time.sleep(0.05)
        port, path = listening.read_text().splitlines()
        self._open = contextlib.ExitStack()
        self._socket = self._open.enter_context(connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None))
        self._numbers, self.events, self._session = itertools.count(1), [], None
        [page] = [item for item in self.call("Target.getTargets")["targetInfos"] if item["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._open.close()
        self._process.terminate()
        self._process.wait(timeout=30)

    def call(self, method, **parameters):
        """Send one command and return its result; events that come meanwhile are kept."""
        message = {"id": next(self._numbers), "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path, fragment=""):
        """Load a file from the disk and wait until its script is through, or has said what is wrong."""
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready || document.getElementById('alert')?.hidden === false")

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def each(self, selector, what="textContent"):
        """The text, or another property, of each node of the page that a selector finds."""
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.{what})")

    def errors(self):
        """Messages that the page has written into its console."""
        return [event for event in self.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]

    def wait(self, condition, seconds=60):
        """Wait until a JavaScript condition holds."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}"
            time.sleep(0.02)

    def press(self, key):
        """Press and release one key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)
