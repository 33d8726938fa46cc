# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP connections of the load generator, in one event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, NamedTuple

from control_client import request
from control_cloud import IDLE

#: Seconds that an answer may take.
LONGEST = 120.0


class Reply(NamedTuple):
    """An answer: its status, and its JSON document, or its text if it is not JSON."""

    status: int
    document: Any

    @property
    def message(self) -> str:
        """The message of a fault in the answer."""
        if isinstance(self.document, str):
            return self.document[:80]
        fault = next(iter(self.document.values()), {}) if isinstance(self.document, dict) else {}
        return str(fault.get("message", "")) if isinstance(fault, dict) else ""


class NoReply(Exception):
    """No answer arrived; the message has the reason."""


class Connections:
    """Open connections to the API that are reused for later requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, method: str, path: str, token: str, body: Any = None) -> Reply:
        """Send a request with this *token* and JSON *body*, and return its answer. Raises ``NoReply``."""
        try:
            async with asyncio.timeout(LONGEST):
                return await self._exchange(request(method, path, token, body).encode())
        except TimeoutError:
            raise NoReply(f"no answer in {LONGEST:.0f} s") from None
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise NoReply(type(error).__name__) from None

    async def _exchange(self, text: bytes) -> Reply:
        reader, writer = await self._connection()
        try:
            writer.write(text)
            reply = await _read_reply(reader)
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        return reply

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            used, reader, writer = self._idle.pop()
            if time.monotonic() - used < IDLE and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)

    def close(self) -> None:
        """Close all connections."""
        for _used, _reader, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _colon, value in (line.partition(":") for line in head[1:])}
    if headers.get("transfer-encoding") == "chunked":
        content = b""
        while size := int(await reader.readline(), 16):
            content += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        content = await reader.readexactly(int(headers.get("content-length", 0)))
    is_json = headers.get("content-type", "").startswith("application/json")
    return Reply(int(head[0].split()[1]),
                 json.loads(content) if content and is_json else content.decode(errors="replace"))
