# SPDX-License-Identifier: GPL-3.0-or-later
"""Bodies of requests that are kept in memory: the minimum speed of their clients, and the limit of bytes for each
client address. Answers that a client has not read yet count too."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from magnetar_core.errors import TooSlow
from magnetar_core.http.connections import counted_address

from .answer import Fault
from .transfers import LATER, Pace

#: Limit of a body, in bytes; streams have no such limit.
BODY_LIMIT = 1 << 20
#: The minimum speed of a body.
PACE = Pace(1024, 60.0)
#: A body up to this number of bytes that arrives within this number of seconds is read before authentication.
SMALL, PROMPT = 1 << 16, 0.5
#: Limits of the bytes of requests and answers that are kept for one address, and for all. When the total is used up, an
#: address may still have one body.
OF_ADDRESS, OF_ALL = 16 << 20, 256 << 20
#: Headers of a refusal after which the client must not send the rest of the body.
END = {"Connection": "close"}


class KeptBytes:
    """The number of bytes of bodies in memory, by client address. Use it only in the event loop."""

    def __init__(self, of_address: int = OF_ADDRESS, of_all: int = OF_ALL) -> None:
        self.of_address, self.of_all = of_address, of_all
        self.addresses: Counter[str] = Counter()

    def share(self, address: str) -> KeptShare:
        """Return a new share, for one request of *address*."""
        return KeptShare(self, counted_address(address))


class KeptShare:
    """The bytes of one request and its answer in memory, counted for the client's address until ``free``. While nothing
    else is counted for the address, there is no limit."""

    def __init__(self, counter: KeptBytes, address: str) -> None:
        self._kept, self._address, self._size = counter, address, 0

    def add(self, size: int) -> None:
        """Count *size* more bytes. Raises ``Fault`` 429 when the address has reached its limit."""
        counter = self._kept
        current = counter.addresses[self._address]
        most = counter.of_address if counter.addresses.total() + size <= counter.of_all else BODY_LIMIT
        if current and current + size > most:
            raise Fault(429, f"{self._address or 'This socket'} has {current} bytes of requests that have "
                             f"not ended and of answers that were not read; no more than {most} are kept for "
                             "one address. Send fewer requests at once, and read their answers.", {**LATER, **END})
        counter.addresses[self._address] += size
        self._size += size

    def free(self) -> None:
        """Subtract the bytes of this request from the count. May be called again."""
        size, self._size = self._size, 0
        addresses = self._kept.addresses
        addresses[self._address] -= size
        if addresses[self._address] <= 0:
            del addresses[self._address]


class IncomingBody:
    """The body of one request. *receive*: ASGI's. Raises ``Fault``: 400 when the client disconnects, 408 when it is too
    slow, 413 when the body is too long, 429 when its address has too many bytes."""

    def __init__(self, receive: Any, headers: Mapping[str, str], share: KeptShare) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > BODY_LIMIT:
            raise Fault(413, f"The body has {length} bytes; at most {BODY_LIMIT} are taken.")
        self._receive, self._share = receive, share
        self._asks = "expect" in headers
        self._parts: list[bytes] = []
        self._size, self._whole = 0, False
        self._coming: asyncio.Task[dict[str, Any]] | None = None

    async def prompt(self) -> bool:
        """Read the body for at most ``PROMPT`` seconds, or up to ``SMALL`` bytes; return whether it is complete.
        Nothing is read if the client waits for "100 Continue"."""
        end = time.monotonic() + PROMPT
        while not self._whole and not self._asks and self._size <= SMALL:
            remaining = end - time.monotonic()
            if remaining <= 0 or not await self._came(remaining):
                break
        return self._whole

    async def rest(self) -> None:
        """Read the rest of the body. Raises ``Fault`` when the client is slower than ``PACE``."""
        clock = PACE.clock()
        while not self._whole:
            began, size_before = time.monotonic(), self._size
            await self._came(clock.left)
            try:
                clock.note(time.monotonic() - began, self._size - size_before)
            except TooSlow as error:
                raise Fault(error.status, error.message, END) from None

    def content(self) -> bytes:
        """Return the bytes that have been read."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def end(self) -> None:
        """Stop waiting for the body."""
        if self._coming is not None:
            self._coming.cancel()

    async def _came(self, seconds: float) -> bool:
        """Read the next part of the body. Return ``False`` if no part arrives within *seconds*, otherwise ``True``."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._receive())
        await asyncio.wait((self._coming,), timeout=seconds)
        if not self._coming.done():
            return False
        message, self._coming = self._coming.result(), None
        if message["type"] == "http.disconnect":
            raise Fault(400, "The client ended the connection before all of the body had arrived.")
        part = message.get("body", b"")
        self._size += len(part)
        if self._size > BODY_LIMIT:
            raise Fault(413, f"The body has more than {BODY_LIMIT} bytes.")
        self._share.add(len(part))
        self._parts.append(part)
        self._whole = not message.get("more_body")
        return True
