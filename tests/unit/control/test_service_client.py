# SPDX-License-Identifier: GPL-3.0-or-later
"""Other services whose answers break off, or are none of theirs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from magnetar_control.services.barbican import BarbicanKeys
from magnetar_control.services.service_client import ServiceClient
from magnetar_core.errors import Unavailable

HEAD = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\n"


def answering(text: str, pause: float = 0.0) -> str:
    """The URL of a server that says this to one request, and closes after *pause* seconds."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with door, door.accept()[0] as line:
            line.recv(9000)
            line.sendall(text.encode())
            threading.Event().wait(pause)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{door.getsockname()[1]}"


def _list(url: str) -> object:
    return ServiceClient("image service", url, "/v2/images", lambda _fresh: "t", timeout=0.2).json("GET", "")


def _payload(url: str) -> object:
    return BarbicanKeys(url, lambda _fresh: "t", timeout=0.2)._payload("/x", "text/plain")


@pytest.mark.parametrize("ask", [_list, _payload])
@pytest.mark.parametrize(("text", "pause", "why"), [
    (HEAD + "{", 0.0, "IncompleteRead"), (HEAD + "{", 1.0, "TimeoutError")])
def test_an_answer_that_breaks_off(ask: Callable[[str], object], text: str, pause: float, why: str) -> None:
    with pytest.raises(Unavailable, match=f"does not answer .{why}"):
        ask(answering(text, pause))


def test_an_answer_that_is_no_json() -> None:
    url = answering("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")
    with pytest.raises(Unavailable, match="something else than JSON"):
        _list(url)
