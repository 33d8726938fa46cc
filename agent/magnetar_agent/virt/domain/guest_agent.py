# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions inside a guest: through its guest agent (qemu-guest-agent), and the non-maskable interrupt."""

from __future__ import annotations

import logging
from typing import Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]
import libvirt_qemu  # type: ignore[import-untyped]

from magnetar_agent.virt.connection.limits import Lane
from magnetar_core.errors import Conflict, GuestRefused, HypervisorError, NoGuestAgent
from magnetar_core.http.guest_commands import printable_guest_text

from .power import Domains

log = logging.getLogger(__name__)

#: The name of the guest agent's channel.
CHANNEL = "org.qemu.guest_agent.0"
#: Seconds that a guest agent may take to answer: a freeze first writes the guest's cached data to its disks.
ANSWER = 30
#: Errors that mean that no agent answers.
_SILENT = frozenset({libvirt.VIR_ERR_AGENT_UNRESPONSIVE, libvirt.VIR_ERR_AGENT_UNSYNCED,
                     libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED})
#: Why no agent answers, where libvirt's error tells it.
_WHY = {libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED: "channel"}


class GuestAgent(Domains):
    """The methods of ``LocalHypervisor`` that use the QEMU guest agent."""

    def freeze(self, uuid: str) -> bool:
        """Freeze the file systems of the domain *uuid* by its guest agent. Return whether they are frozen. If the agent
        reports an error, the file systems are thawed again."""
        try:
            self._with("freeze the file systems of", uuid, lambda domain: _patient(domain).fsFreeze(),
                       lane=Lane.AGENT)
        except HypervisorError as error:
            log.info("the file systems of domain %s are not frozen: %s", uuid, error)
            if error.details.get("libvirt_code") not in _SILENT:
                self.thaw(uuid)
            return False
        return True

    def thaw(self, uuid: str) -> None:
        """Thaw the file systems of the domain *uuid* by its guest agent. Errors are only logged."""
        try:
            self._with("thaw the file systems of", uuid, lambda domain: _patient(domain).fsThaw(),
                       lane=Lane.AGENT)
        except (HypervisorError, Conflict) as error:
            log.warning("the file systems of domain %s may be frozen: %s", uuid, error)

    def agent_connected(self, uuid: str) -> bool:
        """Return whether a program in the guest of the domain *uuid*, usually the guest agent, has opened the guest
        agent's channel."""
        connected: list[bool] = []

        def look(domain: Any) -> None:
            if domain.isActive():
                xml = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 (libvirt wrote it)
                connected.extend(channel.get("state") == "connected"
                                 for channel in xml.iterfind("devices/channel/target")
                                 if channel.get("name") == CHANNEL)

        self._with("look for the guest agent of", uuid, look, missing_is_fine=True, lane=Lane.READ)
        return any(connected)

    def set_password(self, uuid: str, user: str, password: str) -> None:
        """Set the *password* of *user* in the domain *uuid* by its guest agent. Raises ``Conflict`` if no agent
        responds. Error messages do not contain the password."""
        try:
            self._with("set a password in", uuid, lambda domain: _patient(domain).setUserPassword(user, password, 0),
                       lane=Lane.AGENT)
        except HypervisorError as error:
            if error.details.get("libvirt_code") not in _SILENT:
                raise
            raise Conflict("No guest agent answers in the guest, so its passwords cannot be set. Install and start "
                           f"qemu-guest-agent there, then repeat the call. ({error})") from None

    def ask_guest_agent(self, uuid: str, request: str, seconds: int) -> str:
        """Send the JSON command *request* to the guest agent of the domain *uuid*, and return its JSON response.
        *seconds*: timeout of the command, in addition to 5 s in which libvirt contacts the agent. Raises
        ``NoGuestAgent`` or ``GuestRefused``."""
        answers: list[str] = []
        try:
            self._with("ask the guest agent of", uuid, lambda domain: answers.append(
                libvirt_qemu.qemuAgentCommand(domain, request, seconds, 0)), lane=Lane.AGENT)
        except HypervisorError as error:
            code = error.details.get("libvirt_code")
            if code in _SILENT:
                raise NoGuestAgent(printable_guest_text(error.message), why=_WHY.get(code, "silent")) from None
            if code != libvirt.VIR_ERR_INTERNAL_ERROR:
                raise
            raise GuestRefused(printable_guest_text(error.message)) from None
        return answers[0]

    def inject_nmi(self, uuid: str) -> None:
        """Send a non-maskable interrupt to the guest of the domain *uuid* (virDomainInjectNMI)."""
        self._with("send an NMI to", uuid, lambda domain: domain.injectNMI())


def _patient(domain: Any) -> Any:
    domain.agentSetResponseTimeout(ANSWER, 0)
    return domain
