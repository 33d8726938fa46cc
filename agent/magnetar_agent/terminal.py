# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar console``: the serial console of a server on this terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import yaml

from magnetar_core.errors import InvalidField, MagnetarError, Unreachable, from_dict
from magnetar_core.http import transport
from magnetar_core.http.client import Client
from magnetar_core.http.clouds import described
from magnetar_core.http.endpoint import CONSOLE_ERROR, SOCKET
from magnetar_core.http.login import Login

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response

#: Ctrl-]: the key that ends it, as in telnet and virsh.
END = b"\x1d"
PIECE = 1 << 14
SCHEMES = ("ws://", "wss://")


def run(given: argparse.Namespace) -> int:
    """``magnetar console``. Returns when the console has ended, or with Ctrl-]."""
    try:
        why = asyncio.run(_console(given))
    except TimeoutError:
        raise Unreachable("The console did not answer in time. Try again.") from None
    print(f"\r\nmagnetar: {why}.", file=sys.stderr)
    return 0


async def _console(given: argparse.Namespace) -> str:
    async with await _opened(given) as console:
        if given.send_break:
            await console.send("break")
        with _raw():
            print("magnetar: Ctrl-] ends the console.", end="\r\n", file=sys.stderr)
            return await _carried(console)


async def _opened(given: argparse.Namespace) -> ClientConnection:
    """The connection. Raises ``MagnetarError``."""
    from websockets.asyncio.client import connect, unix_connect
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

    how: dict[str, Any] = {"subprotocols": ["binary"], "compression": None, "max_size": 1 << 20}
    try:
        if given.server.startswith(SCHEMES):
            return await connect(given.server, **_trusting(given.server, given.ca_cert, not given.insecure), **how)
        if (cloud := _cloud(given)) is not None:
            login = Login(cloud)
            with Client(login=login) as client:
                url = client.open_console(given.server, "serial")["socket"]
            return await connect(url, **_trusting(url, login.ca_cert, login.validate), **how)
        path = f"/v1/server/{quote(given.server, safe='')}/consoles/serial"
        return await unix_connect(given.socket or SOCKET, f"ws://agent{path}", **how)
    except InvalidStatus as error:
        raise _refusal(error.response) from None
    except InvalidURI:
        raise InvalidField("server", "is no URL of a console, such as wss://cloud.example:8774/console/socket?token=…; "
                           "copy all of what was printed") from None
    except WebSocketException as error:
        raise Unreachable(f"What answers is no console: {error}.") from None
    except OSError as error:
        scheme = "https" if given.server.startswith(SCHEMES) or _cloud(given) is not None else "unix"
        raise Unreachable(f"Cannot reach the console: {transport.advice(error, scheme, False)}") from None


def _cloud(given: argparse.Namespace) -> dict[str, Any] | None:
    """The cloud that is meant; ``None`` for this host."""
    name = given.cloud or os.environ.get("OS_CLOUD")
    return described({"endpoint": given.socket if not given.cloud else None, "cloud": name, "ca_cert": given.ca_cert,
                      "validate_certs": not given.insecure}, _load)


def _load(stream: Any) -> Any:
    try:
        return yaml.safe_load(stream)
    except yaml.YAMLError:
        raise ValueError from None


def _trusting(url: str, ca_cert: str | None, validate: bool) -> dict[str, Any]:
    return {"ssl": transport.tls(ca_cert, None, None, validate)} if url.startswith("wss:") else {}


def _refusal(response: Response) -> MagnetarError:
    """What an agent or an API answers in place of a console."""
    if message := response.headers.get(CONSOLE_ERROR):
        return MagnetarError(message)
    with contextlib.suppress(ValueError, LookupError, TypeError):
        told = json.loads(bytes(response.body))["error"]
        return from_dict(told) if isinstance(told["code"], str) else MagnetarError(str(told["message"]))
    return Unreachable(f"HTTP {response.status_code} came in place of a console. Check the URL, and a proxy in "
                       "between.")


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Each key goes to the guest, and none is shown here; a terminal is as before afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


async def _carried(console: ClientConnection) -> str:
    """Carry what is typed and what is said, until either ends; returns why."""
    typing, saying = (asyncio.ensure_future(part(console)) for part in (_typed, _said))
    try:
        await asyncio.wait((typing, saying), return_when=asyncio.FIRST_COMPLETED)
        if typing.done() and typing.result():
            return "the console goes on without this terminal"
        return console.close_reason or "the console has ended"
    finally:
        for part in (typing, saying):
            part.cancel()
        await asyncio.gather(typing, saying, return_exceptions=True)


async def _typed(console: ClientConnection) -> bool:
    """Send what is typed; whether the key was pressed that ends it. What comes from a file or a pipe is sent, and the
    guest goes on."""
    from websockets.exceptions import ConnectionClosed

    with _keys() as keys, contextlib.suppress(ConnectionClosed):
        while found := await keys.get():
            before, end, _after = found.partition(END) if sys.stdin.isatty() else (found, b"", b"")
            if before:
                await console.send(before)
            if end:
                return True
        await console.wait_closed()
    return False


async def _said(console: ClientConnection) -> None:
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed):
        async for message in console:
            if isinstance(message, bytes):
                sys.stdout.buffer.write(message)
                sys.stdout.buffer.flush()


@contextlib.contextmanager
def _keys() -> Iterator[asyncio.Queue[bytes]]:
    """What is typed, as it comes; empty at its end. A file, which epoll does not take, is read at once."""
    keys, loop, source = asyncio.Queue[bytes](), asyncio.get_running_loop(), sys.stdin.fileno()

    def pressed() -> None:
        found = os.read(source, PIECE)
        if not found:
            loop.remove_reader(source)
        keys.put_nowait(found)

    try:
        loop.add_reader(source, pressed)
    except PermissionError:
        keys.put_nowait(sys.stdin.buffer.read())
        keys.put_nowait(b"")
    try:
        yield keys
    finally:
        loop.remove_reader(source)
