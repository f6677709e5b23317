"""A small driver for a real headless Chromium, over its debugging pipe; no tests. It needs no port and no package."""

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]


def _above_ten(descriptor):
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return copy


class Chromium:
    """One browser with one page; use it as a context manager."""

    def __init__(self, profile):
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4; ours must be other ones.
        to_browser, from_browser = (_above_ten(descriptor) for descriptor in (to_browser, from_browser))
        command = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", CHROMIUM, *FLAGS]
        command += [f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events = []
        self._session = None
        [page] = [item for item in self.call("Target.getTargets")["targetInfos"] if item["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        os.close(self._send)
        os.close(self._receive)
        self._process.terminate()
        self._process.wait(timeout=30)

    def call(self, method, **parameters):
        """Send one command and return its result; events that come meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next_message(self, seconds=60):
        while b"\0" not in self._buffer:
            assert select.select([self._receive], [], [], seconds)[0], "Chromium does not answer"
            data = os.read(self._receive, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

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

    def wait(self, condition, seconds=60):
        """Wait until a JavaScript condition holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(f"Boolean({condition})"):
                return
            select.select([self._receive], [], [], 0.02)
        raise AssertionError(f"not within {seconds} s: {condition}")

    def press(self, key):
        """Press and release one key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)
