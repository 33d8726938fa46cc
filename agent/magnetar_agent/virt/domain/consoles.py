# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to the consoles of domains: QEMU's VNC and SPICE servers, which listen on no port, and the serial
line."""

from __future__ import annotations

import contextlib
import os
import socket
import tty
from typing import Any
from xml.etree import ElementTree as ET

import libvirt_qemu  # type: ignore[import-untyped]

from magnetar_agent.host.hypervisor import NO_GRAPHICS
from magnetar_agent.virt.connection.limits import Lane
from magnetar_core.errors import Conflict, HypervisorError, NotSupported

from .power import Domains

#: The command for a break. Its id is libvirt's name, in QEMU, of the first serial line.
_BREAK = '{"execute": "chardev-send-break", "arguments": {"id": "charserial0"}}'


class Consoles(Domains):
    """The methods of ``LocalHypervisor`` for graphical and serial consoles."""

    def open_graphics(self, uuid: str, type: str) -> socket.socket:
        """Return a socket connected to the graphics server in the QEMU of the domain *uuid*. *type*: vnc or spice."""
        sockets: list[socket.socket] = []

        def take(domain: Any) -> None:
            types = [graphics.get("type") for graphics in _live(domain).iterfind("devices/graphics")]
            if type not in types:
                raise Conflict(NO_GRAPHICS[type])
            sockets.append(socket.socket(fileno=domain.openGraphicsFD(types.index(type), 0)))

        self._with(f"open the {type.upper()} console of", uuid, take)
        return sockets[0]

    def open_serial(self, uuid: str) -> int:
        """Return an open file descriptor of the pseudo-terminal of the serial console of the domain *uuid*, in raw
        mode. Raises ``Conflict`` if the guest was restarted meanwhile, because the pseudo-terminal may then belong to
        another program."""
        lines: list[int] = []

        def take(domain: Any) -> None:
            path = _terminal(domain)
            try:
                line = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise HypervisorError(f"The serial line {path} cannot be opened: {error.strerror}.") from None
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, line)
                if _terminal(domain) != path:
                    raise Conflict("The guest was started again meanwhile. Repeat the call.")
                tty.setraw(line)
                undo.pop_all()
            lines.append(line)

        self._with("open the serial console of", uuid, take, lane=Lane.READ)
        return lines[0]

    def send_break(self, uuid: str) -> None:
        """Send a serial break to the guest of the domain *uuid*, by QEMU's monitor command ``chardev-send-break``."""
        self._with("send a break to", uuid, lambda domain: libvirt_qemu.qemuMonitorCommand(domain, _BREAK, 0))


def _live(domain: Any) -> ET.Element:
    """Return the live XML of the libvirt domain object *domain*. Raises ``Conflict`` if it is not running."""
    if not domain.isActive():
        raise Conflict("The guest does not run, so it has no console. Start the server.")
    return ET.fromstring(domain.XMLDesc(0))  # noqa: S314 (libvirt wrote it)


def _terminal(domain: Any) -> str:
    """Return the path of the pseudo-terminal of the guest's serial console. Raises ``NotSupported`` if the guest has no
    such console."""
    source = _live(domain).find("devices/serial[@type='pty']/source")
    path = None if source is None else source.get("path")
    if not path:
        raise NotSupported("The guest has no serial line of type pty: its domain was made by something else. Add one "
                           "to the domain of an adopted server (virsh edit); stop another server and start it again.")
    return path
