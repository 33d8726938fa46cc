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

from magnetar_core.errors import InvalidField, MagnetarError, Unreachable, error_from_dict
from magnetar_core.http import transport
from magnetar_core.http.client import Client
from magnetar_core.http.clouds import cloud_entry
from magnetar_core.http.endpoint import CONSOLE_ERROR, SOCKET
from magnetar_core.http.login import Login

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response

#: Ctrl-]: the key that ends the console, as in telnet and virsh.
END = b"\x1d"
PIECE = 1 << 14
SCHEMES = ("ws://", "wss://")


def run_serial_terminal(options: argparse.Namespace) -> int:
    """Run the command ``magnetar console``, which connects the terminal to a server's serial console, until the console
    ends or the user presses Ctrl-]. Return the exit status."""
    try:
        why = asyncio.run(_console(options))
    except TimeoutError:
        raise Unreachable("The console did not answer in time. Try again.") from None
    print(f"\r\nmagnetar: {why}.", file=sys.stderr)
    return 0


async def _console(options: argparse.Namespace) -> str:
    async with await _opened(options) as console:
        if options.send_break:
            await console.send("break")
        with _raw():
            print("magnetar: Ctrl-] ends the console.", end="\r\n", file=sys.stderr)
            return await _carried(console)


async def _opened(options: argparse.Namespace) -> ClientConnection:
    """Open a WebSocket connection to the serial console that the command line *options* name. Raises ``MagnetarError``.
    """
    from websockets.asyncio.client import connect, unix_connect
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

    how: dict[str, Any] = {"subprotocols": ["binary"], "compression": None, "max_size": 1 << 20}
    try:
        if options.server.startswith(SCHEMES):
            return await connect(options.server, **_trusting(options.server, options.ca_cert, not options.insecure),
                                 **how)
        if (cloud := _cloud(options)) is not None:
            login = Login(cloud)
            with Client(login=login) as client:
                url = client.open_console(options.server, "serial")["socket"]
            return await connect(url, **_trusting(url, login.ca_cert, login.validate), **how)
        path = f"/v1/server/{quote(options.server, safe='')}/consoles/serial"
        return await unix_connect(options.socket or SOCKET, f"ws://agent{path}", **how)
    except InvalidStatus as error:
        raise _refusal(error.response) from None
    except InvalidURI:
        raise InvalidField("server", "is no URL of a console, such as wss://cloud.example:8774/console/socket?token=…; "
                           "copy all of what was printed") from None
    except WebSocketException as error:
        raise Unreachable(f"What answers is no console: {error}.") from None
    except OSError as error:
        scheme = "https" if options.server.startswith(SCHEMES) or _cloud(options) is not None else "unix"
        raise Unreachable(f"Cannot reach the console: {transport.connection_advice(error, scheme, False)}") from None


def _cloud(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the entry of clouds.yaml that the command line *options* or OS_CLOUD name; ``None`` to use the agent on
    this host."""
    name = options.cloud or os.environ.get("OS_CLOUD")
    return cloud_entry({"endpoint": options.socket if not options.cloud else None, "cloud": name,
                        "ca_cert": options.ca_cert, "validate_certs": not options.insecure}, _load)


def _load(stream: Any) -> Any:
    try:
        return yaml.safe_load(stream)
    except yaml.YAMLError:
        raise ValueError from None


def _trusting(url: str, ca_cert: str | None, validate: bool) -> dict[str, Any]:
    return {"ssl": transport.tls_context(ca_cert, None, None, validate)} if url.startswith("wss:") else {}


def _refusal(response: Response) -> MagnetarError:
    """Return the error in *response*, the HTTP response of an agent or Compute API that refused to open a console."""
    if message := response.headers.get(CONSOLE_ERROR):
        return MagnetarError(message)
    with contextlib.suppress(ValueError, LookupError, TypeError):
        error = json.loads(bytes(response.body))["error"]
        return error_from_dict(error) if isinstance(error["code"], str) else MagnetarError(str(error["message"]))
    return Unreachable(f"HTTP {response.status_code} came in place of a console. Check the URL, and a proxy in "
                       "between.")


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Set the terminal to raw mode during the ``with`` block: each key goes to the guest, without echo. Restore the
    mode afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    saved_attributes = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved_attributes)


async def _carried(console: ClientConnection) -> str:
    """Copy data between terminal and console in both directions until one of them ends. Return the reason as text for
    the user."""
    typing, saying = (asyncio.ensure_future(part(console)) for part in (_typed, _print_console_output))
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
    """Send the terminal's input to the console. Return True when the user presses Ctrl-], False when the console ends.
    If stdin is a file or a pipe, its end does not end the console."""
    from websockets.exceptions import ConnectionClosed

    with _keys() as keys, contextlib.suppress(ConnectionClosed):
        while chunk := await keys.get():
            to_send, end, _after = chunk.partition(END) if sys.stdin.isatty() else (chunk, b"", b"")
            if to_send:
                await console.send(to_send)
            if end:
                return True
        await console.wait_closed()
    return False


async def _print_console_output(console: ClientConnection) -> None:
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed):
        async for message in console:
            if isinstance(message, bytes):
                sys.stdout.buffer.write(message)
                sys.stdout.buffer.flush()


@contextlib.contextmanager
def _keys() -> Iterator[asyncio.Queue[bytes]]:
    """Yield a queue with chunks of stdin. An empty chunk means the end of the input. If stdin is a regular file, it is
    read completely at the start, because epoll does not support files."""
    keys, loop, source = asyncio.Queue[bytes](), asyncio.get_running_loop(), sys.stdin.fileno()

    def pressed() -> None:
        chunk = os.read(source, PIECE)
        if not chunk:
            loop.remove_reader(source)
        keys.put_nowait(chunk)

    try:
        loop.add_reader(source, pressed)
    except PermissionError:
        keys.put_nowait(sys.stdin.buffer.read())
        keys.put_nowait(b"")
    try:
        yield keys
    finally:
        loop.remove_reader(source)
