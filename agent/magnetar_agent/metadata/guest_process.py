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
    """Return whether the process at the other end of the unix socket *end* runs as root or as the current user."""
    _pid, uid, _gid = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in (0, os.geteuid())


def start_guest_process() -> GuestProcess:
    """Start the process that answers guests' HTTP requests: by systemd if it provides a socket, otherwise as a child
    process. Raises ``HypervisorError`` if the process does not start."""
    path = os.environ.get(SOCKET_VARIABLE)
    return UnitProcess(path) if path else ChildProcess()


class GuestProcess:
    """The process that answers guests' HTTP requests, as the agent sees it: a socket for commands to the process, and
    another for the questions of the process."""

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
        """Send the command *do* with its arguments to the process. Return the answer and a file descriptor that came
        with it, or ``None``. Raises ``HypervisorError`` if the command failed or the process has ended."""
        try:
            messages.send_message(self.commands, {"do": do, "with": arguments})
            answer, descriptor = messages.receive_message(self.commands)
        except (EOFError, OSError, ValueError) as error:
            raise HypervisorError(f"The process of the metadata service is gone: {error}.") from None
        if "failed" in answer:
            raise HypervisorError(str(answer["failed"]))
        return answer, descriptor

    def gone(self) -> bool:
        """Return whether the process has ended. An unexpected message from the process counts as its end."""
        poll = select.poll()
        poll.register(self.commands, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """End the process. The kernel then removes the process's network namespaces and their devices."""
        self.commands.close()
        with contextlib.suppress(OSError):
            self.questions.shutdown(socket.SHUT_RDWR)
        self.questions.close()
        self._wait()

    def _wait(self) -> None:
        """Wait until the process has ended. Kill it after a time limit."""
        raise NotImplementedError


class ChildProcess(GuestProcess):
    """The process that answers guests' HTTP requests, as a child process of the agent. It runs as the user ``nobody``
    in the agent's sandbox."""

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
    """The process that answers guests' HTTP requests, as a systemd unit with its own user and sandbox. *path*: the unix
    socket on which systemd listens and starts the unit."""

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
        """Stop the unit with systemctl; systemd kills the process if it does not end. Errors of systemctl are ignored:
        the process also ends when its connection is closed."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["systemctl", "stop", "--quiet", UNIT], check=False,  # noqa: S603, S607 (the host's)
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=4 * ENDS)
