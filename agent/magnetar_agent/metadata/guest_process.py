# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's end of the process that speaks with guests (``process``), and who starts it.

Where systemd is, that is a unit of its own, ``magnetar-metadata.service``, with fewer rights than the agent's: systemd
listens at a socket which only root may use, and starts the unit when the agent connects. Elsewhere the agent starts the
process itself. Either way the process gets one connection for commands, and over it one for its questions.
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

#: Where the agent's unit says at which socket systemd listens for it.
SOCKET_VARIABLE = "MAGNETAR_METADATA_SOCKET"
UNIT = "magnetar-metadata.service"
#: Seconds that the process may take to start, and to do a command.
ANSWERS = 60.0
#: Seconds that it may take to end.
ENDS = 5.0
#: Of SO_PEERCRED: pid, uid, gid.
_PEER = struct.Struct("3i")


def peer_is_root(end: socket.socket) -> bool:
    """Whether root is at the other end of a unix socket, or else this process's own user."""
    _pid, uid, _gid = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in (0, os.geteuid())


def begin() -> GuestProcess:
    """Have the process started, and wait until it is ready. ``HypervisorError``: it does not start."""
    path = os.environ.get(SOCKET_VARIABLE)
    return UnitProcess(path) if path else ChildProcess()


class GuestProcess:
    """The process, as whoever started it."""

    def __init__(self, commands: socket.socket) -> None:
        self.commands = commands
        self.commands.settimeout(ANSWERS)
        self.questions, theirs = socket.socketpair()
        try:
            with theirs:
                messages.send(self.commands, {"do": "begin"}, theirs.fileno())
            said = messages.receive(self.commands)[0]
        except (EOFError, OSError, ValueError) as error:
            said = {"failed": f"The process of the metadata service does not start: {error}."}
        if "ready" not in said:
            self.end()
            raise HypervisorError(str(said.get("failed")))

    def tell(self, do: str, **given: Any) -> tuple[Message, int | None]:
        """A command and its answer. ``HypervisorError`` when it could not, or the process is gone."""
        try:
            messages.send(self.commands, {"do": do, "with": given})
            answer, descriptor = messages.receive(self.commands)
        except (EOFError, OSError, ValueError) as error:
            raise HypervisorError(f"The process of the metadata service is gone: {error}.") from None
        if "failed" in answer:
            raise HypervisorError(str(answer["failed"]))
        return answer, descriptor

    def gone(self) -> bool:
        """Whether it has ended, or says what nobody has asked for."""
        poll = select.poll()
        poll.register(self.commands, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """End it; its namespaces and devices go with it."""
        self.commands.close()
        with contextlib.suppress(OSError):
            self.questions.shutdown(socket.SHUT_RDWR)
        self.questions.close()
        self._wait()

    def _wait(self) -> None:
        """Wait for its end, and bring it about if need be."""
        raise NotImplementedError


class ChildProcess(GuestProcess):
    """Started by the agent itself: with the agent's sandbox, as nobody."""

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
    """Started by systemd, as a user and in a sandbox of its own; *path*: where systemd listens."""

    def __init__(self, path: str) -> None:
        self._wait()  # for one of an agent that was killed
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
        """systemd ends it by force if it does not go by itself. Without systemd its connection is all there is."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["systemctl", "stop", "--quiet", UNIT], check=False,  # noqa: S603, S607 (the host's)
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=4 * ENDS)
