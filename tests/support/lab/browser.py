# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium, controlled by its DevTools protocol: opens a page, types, returns texts and screenshots."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

from tests.support.waiting import LIMIT, eventually

PROGRAM = "chromium-headless-shell"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
         "--remote-debugging-port=0", "--window-size=1024,700")
#: Keys that are no letters: the name of the key, and what it types.
OTHERS = {" ": ("Space", " "), "\n": ("Enter", "\r"), "/": ("Slash", "/")}


class Browser:
    """A running browser with one page at a time; a context manager."""

    def __enter__(self) -> Self:
        self._end, self._numbers = ExitStack(), itertools.count(1)
        with self._end:
            folder = Path(self._end.enter_context(tempfile.TemporaryDirectory(prefix="browser")))
            process = subprocess.Popen([PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       start_new_session=True)
            self._end.callback(process.wait)
            # Debian's program is a script that waits for Chromium, which has processes of its own.
            self._end.callback(os.killpg, process.pid, signal.SIGKILL)
            port = eventually(lambda: _port(folder), "Chromium listens")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT) as answer:
                page = next(one for one in json.load(answer) if one["type"] == "page")
            self._talk = self._end.enter_context(connect(
                page["webSocketDebuggerUrl"], proxy=None, max_size=None, open_timeout=LIMIT, ping_interval=None))
            self._end = self._end.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol, and return its result."""
        number = next(self._numbers)
        self._talk.send(json.dumps({"id": number, "method": method, "params": params}))
        while (answer := json.loads(self._talk.recv(LIMIT))).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Load a page."""
        told = self.call("Page.navigate", url=url)
        assert "errorText" not in told, told

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def type(self, words: str) -> None:
        """Press the keys of a text: small letters, blanks, slashes, and Enter."""
        for letter in words:
            code, text = OTHERS.get(letter, (f"Key{letter.upper()}", letter))
            key = "Enter" if letter == "\n" else letter
            how = {"key": key, "code": code, "windowsVirtualKeyCode": ord(text.upper())}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **how)
            self.call("Input.dispatchKeyEvent", type="keyUp", **how)

    def screenshot(self, path: Path) -> None:
        """Write a screenshot of the page to *path*, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


def _port(folder: Path) -> str | None:
    file = folder / "DevToolsActivePort"
    words = file.read_text().split() if file.exists() else []
    return words[0] if words else None
