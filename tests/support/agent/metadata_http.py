# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of metadata http."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

from magnetar_agent.metadata import guest_data
from magnetar_agent.metadata.guest_data import Guest, Key
from magnetar_agent.metadata.guest_http import HEAD, GuestHttp
from magnetar_agent.metadata.paths import GuestPaths

GUEST = Guest(uuid="b65cee2f-8c69-4aeb-be2f-f79742548fc2", name="web", hostname="web", seed=b"s" * 512, flavor="m1",
              user_data=base64.b64encode(b"#!/bin/sh\n").decode(), keys=(Key("mine", "ssh-rsa AAAA"),),
              security_groups=("default", "web"), availability_zone="az1", injected=(("/etc/motd", "aGk="),))
TREE = guest_data.metadata_tree(GUEST)


# Over sockets -------------------------------------------------------------------------------------------------------
def served(talk: Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[None]], password: str = "",
           tree: dict[str, bytes] = TREE) -> list[str]:
    """Run *talk* against a metadata service, with a function that sends bytes and returns the answer. Return the
    passwords that the guest has posted."""
    left: list[str] = []

    async def find(_guest: str) -> GuestPaths:
        return GuestPaths(tree, password or "".join(left))

    async def send_password(_guest: str, given: str) -> tuple[int, str]:
        left.append(given)
        return 200, ""

    async def run() -> None:
        http = GuestHttp(find, send_password)
        server = await asyncio.start_server(http.connected, "127.0.0.1", 0, limit=HEAD)
        port = server.sockets[0].getsockname()[1]

        async def send(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            try:
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

        send.port = port  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await talk(send)
        server.close()

    asyncio.run(run())
    return left
