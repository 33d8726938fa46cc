# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's side of the process that speaks with guests (``process``), and its start.

With systemd the process is a separate unit, ``magnetar-metadata.service``, with fewer rights than the agent's: systemd
listens at a socket that only root may use, and starts the unit when the agent connects. Otherwise the agent starts the
process itself. In both cases the process gets one connection for commands, and through it a second one for its
questions.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from typing import Any

from magnetar_core.errors import HypervisorError

from . import messages
from .messages import Message

#: Variable of the agent's unit with the socket at which systemd listens.
SOCKET_VARIABLE = "MAGNETAR_METADATA_SOCKET"
UNIT = "magnetar-metadata.service"
#: Seconds that the process may take to start, and to run a command.
ANSWERS = 60.0
#: Seconds that the process may take to end.
ENDS = 5.0
#: Fields of SO_PEERCRED: pid, uid, gid.
_PEER = struct.Struct("3i")


def peer_is_root(end: socket.socket) -> bool:
    """Return whether the process at the other end of the unix socket *end* runs as root, or as this process's user."""
    _pid, uid, _gid = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in (0, os.geteuid())


def start_guest_process() -> GuestProcess:
    """Return the process that speaks with guests, started and ready. Raises ``HypervisorError`` if it does not start.
    """
    path = os.environ.get(SOCKET_VARIABLE)
    return UnitProcess(path) if path else ChildProcess()


class GuestProcess:
    """The process that speaks with guests, whether systemd or the agent started it."""

    def __init__(self, commands: socket.socket) -> None:
        self.commands = commands
        self.commands.settimeout(ANSWERS)
        self.questions, theirs = socket.socketpair()
        try:
            with theirs:
                messages.send_message(self.commands, {"do": "begin"}, theirs.fileno())
            reply = messages.receive_message(self.commands)[0]
        except (EOFError, OSError, ValueError) as error:
            reply = {"failed": f"The process of the metadata service does not start: {error}."}
        if "ready" not in reply:
            self.end()
            raise HypervisorError(str(reply.get("failed")))

    def tell(self, do: str, **arguments: Any) -> tuple[Message, int | None]:
        """Send the command *do* to the process. Return its answer, and a descriptor or ``None``. Raises
        ``HypervisorError`` if the command failed, or the process is gone."""
        try:
            messages.send_message(self.commands, {"do": do, "with": arguments})
            answer, descriptor = messages.receive_message(self.commands)
        except (EOFError, OSError, ValueError) as error:
            raise HypervisorError(f"The process of the metadata service is gone: {error}.") from None
        if "failed" in answer:
            raise HypervisorError(str(answer["failed"]))
        return answer, descriptor

    def gone(self) -> bool:
        """Return whether the process has ended, or has sent an unexpected message."""
        poll = select.poll()
        poll.register(self.commands, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """End the process; the kernel then removes its namespaces and devices."""
        self.commands.close()
        with contextlib.suppress(OSError):
            self.questions.shutdown(socket.SHUT_RDWR)
        self.questions.close()
        self._wait()

    def _wait(self) -> None:
        """Wait until the process has ended; kill it if it does not end."""
        raise NotImplementedError


class ChildProcess(GuestProcess):
    """A process that the agent itself started, with the agent's sandbox and the user ``nobody``."""

    def __init__(self) -> None:
        commands, theirs = socket.socketpair()
        with theirs:
            self.child = subprocess.Popen(  # noqa: S603 (ours)
                [sys.executable, "-m", "magnetar_agent.metadata.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/")
        super().__init__(commands)

    def _wait(self) -> None:
        try:
            self.child.wait(ENDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait(ENDS)


class UnitProcess(GuestProcess):
    """A process that systemd started, with its own user and sandbox; *path*: where systemd listens."""

    def __init__(self, path: str) -> None:
        self._wait()  # the unit of a killed agent may still run
        commands = socket.socket(socket.AF_UNIX)
        try:
            commands.settimeout(ANSWERS)
            commands.connect(path)
            if not peer_is_root(commands):
                raise PermissionError("somebody else than root listens there")
        except OSError as error:
            commands.close()
            raise HypervisorError(f"The unit {UNIT} cannot be reached at {path}: {error}.") from None
        super().__init__(commands)

    def _wait(self) -> None:
        """Stop the unit with systemctl; systemd kills the process if it does not end. If systemctl fails, only the
        closed connection makes the process end."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["systemctl", "stop", "--quiet", UNIT], check=False,  # noqa: S603, S607 (the host's)
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=4 * ENDS)
