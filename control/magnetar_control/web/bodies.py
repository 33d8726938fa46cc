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


class BufferedBytes:
    """Counts the bytes of request bodies and unread responses in memory, by client address. Use it only in the event
    loop."""

    def __init__(self, of_address: int = OF_ADDRESS, of_all: int = OF_ALL) -> None:
        self.of_address, self.of_all = of_address, of_all
        self.addresses: Counter[str] = Counter()

    def share(self, address: str) -> RequestBytes:
        """Return a new counter for the bytes of one request from *address*."""
        return RequestBytes(self, counted_address(address))


class RequestBytes:
    """The number of bytes in memory for one request and its response. These bytes count for the client's address until
    ``free`` is called. If no other bytes of the address are in memory, ``add`` accepts any size."""

    def __init__(self, counter: BufferedBytes, address: str) -> None:
        self._kept, self._address, self._size = counter, address, 0

    def add(self, size: int) -> None:
        """Count *size* more bytes in memory. Raises ``Fault`` 429 when this exceeds the limit of the client's address.
        """
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
        """Stop counting the bytes of this request. Repeated calls do nothing."""
        size, self._size = self._size, 0
        addresses = self._kept.addresses
        addresses[self._address] -= size
        if addresses[self._address] <= 0:
            del addresses[self._address]


class IncomingBody:
    """A reader of one request's body. *receive*: the callable ``receive`` of ASGI. *share*: counts the bytes in memory.
    Raises ``Fault``: 400 for a disconnected client, 408 for a slow client, 413 for a too long body, 429 when the
    client's address has too many bytes in memory."""

    def __init__(self, receive: Any, headers: Mapping[str, str], share: RequestBytes) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > BODY_LIMIT:
            raise Fault(413, f"The body has {length} bytes; at most {BODY_LIMIT} are taken.")
        self._receive, self._share = receive, share
        self._asks = "expect" in headers
        self._parts: list[bytes] = []
        self._size, self._whole = 0, False
        self._coming: asyncio.Task[dict[str, Any]] | None = None

    async def prompt(self) -> bool:
        """Read the body for at most ``PROMPT`` seconds, or until it has more than ``SMALL`` bytes; return whether it is
        complete. Read nothing if the client waits for "100 Continue"."""
        end = time.monotonic() + PROMPT
        while not self._whole and not self._asks and self._size <= SMALL:
            remaining = end - time.monotonic()
            if remaining <= 0 or not await self._came(remaining):
                break
        return self._whole

    async def rest(self) -> None:
        """Read the remaining body. Raises ``Fault`` when the client is slower than ``PACE``."""
        clock = PACE.clock()
        while not self._whole:
            began, size_before = time.monotonic(), self._size
            await self._came(clock.left)
            try:
                clock.note(time.monotonic() - began, self._size - size_before)
            except TooSlow as error:
                raise Fault(error.status, error.message, END) from None

    def content(self) -> bytes:
        """Return the bytes of the body that have been read so far."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def end(self) -> None:
        """Cancel the pending read, if there is one."""
        if self._coming is not None:
            self._coming.cancel()

    async def _came(self, seconds: float) -> bool:
        """Read the next chunk of the body; return ``False`` if none arrives within *seconds*."""
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
