# SPDX-License-Identifier: GPL-3.0-or-later
"""One API process of several, as a program of its own: ``supervisor`` starts it.

Its standard input contains the settings, and ends when the parent process ends. It writes one byte to its standard
output when it serves."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from typing import Any

from magnetar_control import serve
from magnetar_control.cli import configure_logging
from magnetar_control.settings import Settings
from magnetar_core.daemon.report import start_process_report

from .peers import Peers

#: The format of the length that precedes the settings.
LENGTH = struct.Struct("!Q")


def pack_orders(settings: Settings, peers: Peers) -> bytes:
    """Return the bytes that a new API process reads from its standard input: the length, then the pickled *settings*
    and *peers*."""
    orders = pickle.dumps((settings, peers))
    return LENGTH.pack(len(orders)) + orders


def _read_orders() -> tuple[Settings, Peers]:
    (length,) = LENGTH.unpack(_read_input(LENGTH.size))
    settings, peers = pickle.loads(_read_input(length))  # noqa: S301 - the process that started this one wrote it
    return settings, peers


def _read_input(length: int) -> bytes:
    content = b""
    while len(content) < length:
        piece = os.read(0, length - len(content))
        if not piece:
            raise SystemExit(1)  # the process that keeps this one has ended
        content += piece
    return content


def _end_with_input() -> None:
    """Wait until the standard input is closed, because the parent process has ended. Then end this process gracefully.
    """
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run an API process until SIGTERM. The first command-line argument is the file descriptor of its listening socket.
    """
    report = start_process_report("api worker")  # before any thread
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_given: over.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings, peers = _read_orders()
    report.process = f"api worker {peers.name}"
    threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    configure_logging(settings.log_level)
    with serve.running_worker(settings, peers) as server, socket.socket(fileno=int(sys.argv[1])) as shared, \
            socket.socket(socket.AF_UNIX) as private:
        peers.socket_path.unlink(missing_ok=True)
        private.bind(str(peers.socket_path))
        if not over.is_set():
            serve.serve_requests(settings, server, [shared, private], _tell_ready)


def _tell_ready(*_given: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(1, b"\n")


if __name__ == "__main__":
    main()
