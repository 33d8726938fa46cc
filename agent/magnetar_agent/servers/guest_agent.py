# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to the guest agent of a server, and the check of its answers.

Whoever is root in the guest writes the answers: each is checked for type, size and range before it is used. A guest
agent that did not answer is left alone for a while, so that it does not keep the agents of other guests waiting for one
of libvirt's few slots.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict, GuestRefused, NoGuestAgent, NotFound, TooLarge
from magnetar_core.http.guest_commands import printable_guest_text
from magnetar_core.power import RUNNING

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: Seconds that a guest agent has for an answer. libvirt gives it 5 s more at the beginning of each question.
ANSWER_SECONDS = 10
#: Seconds for which a guest agent that did not answer is asked nothing, and for how many guests that is remembered.
QUIET_SECONDS, QUIET_GUESTS = 15.0, 1000
#: The most bytes of a question; see ``http.guest_commands.INPUT``.
QUESTION_BYTES = 2**16
INSTALL = "Install qemu-guest-agent in the guest and start it (or start it again), then repeat the call."
#: Where the settings of guest agents are that forbid commands.
ALLOW = ("In the guest, allow it in the settings of qemu-ga (on Red Hat and its relatives /etc/sysconfig/qemu-ga, "
         "elsewhere /etc/qemu/qemu-ga.conf), and restart qemu-guest-agent.")


class GuestAgents:
    """A client of the QEMU guest agents in the servers of one *host*."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        #: When each guest agent left a question without an answer, sorted by time.
        self._quiet: dict[str, float] = {}
        self._lock = threading.Lock()

    def ask(self, document: Document, command: str, **arguments: Any) -> Any:
        """Send *command* with *arguments* to the server's QEMU guest agent, and return the value from its JSON answer.
        Raises ``Conflict`` if the guest is not running. Raises ``NoGuestAgent`` if no agent answers, or the agent
        cannot execute *command* (see ``_refusal``). Raises ``GuestRefused`` for any other error of the agent, and
        ``TooLarge`` for a long command."""
        self._check_can_ask(document)
        question = json.dumps({"execute": command, **({"arguments": arguments} if arguments else {})})
        if len(question) > QUESTION_BYTES:
            raise TooLarge(f"The command for the guest agent has {len(question)} bytes, and {QUESTION_BYTES} at most "
                           "are passed on. Write what is longer into a file of the guest.")
        try:
            text = self.host.hypervisor.ask_guest_agent(document.id, question, ANSWER_SECONDS)
        except NoGuestAgent as error:
            raise self._silent(document, error) from None
        except GuestRefused as error:
            raise _refusal(document, command, error.message) from None
        return parse_guest_answer(document, command, text)

    def _check_can_ask(self, document: Document) -> None:
        """Raise an error if no command can be sent to the server's guest agent at present: the server is deleted or not
        running, or the agent recently failed to answer."""
        id, current = document.id, self.host.documents.peek_by_id("server", document.id)
        if current is None or current.deleting:
            raise NotFound(f"Server {document.name!r} was removed in the meantime.", kind="server", key=id)
        domain = self.host.hypervisor.domain(id)
        if domain is None or domain.state != RUNNING:
            state = domain.state if domain else "off"
            raise Conflict(f"Server {document.name!r} is {state}, so its guest agent does nothing. Start the server.",
                           power_state=state)
        with self._lock:
            since = self._quiet.get(id)
            if since is not None and time.monotonic() - since < QUIET_SECONDS:
                left = since + QUIET_SECONDS - time.monotonic()
                raise NoGuestAgent(f"The guest agent of server {document.name!r} has just left a question without an "
                                   f"answer, and is asked again in {left:.0f} s. See that qemu-guest-agent runs in the "
                                   "guest.", why="quiet")

    def _silent(self, document: Document, error: NoGuestAgent) -> NoGuestAgent:
        """Return the error for a guest agent that does not answer. *error*: the error from libvirt. Unless the server
        lacks the guest agent's channel, remember the time: for some seconds, further commands to this agent fail
        without being sent."""
        why = error.details.get("why", "silent")
        if why == "channel":
            return NoGuestAgent(f"Server {document.name!r} has no channel for a guest agent. Leave out guest_agent: "
                                "false of its hardware (hw_qemu_guest_agent=no of its image); then stop the server "
                                f"and start it. {INSTALL}", why=why)
        with self._lock:
            self._quiet.pop(document.id, None)
            self._quiet[document.id] = time.monotonic()
            if len(self._quiet) > QUIET_GUESTS:
                del self._quiet[next(iter(self._quiet))]
        return NoGuestAgent(f"The guest agent of server {document.name!r} does not answer. {INSTALL} "
                            f"({error.message.rstrip('.')})", why=why)


def parse_guest_answer(document: Document, command: str, text: str) -> Any:
    """Return the value in the guest agent's JSON answer *text* to *command*. Raises ``GuestRefused`` if the answer is
    not valid. Raises ``GuestRefused`` or ``NoGuestAgent`` if the answer is an error (see ``_refusal``)."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid_guest_answer(document, command) from None
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        raise _refusal(document, command, str(answer["error"].get("desc", "no reason"))[:1000])
    if not isinstance(answer, dict) or "return" not in answer:
        raise invalid_guest_answer(document, command)
    return answer["return"]


def invalid_guest_answer(document: Document, command: str) -> GuestRefused:
    """Return the error for an answer to *command* that violates the guest agent's protocol."""
    return GuestRefused(f"What answers as the guest agent of server {document.name!r} does not keep its protocol "
                        f"({command}): the answer is not used. See which program opens the channel "
                        "org.qemu.guest_agent.0 in the guest.", why="answer")


def _refusal(document: Document, command: str, reason: str) -> GuestRefused | NoGuestAgent:
    """Return the error for a guest agent that refused *command*: ``NoGuestAgent`` if the agent is frozen, too old or
    not allowed to execute it, otherwise ``GuestRefused``. *reason*: error text from the guest."""
    shown, whose = printable_guest_text(reason), f"The guest agent of server {document.name!r}"
    if "frozen" in reason:
        return NoGuestAgent(f"{whose} does nothing while the file systems are frozen, as for a copy of the disks. "
                            "Repeat the call in a few seconds.", why="frozen")
    if "has been disabled" in reason or "not allowed" in reason:
        return NoGuestAgent(f"{whose} is not allowed to do {command}. {ALLOW}", why="disabled")
    if "not been found" in reason and command in reason:
        return NoGuestAgent(f"{whose} does not know {command}: it is too old. Install a newer qemu-guest-agent in the "
                            "guest.", why="old")
    return GuestRefused(f"{whose} refused {command}: {shown}", why="refused")


def number_of_answer(document: Document, command: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return *value*, a field of the answer to *command*. Raises ``GuestRefused`` unless it is an integer from *least*
    to *most*."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise invalid_guest_answer(document, command)
    return value


def bytes_of_answer(document: Document, command: str, value: Any, most: int) -> bytes:
    """Decode *value*, a base64 field of the answer to *command*. Raises ``GuestRefused`` if it is not base64 or has
    more than *most* bytes."""
    if not isinstance(value, str) or len(value) > most * 4 // 3 + 8:
        raise invalid_guest_answer(document, command)
    try:
        content = base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_guest_answer(document, command) from None
    if len(content) > most:
        raise invalid_guest_answer(document, command)
    return content
