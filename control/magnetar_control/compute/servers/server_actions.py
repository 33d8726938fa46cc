# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to one server. Most actions are only written down for the conductors, with the server's task_state."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from magnetar_control.agents import AgentClient, plain
from magnetar_control.compute import tpm_secrets, waiting
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.compute.cloud import HostView
from magnetar_control.compute.flavors.flavors import check_memory
from magnetar_control.compute.flavors.hardware import (
    check_clear,
    check_keys,
    check_nics,
    check_placed,
    check_specs,
    kept_of_rebuilt,
    root_name,
)
from magnetar_control.compute.target import (
    ServerUseCase,
    Target,
    enqueue,
    guard,
    note_done,
    notify,
    of_server,
    on_volume,
    tell_stopped,
)
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.actions.action_secrets import argument
from magnetar_control.store.servers import migrations, servers
from magnetar_core.actions import ACTIONS, rule_of
from magnetar_core.errors import (
    Conflict,
    HypervisorDown,
    InvalidField,
    InvalidRequest,
    MagnetarError,
    NotFound,
    NotSupported,
    TimedOut,
    Unavailable,
    Unreachable,
)
from magnetar_core.power import LIVE

from . import rescue_disk
from .server_create import find_flavor, find_image, find_public_key, trusted_certificates
from .stored_hardware import rescue_device

#: The rule by which a resize or cold migration may go into another cell.
CROSS_CELL = "compute:servers:resize:cross_cell"
#: Seconds for a guest to set a password.
PASSWORD_LIMIT = 30


def _plain(key: str) -> ServerUseCase[[], None]:
    @of_server(key)
    def action(caller: Caller, target: Target) -> None:
        enqueue(caller, target, key)

    return action


#: The actions without arguments, by their keys: all that is said of one stands in its row of ``ACTIONS``.
PLAIN: Mapping[str, ServerUseCase[[], None]] = {key: _plain(key) for key, one in ACTIONS.items() if one.plain}


@of_server(rule=rule_of("reboot-soft"))
def reboot(caller: Caller, target: Target, type: str) -> None:
    """*type*: ``soft`` or ``hard``."""
    key = f"reboot-{type}"
    guard(caller, target, key)
    enqueue(caller, target, key, {"type": type})


@of_server("resize")
def resize(caller: Caller, target: Target, flavor_id: str, disk_config: str | None = None) -> None:
    """To another flavor, on the same host or another."""
    server, old = target.row, orjson.loads(target.row.flavor)
    flavor = find_flavor(caller, flavor_id, server.project_id)
    if flavor["id"] == old["id"]:
        raise InvalidRequest("When resizing, instances must change flavor!")
    if flavor["disk"] < old["disk"] and not on_volume(server):
        raise InvalidRequest("Resize error: the disk of the new flavor is smaller than that of the old one."
                             if flavor["disk"] else "Resize to zero disk flavor is not allowed.")
    if not on_volume(server):
        check_memory(flavor, server.image_id, orjson.loads(server.image).get("min_ram"))
    quotas.check_flavor(caller, Owner(server.project_id, server.user_id), old, flavor)
    image = orjson.loads(server.image)
    warning = check_specs(caller, flavor, None, image)
    check_keys(server, (flavor, image))
    tpm_secrets.check_becomes(caller, server, "resize", flavor, image)
    check_nics(flavor, image, orjson.loads(server.interfaces or "[]"))
    enqueue(caller, target, "resize", {"flavor": flavor, "disk_config": disk_config, **_cells(caller, target)},
            message=warning)


@of_server("migrate")
def migrate(caller: Caller, target: Target, host: str | None = None) -> None:
    """Cold migration, to *host* where it is named."""
    if host:
        check_cell(caller, target, _check_destination(caller, target, "migrate", host))
    enqueue(caller, target, "migrate", {"host": host, **_cells(caller, target)})


def _cells(caller: Caller, target: Target) -> dict[str, bool]:
    """What a resize or cold migration is told where the caller may have it go into another cell (row XCR-02)."""
    return {"cross_cell": True} if caller.allows(CROSS_CELL, target.row) else {}


@of_server("os-migrateLive")
def migrate_live(caller: Caller, target: Target, host: str | None = None, *, ask_for_hosts: bool = False,
                 forced: bool = False) -> None:
    """Live migration, to *host* where it is named. *ask_for_hosts*: refuse at once when there is no other host.
    *forced*: to that host whatever the scheduler thinks of it, if it has room."""
    if forced and not host:
        raise InvalidRequest("Can't force to a non-provided destination")
    if host:
        _check_destination(caller, target, "os-migrateLive", host)
    if ask_for_hosts and not host and len(caller.cloud.hosts.all()) < 2:
        raise InvalidRequest("No valid host was found. There are not enough hosts available.")
    drawn = str(uuid.uuid4())
    args = {"host": host, "migration": drawn, **({"forced": True} if forced else {})}
    enqueue(caller, target, "os-migrateLive", args, lambda connection: migrations.make(
        connection, target.row, drawn, user_id=caller.context.user_id, type=migrations.LIVE, status="queued"))


def abroad(caller: Caller, target: Target, host: HostView) -> bool:
    """Whether a host is in another cell than a server."""
    return target.database is not caller.cloud.store.cell(host.cell_id)


def check_cell(caller: Caller, target: Target, host: HostView) -> None:
    """Raises ``InvalidRequest`` where the caller may not have the server go to a host, since that is in another
    cell."""
    if abroad(caller, target, host) and not _cells(caller, target):
        raise InvalidRequest(f"Compute host {host.name} could not be found in the cell of the instance. Policy doesn't "
                             f"allow {CROSS_CELL} to be performed.")


def _check_destination(caller: Caller, target: Target, key: str, host: str) -> HostView:
    """Whether the caller may name the host of a move, and whether that can be it. Returns the host."""
    caller.check_policy(f"{rule_of(key)}:host", target.row)
    found = caller.cloud.hosts.get(host)
    if found is None:
        raise InvalidRequest(f"Compute host {host} could not be found.")
    if host == target.row.host:
        raise InvalidRequest(f"The instance is already on the host {host}; migrate it to another.")
    return found


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """A root disk anew, of an image. *files*: {path, contents in base64} each; ``None`` for those of before.
    *columns*: what changes of the server with it, of name, description, hostname, access_ip_v4, access_ip_v6,
    disk_config, user_data, key_name, trusted_certs (``None`` for the default ones). *metadata*: in place of that of
    before. *reimage*: whether a root disk that is a volume is made anew too; else it stays, and the image must be its
    own. *admin_pass*: a password that the guest is told."""

    image_id: str
    preserve_ephemeral: bool = False
    reimage: bool = True
    columns: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None
    files: Sequence[Mapping[str, str]] | None = None
    admin_pass: str | None = field(default=None, repr=False)


@of_server("rebuild")
def rebuild(caller: Caller, target: Target, wanted: Rebuild) -> servers.Found:
    """Make the root disk anew, from the same or another image. Returns the row afterwards."""
    server, trusted = target.row, {}
    if "trusted_certs" in wanted.columns:
        caller.check_policy(f"{rule_of('rebuild')}:trusted_certs", server)
        trusted["trusted_certs"] = trusted_certificates(caller, wanted.columns["trusted_certs"], on_volume(server))
    root, flavor = _root_volume(caller, server), orjson.loads(server.flavor)
    image = find_image(caller, wanted.image_id, flavor, int(root["size"]) if root else None)
    same = _image_of(server, root) == wanted.image_id
    if root and not wanted.reimage and not same:
        raise InvalidRequest(f"Image {wanted.image_id} is unacceptable: Unable to rebuild with a different image for a "
                             "volume-backed server.")
    warning = check_specs(caller, None, image, flavor, orjson.loads(server.image).get("properties") if same else None)
    check_placed(flavor, orjson.loads(server.image), image)
    check_keys(server, (flavor, image or {}))
    tpm_secrets.check_becomes(caller, server, "rebuild", flavor, image or {})
    limits = quotas.limits(caller)
    quotas.check_metadata(limits["metadata_items"], wanted.metadata)
    quotas.check_files(limits, wanted.files or ())
    made = {**({} if root else {"root_device_name": root_name(flavor, image or {})}),
            "image": servers.text(kept_of_rebuilt(server, image)), **_made_from(server, wanted.image_id)}
    columns = {**wanted.columns, **made, **trusted}
    if wanted.metadata is not None:
        columns["metadata"] = servers.text(wanted.metadata)
    args: dict[str, Any] = {"preserve_ephemeral": wanted.preserve_ephemeral, "image": wanted.image_id,
                            **({"reimage": wanted.reimage} if root else {}), **argument(wanted.admin_pass),
                            **({} if same else {
                                "before": {name: getattr(server, name) for name in made}})}
    if wanted.files is not None:
        args["personality"] = wanted.files
    if "key_name" in wanted.columns:
        args["public_key"] = find_public_key(caller, wanted.columns["key_name"])
    enqueue(caller, target, "rebuild", args, message=warning, **columns)
    found = servers.find(caller.cloud.store, server.id)
    return found[1] if found else server


def _image_of(server: servers.Found, root: Mapping[str, Any] | None) -> str | None:
    """The image of which the server's root disk, or its volume *root*, was made."""
    return (root.get("volume_image_metadata") or {}).get("image_id") if root else server.image_id


def _root_volume(caller: Caller, server: servers.Found) -> dict[str, Any] | None:
    """The volume that is the server's root disk; ``None`` where that is a local one. Raises ``InvalidRequest`` where
    the volume is gone."""
    if not on_volume(server):
        return None
    id = next((one["volume_id"] for one in orjson.loads(server.volumes) if one["boot_index"] == 0), None)
    found: dict[str, Any] | None = id and caller.cloud.services.volume.show(caller.context, id)
    if not found:
        raise InvalidRequest(f"The root disk of instance {server.id} is a volume that is not there any more, so it "
                             "cannot be rebuilt. Delete it, and make a new server.")
    return found


def _made_from(server: servers.Found, image_id: str) -> dict[str, Any]:
    """The columns that say from which image the root disk is made."""
    request = orjson.loads(server.request)
    blocks = [{**one, "uuid": image_id} if _is_root_of_image(one) else one for one in request.get("blocks") or ()]
    return {**({"image_id": image_id} if server.image_id else {}),
            **({"request": servers.text({**request, "blocks": blocks})} if blocks else {})}


def _is_root_of_image(block: Mapping[str, Any]) -> bool:
    return bool(block["boot_index"] == 0 and block["source_type"] == "image")


@of_server("rescue")
def rescue(caller: Caller, target: Target, image_id: str | None = None, *, volume_backed: bool = True,
           admin_pass: str | None = None) -> None:
    """Boot from another image, or from the server's own. *volume_backed*: whether a server whose root disk is a volume
    may be rescued. *admin_pass*: a password that the guest is told."""
    own = target.row.image_id
    if not own and not volume_backed:
        raise InvalidRequest("Cannot rescue a volume-backed instance (since microversion 2.87 with a "
                             "rescue_image_ref).")
    if not image_id and not own:
        raise InvalidRequest("rescue.rescue_image_ref: is required: the server boots from a volume, so there is no "
                             "image that would be taken")
    image = orjson.loads(target.row.image) if not image_id else caller.cloud.services.image.show(
        caller.context, image_id)
    if image is None:
        raise InvalidRequest(f"Image {image_id} could not be found.")
    check_clear(image)
    try:
        device = rescue_device(target.row, image)
    except InvalidField as error:
        raise InvalidRequest(f"Image {image_id or own} cannot rescue: {error.message}") from None
    if device is None and on_volume(target.row):
        raise InvalidRequest(f"Instance {target.row.id} cannot be rescued: Cannot rescue a volume-backed instance, "
                             "unless the rescue image has the property hw_rescue_device or hw_rescue_bus.")
    with rescue_disk.claimed(caller, target, image_id or own) as size:
        enqueue(caller, target, "rescue", {"image": image_id or own, **(device or {}), **argument(admin_pass)},
                rescue_gb=size)


@of_server("lock")
def lock(caller: Caller, target: Target, reason: str | None = None) -> None:
    """Keep others than admins from changing it."""
    server = target.row
    by = "owner" if server.project_id == caller.project and not caller.is_admin else "admin"
    with target.database.write() as connection:
        servers.change(connection, server.id, locked_by=server.locked_by or by, locked_reason=reason)
        note_done(caller, target, connection, "lock")


@of_server("unlock")
def unlock(caller: Caller, target: Target) -> None:
    """Take the lock away; that of an admin by an admin only."""
    if target.row.locked_by == "admin":
        caller.check_policy(f"{rule_of('unlock')}:unlock_override", target.row)
    with target.database.write() as connection:
        servers.change(connection, target.row.id, locked_by=None, locked_reason=None)
        note_done(caller, target, connection, "unlock")


@of_server("os-resetState")
def reset_state(caller: Caller, target: Target, state: str) -> None:
    """Say that a server is *state*, ``active`` or ``error``, and that nothing is done to it, unless it is being
    deleted."""
    with target.database.write() as connection:
        tell_stopped(caller, target.row.id, connection, stopped_actions.reset(connection, target.row.id))
        going = stopped_actions.going(connection, target.row.id)
        servers.change(connection, target.row.id, vm_state=state, task_state=servers.DELETING if going else None)
        notify(caller, target, connection, old_state=target.row.vm_state, old_task_state=target.row.task_state)


@of_server("injectNetworkInfo")
def inject_network_info(_caller: Caller, _target: Target) -> None:
    """Nothing, as in Nova with libvirt: guests are told by DHCP, config drive and metadata, which follow by themselves.
    Rule and lock are checked."""


@contextlib.contextmanager
def asked(caller: Caller, host: HostView) -> Iterator[AgentClient]:
    """The agent of *host*, for who waits for its answer. Raises ``Unavailable``."""
    cloud = caller.cloud
    with cloud.waiting.of(host.name, caller.project), cloud.agents.client(host.endpoint, waiting.ANSWER) as client:
        yield client


@of_server("changePassword")
def change_password(caller: Caller, target: Target, password: str) -> None:
    """In the guest, by its agent. The password goes to the host at once and is kept nowhere, so this waits for it."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None or not host.up:
        raise Unavailable(f"The host of instance {id} does not answer.", headers={"Retry-After": waiting.AGAIN})
    try:
        with asked(caller, host) as client:
            client.event("server", id, "change_password", {"password": password}, timeout=PASSWORD_LIMIT,
                         request_id=caller.request_id)
    except MagnetarError as error:
        raise _of_host(error, f"Failed to set admin password on {id}: {_words_for(caller, error)}") from None
    with target.database.write() as connection:
        note_done(caller, target, connection, "changePassword")


def _of_host(error: MagnetarError, text: str) -> MagnetarError:
    """Return the error of a request that a host could not answer: ``Unavailable`` where the host did not answer in
    time, so that clients try again, else ``Conflict``."""
    if isinstance(error, Unavailable):
        return error  # too many wait for it
    if isinstance(error, (Unreachable, TimedOut, HypervisorDown)):
        return Unavailable(text, headers={"Retry-After": waiting.AGAIN})
    return Conflict(text)


def _words_for(caller: Caller, error: MagnetarError) -> str:
    """What a failure at the server's host says to the caller: admins read which host, and why."""
    return error.message if caller.is_admin else plain(error)


@of_server("console")
def console_output(caller: Caller, target: Target, lines: int | None = None) -> str:
    """The last *lines* of the console log, all that is kept when left out. As in Nova an empty line counts that follows
    the last line break: with *lines* 10 the text has nine line breaks. Raises ``Conflict``, ``Unavailable``."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None:
        raise Conflict(f"Instance {id} is not ready")
    try:
        with asked(caller, host) as client:
            text = "" if lines == 0 else client.console(id, lines)
    except MagnetarError as error:
        raise _of_host(error, f"Unable to get console log of {id}: {_words_for(caller, error)}") from None
    return text if lines is None else "\n".join(text.split("\n")[-lines:])


@of_server(rule="os_compute_api:os-server-diagnostics")
def diagnostics(caller: Caller, target: Target) -> Mapping[str, Any]:
    """What the guest of a server that is on, paused or not, has used: the agent's document. Raises ``Conflict`` when
    the server is off or not there, ``Unavailable`` when its host does not answer, ``NotSupported`` when the agent is
    too old."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None:
        raise Conflict(f"Instance {id} is not ready: it is on no host.")
    its_host = f"its host {host.name}" if caller.context.knows_hosts else "its host"
    try:
        with asked(caller, host) as client:
            told = client.diagnostics(id)
    except NotFound as error:
        if "kind" not in error.details:  # it is the route that is not there
            raise NotSupported(f"The agent of {its_host} is too old to tell. Update it.") from None
        raise Conflict(f"Instance {id} is not ready: {its_host} does not have it.") from None
    except MagnetarError as error:
        raise _of_host(error, f"Instance {id} is not ready: {its_host} cannot tell: {_words_for(caller, error)} "
                              "Try again in a moment, or look at `openstack compute service list`.") from None
    if told["power_state"] not in LIVE:
        raise Conflict(f"Cannot 'get_diagnostics' instance {id} while it is in power state {told['power_state']}")
    return told
