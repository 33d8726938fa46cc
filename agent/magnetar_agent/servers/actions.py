# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of a server. A row of ``ACTIONS`` has the arguments, the function, and whether the action may be repeated
when its outcome is unknown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar_agent.metadata import password
from magnetar_agent.reconcile import reconcile
from magnetar_agent.reconcile.task import Task
from magnetar_agent.servers.adoption import adopted
from magnetar_agent.servers.disks import disk_owner, snapshot
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
from magnetar_core.server_plan import root_block_device
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
    """The input of an action such as reboot: the server's document, the checked arguments, and the request id. The
    caller holds the lock that ``EventAction.lock`` specifies."""

    drivers: Drivers
    document: Document
    args: Fields
    operation: Operation
    request: str

    @property
    def host(self) -> LocalHost:
        """Return the host that the server is on."""
        return self.drivers.host

    def state(self) -> str:
        """Return the current state of the server's domain; ``MISSING`` if it has none."""
        domain = self.host.hypervisor.domain(self.document.id)
        return domain.state if domain else MISSING


def reboot_guest(call: EventCall) -> Fields:
    """Reboot the guest, as Nova does. A soft reboot needs a running guest, and becomes a hard reboot if the guest does
    not reboot in time. A hard reboot works in every state. Return ``{}``: no additional fields for the API response."""
    host, document, state = call.host, call.document, call.state()
    if adopted.is_adopted(document):
        adopted.check_reboot(host, document)
    if call.args["type"] == "soft":
        if state != RUNNING:
            raise Conflict(f"A soft reboot needs a running server, and {document.name!r} is {state}. Start it, or "
                           "reboot it hard.", power_state=state)
        reboot_count = host.reboots.get(document.id, 0)
        host.hypervisor.reboot(document.id)
        if _rebooted(host, document, reboot_count, call.operation):
            return {}
        log.warning("server %s did not reboot by itself; it is powered off and on", document.name)
    power_cycle(call)
    return {}


def power_cycle(call: EventCall) -> None:
    """Power the server off, define its domain again from the document, and start it (Nova's hard reboot). Missing
    disks, volumes and NICs are created again; a saved memory is discarded. If the agent crashes meanwhile, its next
    start finishes the reboot. The request id in the document prevents a second power-off."""
    host, document, state = call.host, call.document, call.state()
    tpm_secret = call.args.get(tpm.GIVEN)
    tpm.open_tpm_secret(host, document, tpm_secret)  # before the plug is pulled
    if document.state.get("power_cycled") != call.request:
        document.want["power"] = RUNNING
        document.state["unfinished"] = True
        host.documents.write(document)
        host.hypervisor.destroy(document.id)
        if state == SUSPENDED:
            host.hypervisor.discard_save(document.id)
        document.state["power_cycled"] = call.request
    if not adopted.is_adopted(document):
        verbs.define(Task(host, document, call.operation))
    reconcile.change_resource(call.drivers, Server, document, {"power": RUNNING, tpm.GIVEN: tpm_secret},
                              {"on_immutable": "fail", "merge": []}, call.operation)


def _rebooted(host: LocalHost, document: Document, reboot_count: int, operation: Operation) -> bool:
    """Wait until the guest has rebooted, at most as long as a shutdown may take. Return whether it has. *reboot_count*:
    the number of the guest's reboots before the request."""
    id, deadline = document.id, time.monotonic() + shutdown.shutdown_seconds(host, document)
    while host.reboots.get(id, 0) == reboot_count:
        if time.monotonic() >= deadline:
            return False
        operation.raise_if_cancelled()
        host.changes.wait(id, 0.5)
    return True


class HostCreateImageArgs(CreateImageArgs):
    """The arguments of the action ``create_image``, including arguments that only the control plane sends."""

    secret_uuid = Field(Nullable(Uuid()), "What the server's own key is called in the cloud's key manager: an image of "
                        "its encrypted root disk is encrypted with that.", default=None)


class HostRebootArgs(RebootArgs):
    """The arguments of the action ``reboot``, including arguments that only the control plane sends."""

    tpm_secret = Field(Server.field("tpm_secret").value, "What its TPM is opened with.", secret=True)


class HostRebuildArgs(RebuildArgs):
    """The arguments of the action ``rebuild``, including arguments that only the control plane sends: new guest data,
    hardware and machine type."""

    personality = Field(Server.field("personality").value, "Files for the guest's first boot.", secret=True)
    guest_data = Field(Server.field("guest_data").value, Server.field("guest_data").doc, secret=True)
    vendor_data = Field(Server.field("vendor_data").value, Server.field("vendor_data").doc, secret=True)
    admin_pass = Field(Server.field("admin_pass").value,
                       "Password for the guest in the next config drive. It is deleted after that.", secret=True)
    disk_key = Field(Server.field("disk_key").value, "Keys for the encryption of the server's own disks from now on.",
                     secret=True)
    tpm_secret = Field(Server.field("tpm_secret").value, "What its TPM is opened with.", secret=True)
    hardware = Field(Server.field("hardware").value, "What it has besides sizes from now on.")
    machine = Field(Server.field("machine").value, "Machine type from now on.")
    keep_volume = Field(Boolean(), "Whether a root disk that is a volume stays as it is.", default=False)


def rebuild_root_disk(call: EventCall) -> Fields:
    """Recreate the root disk from an image (Nova's rebuild). A state field of the document with the request id lets the
    agent finish the rebuild after a crash, and recognise a repeated request. Return the field ``warnings`` for the API
    response, or ``{}``."""
    document, state = call.document, call.document.state
    if state.get("rebuilt") == call.request:
        return {}
    if (state.get("rebuild") or {}).get("request") == call.request:
        reconcile.change_resource(call.drivers, Server, document, {tpm.GIVEN: call.args.get(tpm.GIVEN)},
                                  {"on_immutable": "fail", "merge": []}, call.operation)
        return {}
    if call.state() == SUSPENDED:
        raise Conflict(f"Server {document.name!r} is suspended, and a rebuild would lose its memory. Start it or stop "
                       "it first.", power_state=SUSPENDED)
    allowed = {"on_immutable": "rebuild", "merge": [], "rebuild": call.request,
               **{name: call.args[name] for name in ("preserve_ephemeral", "keep_volume")}}
    want = {name: value for name, value in call.args.items() if name not in allowed}
    if (root := root_block_device(document.want)) and want.get("image"):  # the image of its root volume
        want["block_device_mapping"] = [{**block_device, "uuid": want["image"]} if block_device is root
                                        else block_device
                                        for block_device in document.want["block_device_mapping"]]
        del want["image"]
    done = reconcile.change_resource(call.drivers, Server, document, want, allowed, call.operation)
    return {"warnings": done.warnings} if done.warnings else {}


def image_root_disk(call: EventCall) -> Fields:
    """Create an image from the root disk (Nova's createImage). Return additional fields for the API response, from
    ``snapshot.create_snapshot_image``."""
    return snapshot.create_snapshot_image(call.host, call.document, call.args, call.operation, call.request)


def inject_crash_dump(call: EventCall) -> Fields:
    """Inject an NMI into the guest (Nova's trigger_crash_dump). Return ``{}``: no additional fields for the API
    response. Raises ``Conflict`` unless the server is running or paused."""
    state = call.state()
    if state not in LIVE:
        raise Conflict(f"A crash dump needs a running server, and {call.document.name!r} is {state}.",
                       power_state=state)
    call.host.hypervisor.inject_nmi(call.document.id)
    return {}


class ChangePasswordArgs(Kind):
    """The arguments of the action ``change_password``, which sets a password in the guest."""

    user = Field(Nullable(GUEST_USER), "Whose password it is; null: C(admin_user) of the hardware, else root.",
                 default=None)
    password = Field(Text(0, 255, r"[^\x00-\x1f\x7f]*", "must not have control characters"), "The new password.",
                     required=True, secret=True)


def change_guest_password(call: EventCall) -> Fields:
    """Have the guest agent set a password (Nova's changePassword). The new password is not stored. It replaces an
    earlier password that still waits for the guest agent. The server's lock is not held meanwhile, so a guest that does
    not answer blocks no other calls. Return ``{}``: no additional fields for the API response."""
    user, password = call.args["user"], call.args["password"]
    with admin_password.override_admin_password(call.host, call.document.id, user) as name, call.operation.waiting():
        call.host.hypervisor.set_password(call.document.id, name, password)
    return {}


def clear_password(call: EventCall) -> Fields:
    """Remove the password that the guest posted to the metadata service (Nova's DELETE of os-server-password). The
    guest is not changed. Return ``{}``: no additional fields for the API response."""
    password.clear_posted_password(call.host, call.document)
    return {}


def attach_share_folder(call: EventCall) -> Fields:
    """Attach a share (shared folder) to a stopped server, as Nova does. The guest can mount it after its next start.
    Return ``path``, the folder on the host, as an additional field for the API response."""
    path = shares.check_attachable(call.host, call.args["share"])
    _change_shares(call, call.args["share"])
    return {"path": str(path)}


def detach_share_folder(call: EventCall) -> Fields:
    """Detach a share (shared folder) from a stopped server, as Nova does. Return ``{}``: no additional fields for the
    API response."""
    _change_shares(call, None)
    return {}


def _change_shares(call: EventCall, share: str | None) -> None:
    """Record in the server's document that *share* (its name) is attached under the mount tag in the arguments;
    ``None``: record that no share has this mount tag. If the server is stopped, also update its domain definition and
    config drive. May be repeated."""
    host, document, state = call.host, call.document, call.state()
    shares.note_share(document, state, call.args["tag"], share, call.args.get("share_id"))
    host.documents.write(document)
    if state in (OFF, CRASHED):
        task = Task(host, document, call.operation)
        verbs.define(task)
        if document.want["config_drive"]:
            verbs.drive(task)
            task.keep()


class TellGuestArgs(Kind):
    """The arguments of the action ``tell_guest``, with which the control plane changes a server's metadata."""

    revision = Field(Integer(0, 2**53), "Counts the changes: what is older than what is known changes nothing.",
                     required=True)
    metadata = Field(Server.field("metadata").value, "Keys and values, in place of those that there are.",
                     required=True)
    guest_data = Field(Server.field("guest_data").value, Server.field("guest_data").doc, required=True, secret=True)


def tell_guest(call: EventCall) -> Fields:
    """Store new metadata from the control plane, such as a new server name. The metadata service returns it from now
    on; the config drive is not changed. A request whose revision is not newer than the stored one changes nothing.
    Return ``{}``: no additional fields for the API response."""
    document = call.document
    if document.state.get("told_revision", -1) < call.args["revision"]:
        document.want.update(metadata=call.args["metadata"], guest_data=call.args["guest_data"])
        document.state["told_revision"] = call.args["revision"]
        call.host.documents.write(document)
    return {}


class ChangeMachineArgs(Kind):
    """The arguments of the action ``change_machine``, which changes a server's machine type."""

    machine = Field(Server.field("machine").value, "Machine type from now on.", required=True)


def change_machine(call: EventCall) -> Fields:
    """Change the machine type of a stopped server, although requests to change a server's fields refuse a new machine
    type. The caller has checked that the new type is suitable. The disks are not changed. Return ``{}``: no additional
    fields for the API response."""
    reconcile.change_resource(call.drivers, Server, call.document, call.args,
                              {"on_immutable": "fail", "merge": [], "force": ["machine"]}, call.operation)
    return {}


class KeepDisksArgs(Kind):
    """The arguments of the action ``keep_disks``: it has none."""


def keep_adopted_disks(call: EventCall) -> Fields:
    """Make this host the permanent owner of the disks of a server that was evacuated to it (``disk_owner.keep_disks``).
    May be repeated. Return ``{}``: no additional fields for the API response."""
    disk_owner.keep_disks(call.host, call.document)
    return {}


def _never(_args: Fields) -> bool:
    return False


def _always(_args: Fields) -> bool:
    return True


@dataclass(frozen=True)
class EventAction:
    """An action of a server, such as reboot. *rule*: declares its arguments. *act*: performs it and returns additional
    fields for the API response.

    *again*: returns whether a call with these arguments may be repeated after a crash. *lock*: the type of the server's
    lock that the caller holds during the action: ``server``, or another type if the action itself takes the lock
    ``server`` for a part of its work.
    """

    rule: type[Kind]
    act: Callable[[EventCall], Fields]
    again: Callable[[Fields], bool] = _never
    lock: str = Server.noun


ACTIONS: Mapping[str, EventAction] = {
    "reboot": EventAction(HostRebootArgs, reboot_guest, again=lambda args: args["type"] == "hard"),
    "rebuild": EventAction(HostRebuildArgs, rebuild_root_disk, again=_always),
    "create_image": EventAction(HostCreateImageArgs, image_root_disk, again=_always),
    "crash_dump": EventAction(CrashDumpArgs, inject_crash_dump),
    "change_password": EventAction(ChangePasswordArgs, change_guest_password, again=_always,
                                   lock=admin_password.SETTING),
    "clear_password": EventAction(ClearPasswordArgs, clear_password, again=_always),
    "attach_share": EventAction(AttachShareArgs, attach_share_folder, again=_always),
    "detach_share": EventAction(DetachShareArgs, detach_share_folder, again=_always),
    "change_machine": EventAction(ChangeMachineArgs, change_machine, again=_always),
    "tell_guest": EventAction(TellGuestArgs, tell_guest, again=_always),
    "keep_disks": EventAction(KeepDisksArgs, keep_adopted_disks, again=_always),
}


def check_event_args(name: str, args: Mapping[str, Any]) -> Fields:
    """Return the arguments *args* of the action *name*, checked and with defaults. Raises ``InvalidField``."""
    rule = ACTIONS[name].rule
    return {**rule.defaults(), **rule.check(dict(args))}
