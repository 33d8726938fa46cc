# SPDX-License-Identifier: GPL-3.0-or-later
"""The one-shots of a server: a row of ``ACTIONS`` has the arguments, the function, and whether it may be done again
when nobody knows whether it was done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar_agent.metadata import password
from magnetar_agent.reconcile import reconcile
from magnetar_agent.reconcile.task import Task
from magnetar_agent.servers.disks import snapshot
from magnetar_agent.servers.hardware import tpm
from magnetar_core.errors import Conflict
from magnetar_core.events import (
    AttachShareArgs,
    ClearPasswordArgs,
    CrashDumpArgs,
    CreateImageArgs,
    DetachShareArgs,
    RebootArgs,
    RebuildArgs,
)
from magnetar_core.fields import Field, Kind
from magnetar_core.hardware.rows import GUEST_USER
from magnetar_core.kinds import Server
from magnetar_core.power import CRASHED, LIVE, MISSING, OFF, RUNNING, SUSPENDED
from magnetar_core.server_plan import root_volume
from magnetar_core.values import Boolean, Integer, Nullable, Text, Uuid

from . import admin_password, shares, shutdown, verbs

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_core.operations import Operation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EventCall:
    """What an action works with. Whoever calls holds the action's ``lock``."""

    drivers: Drivers
    document: Document
    args: Fields
    operation: Operation
    request: str

    @property
    def host(self) -> LocalHost:
        """The host that the server is on."""
        return self.drivers.host

    def state(self) -> str:
        """The state of the domain."""
        domain = self.host.hypervisor.domain(self.document.id)
        return domain.state if domain else MISSING


def reboot(call: EventCall) -> Fields:
    """Nova's reboot: soft asks the guest, which must run, and falls back to hard; hard works in every state."""
    host, document, state = call.host, call.document, call.state()
    if call.args["type"] == "soft":
        if state != RUNNING:
            raise Conflict(f"A soft reboot needs a running server, and {document.name!r} is {state}. Start it, or "
                           "reboot it hard.", power_state=state)
        before = host.reboots.get(document.id, 0)
        host.hypervisor.reboot(document.id)
        if _rebooted(host, document, before, call.operation):
            return {}
        log.warning("server %s did not reboot by itself; it is powered off and on", document.name)
    power_cycle(call)
    return {}


def power_cycle(call: EventCall) -> None:
    """Nova's hard reboot: power off, define the domain anew from the document, and start, with whatever was missing of
    its disks, volumes and NICs. A saved memory is dropped. What a crash cuts short is finished when the agent starts
    again; the request's id in the document keeps the plug from being pulled twice."""
    host, document, state = call.host, call.document, call.state()
    given = call.args.get(tpm.GIVEN)
    tpm.secret(host, document, given)  # before the plug is pulled
    if document.state.get("power_cycled") != call.request:
        document.want["power"] = RUNNING
        document.state["unfinished"] = True
        host.documents.write(document)
        host.hypervisor.destroy(document.id)
        if state == SUSPENDED:
            host.hypervisor.discard_save(document.id)
        document.state["power_cycled"] = call.request
    verbs.define(Task(host, document, call.operation))
    reconcile.change(call.drivers, Server, document, {"power": RUNNING, tpm.GIVEN: given},
                     {"on_immutable": "fail", "merge": []}, call.operation)


def _rebooted(host: LocalHost, document: Document, before: int, operation: Operation) -> bool:
    """Whether the guest rebooted, more often than *before*, within the time that a shutdown may take."""
    id, deadline = document.id, time.monotonic() + shutdown.seconds(host, document)
    while host.reboots.get(id, 0) == before:
        if time.monotonic() >= deadline:
            return False
        operation.raise_if_cancelled()
        host.changes.wait(id, 0.5)
    return True


class HostCreateImageArgs(CreateImageArgs):
    """Arguments of making an image on a host, which a cloud may give more."""

    secret_uuid = Field(Nullable(Uuid()), "What the server's own key is called in the cloud's key manager: an image of "
                        "its encrypted root disk is encrypted with that.", default=None)


class HostRebootArgs(RebootArgs):
    """Arguments of a reboot on a host, which a cloud may give more."""

    tpm_secret = Field(Server.field("tpm_secret").value, "What its TPM is opened with.", secret=True)


class HostRebuildArgs(RebuildArgs):
    """Arguments of a rebuild on a host, which takes more for the guest."""

    personality = Field(Server.field("personality").value, "Files for the guest's first boot.", secret=True)
    guest_data = Field(Server.field("guest_data").value, "What a cloud has it told.", secret=True)
    vendor_data = Field(Server.field("vendor_data").value, "What the operator has it told.", secret=True)
    admin_pass = Field(Server.field("admin_pass").value, "Password that it is told once.", secret=True)
    disk_key = Field(Server.field("disk_key").value, "What its own disks are encrypted with from now on.", secret=True)
    tpm_secret = Field(Server.field("tpm_secret").value, "What its TPM is opened with.", secret=True)
    hardware = Field(Server.field("hardware").value, "What it has besides sizes from now on.")
    machine = Field(Server.field("machine").value, "Machine type from now on.")
    keep_volume = Field(Boolean(), "Whether a root disk that is a volume stays as it is.", default=False)


def rebuild(call: EventCall) -> Fields:
    """Nova's rebuild: the root disk is made again from an image. A note in the document, with the id of the request,
    lets the agent finish it after a crash, and recognise a request that was done."""
    document, state = call.document, call.document.state
    if state.get("rebuilt") == call.request:
        return {}
    if (state.get("rebuild") or {}).get("request") == call.request:
        reconcile.change(call.drivers, Server, document, {tpm.GIVEN: call.args.get(tpm.GIVEN)},
                         {"on_immutable": "fail", "merge": []}, call.operation)
        return {}
    if call.state() == SUSPENDED:
        raise Conflict(f"Server {document.name!r} is suspended, and a rebuild would lose its memory. Start it or stop "
                       "it first.", power_state=SUSPENDED)
    allowed = {"on_immutable": "rebuild", "merge": [], "rebuild": call.request,
               **{name: call.args[name] for name in ("preserve_ephemeral", "keep_volume")}}
    want = {name: value for name, value in call.args.items() if name not in allowed}
    if (root := root_volume(document.want)) and want.get("image"):  # that of its root volume
        want["block_device_mapping"] = [{**one, "uuid": want["image"]} if one is root else one
                                        for one in document.want["block_device_mapping"]]
        del want["image"]
    done = reconcile.change(call.drivers, Server, document, want, allowed, call.operation)
    return {"warnings": done.warnings} if done.warnings else {}


def create_image(call: EventCall) -> Fields:
    """See ``snapshot``."""
    return snapshot.create(call.host, call.document, call.args, call.operation, call.request)


def crash_dump(call: EventCall) -> Fields:
    """Nova's trigger_crash_dump."""
    state = call.state()
    if state not in LIVE:
        raise Conflict(f"A crash dump needs a running server, and {call.document.name!r} is {state}.",
                       power_state=state)
    call.host.hypervisor.inject_nmi(call.document.id)
    return {}


class ChangePasswordArgs(Kind):
    """Arguments of a new password."""

    user = Field(Nullable(GUEST_USER), "Whose password it is; null: C(admin_user) of the hardware, else root.",
                 default=None)
    password = Field(Text(0, 255, r"[^\x00-\x1f\x7f]*", "must not have control characters"), "The new password.",
                     required=True, secret=True)


def change_password(call: EventCall) -> Fields:
    """Nova's changePassword. The password is kept nowhere, and counts in place of one that was still to be set. The
    server is not locked while its guest is asked: one that says nothing keeps nobody from it."""
    user, password = call.args["user"], call.args["password"]
    with admin_password.instead(call.host, call.document.id, user) as name, call.operation.waiting():
        call.host.hypervisor.set_password(call.document.id, name, password)
    return {}


def clear_password(call: EventCall) -> Fields:
    """Nova's DELETE of os-server-password: forget what the guest has left, which changes nothing in the guest."""
    password.clear(call.host, call.document)
    return {}


def attach_share(call: EventCall) -> Fields:
    """Nova's attach of a share: the guest finds it from its next start on. *path* in the answer: the folder."""
    path = shares.check_attachable(call.host, call.args["share"])
    _change_shares(call, call.args["share"])
    return {"path": str(path)}


def detach_share(call: EventCall) -> Fields:
    """Nova's detach of a share."""
    _change_shares(call, None)
    return {}


def _change_shares(call: EventCall, share: str | None) -> None:
    """Write the document, then define the domain and write the config drive as it says: to do all again does no harm.
    """
    host, document, state = call.host, call.document, call.state()
    shares.change(document, state, call.args["tag"], share, call.args.get("share_id"))
    host.documents.write(document)
    if state in (OFF, CRASHED):
        task = Task(host, document, call.operation)
        verbs.define(task)
        if document.want["config_drive"]:
            verbs.drive(task)
            task.keep()


class TellGuestArgs(Kind):
    """Arguments of telling a guest what has changed."""

    revision = Field(Integer(0, 2**53), "Counts the changes: what is older than what is known changes nothing.",
                     required=True)
    metadata = Field(Server.field("metadata").value, "Keys and values, in place of those that there are.",
                     required=True)
    guest_data = Field(Server.field("guest_data").value, "What a cloud has it told.", required=True, secret=True)


def tell_guest(call: EventCall) -> Fields:
    """A cloud has renamed the server, or changed its metadata: the metadata service tells it from now on. Nothing else
    changes, and the config drive is written again with the next build."""
    document = call.document
    if document.state.get("told_revision", -1) < call.args["revision"]:
        document.want.update(metadata=call.args["metadata"], guest_data=call.args["guest_data"])
        document.state["told_revision"] = call.args["revision"]
        call.host.documents.write(document)
    return {}


class ChangeMachineArgs(Kind):
    """Arguments of another machine type."""

    machine = Field(Server.field("machine").value, "Machine type from now on.", required=True)


def change_machine(call: EventCall) -> Fields:
    """Have a server that is off be another machine, whatever it is now: who asks has looked. Its disks stay."""
    reconcile.change(call.drivers, Server, call.document, call.args,
                     {"on_immutable": "fail", "merge": [], "force": ["machine"]}, call.operation)
    return {}


def _never(_args: Fields) -> bool:
    return False


def _always(_args: Fields) -> bool:
    return True


@dataclass(frozen=True)
class EventAction:
    """*rule* declares the arguments; *act* does it and returns what the answer says besides. *again*: with which
    arguments it finds out by itself what of a request was done, or doing it twice is doing it once. *lock*: the kind of
    the server's lock that is held for all of it; with another one than its own it takes that where it needs it."""

    rule: type[Kind]
    act: Callable[[EventCall], Fields]
    again: Callable[[Fields], bool] = _never
    lock: str = Server.noun


ACTIONS: Mapping[str, EventAction] = {
    "reboot": EventAction(HostRebootArgs, reboot, again=lambda args: args["type"] == "hard"),
    "rebuild": EventAction(HostRebuildArgs, rebuild, again=_always),
    "create_image": EventAction(HostCreateImageArgs, create_image, again=_always),
    "crash_dump": EventAction(CrashDumpArgs, crash_dump),
    "change_password": EventAction(ChangePasswordArgs, change_password, again=_always, lock=admin_password.SETTING),
    "clear_password": EventAction(ClearPasswordArgs, clear_password, again=_always),
    "attach_share": EventAction(AttachShareArgs, attach_share, again=_always),
    "detach_share": EventAction(DetachShareArgs, detach_share, again=_always),
    "change_machine": EventAction(ChangeMachineArgs, change_machine, again=_always),
    "tell_guest": EventAction(TellGuestArgs, tell_guest, again=_always),
}


def checked(name: str, args: Mapping[str, Any]) -> Fields:
    """The arguments of the action *name*, with defaults."""
    rule = ACTIONS[name].rule
    return {**rule.defaults(), **rule.check(dict(args))}
