# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests as ASGI servers hand them over, and what comes back with what it cost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote


@dataclass(frozen=True)
class Sent:
    """One request. *path* is as it is in the request line; *route* names the route that it was made for."""

    route: str
    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = field(default=b"", repr=False)

    def __repr__(self) -> str:
        shown = self.content if len(self.content) < 700 else self.content[:600] + b"... (%d bytes)" % len(self.content)
        query = self.query if len(self.query) < 700 else f"{self.query[:600]}... ({len(self.query)} characters)"
        headers = [(name, value[:80]) for name, value in self.headers if name != "x-auth-token"]
        return f"{self.method} {self.path[:700]}?{query} {headers} {shown!r}  [{self.route}]"


@dataclass
class Got:
    """An answer, and seconds of the processor that it took in this process."""

    status: int
    headers: dict[str, str]
    content: bytes
    seconds: float


class Server:
    """An ASGI application with an event loop of its own."""

    def __init__(self, application: Any, state: dict[str, Any] | None = None) -> None:
        self.application, self.state = application, state
        self.loop = asyncio.new_event_loop()

    def ask(self, sent: Sent) -> Got:
        """What is answered."""
        began = time.process_time()
        messages = self.loop.run_until_complete(self._asked(sent))
        seconds = time.process_time() - began
        assert messages and messages[0]["type"] == "http.response.start", messages
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in messages[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in messages[1:])
        endless = _endless(dict(messages[0]["headers"]))
        assert endless or not messages[-1].get("more_body"), "the answer does not end"
        return Got(messages[0]["status"], headers, content, seconds)

    async def _asked(self, sent: Sent) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        given = iter([{"type": "http.request", "body": sent.content, "more_body": False}])
        answered = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if (message := next(given, None)) is not None:
                return message
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)
            if not message.get("more_body", "headers" in message) or _endless(dict(message.get("headers", ()))):
                answered.set()

        raw = sent.path.encode("utf-8", "replace")
        length = [("content-length", str(len(sent.content)))] if sent.content or sent.method in ("POST", "PUT") else []
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in (*sent.headers, *length)]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": sent.method,
            "scheme": "http",
            "path": unquote(sent.path),
            "raw_path": raw,
            "root_path": "",
            "client": ("127.0.0.1", 5),
            "query_string": sent.query.encode("latin-1", "replace"),
            "headers": headers,
            "server": ("cloud", 80),
        }
        if self.state is not None:
            scope["state"] = dict(self.state)
        await self.application(scope, receive, send)
        return messages

    def tasks(self) -> int:
        """Tasks that are not done."""
        return len(asyncio.all_tasks(self.loop))

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _endless(headers: dict[bytes, bytes]) -> bool:
    """Whether an answer goes on until the client ends the connection."""
    return headers.get(b"content-type", b"").startswith(b"text/event-stream")


def threads() -> Counter[str]:
    """Threads of this process, by name without the number."""
    return Counter(thread.name.rstrip("0123456789_-") for thread in threading.enumerate())


def descriptors() -> Counter[str]:
    """Open files of this process by what they are: a path, or a kind such as ``socket``."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[str(link.readlink()).partition(":")[0]] += 1
        except FileNotFoundError:  # that of the folder itself
            continue
    return found
