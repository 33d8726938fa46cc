# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions on one server. Most are only queued for the conductors, with the server's task_state."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.agents import AgentClient, user_message
from magnetar_control.compute import tpm_secrets, waiting
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.availability.ha_policy import check_ha_metadata
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.compute.cloud import HostView
from magnetar_control.compute.flavors.flavors import check_flavor_memory
from magnetar_control.compute.flavors.hardware import (
    check_encryption_unchanged,
    check_image_unencrypted,
    check_nics,
    check_placement_unchanged,
    check_server_specs,
    root_name,
    stored_rebuild_image,
)
from magnetar_control.compute.target import (
    ServerTarget,
    ServerUseCase,
    boots_from_volume,
    check_action_allowed,
    enqueue_action,
    note_done_action,
    notify_server,
    notify_stopped_actions,
    server_use_case,
)
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.actions.actions import password_argument
from magnetar_control.store.servers import migrations, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import ACTIONS, policy_rule_of_action
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

#: The rule that allows a resize or cold migration into another cell.
CROSS_CELL = "compute:servers:resize:cross_cell"
#: Seconds for a guest to set a password.
PASSWORD_LIMIT = 30


def _plain_action(key: str) -> ServerUseCase[[], None]:
    def action(caller: Caller, target: ServerTarget) -> None:
        enqueue_action(caller, target, key)

    action.__doc__ = f"Queue the action for the conductors. Its states: {', '.join(ACTIONS[key].states)}."
    return server_use_case(key)(action)


#: The actions without arguments, by their keys. Their rows of ``ACTIONS`` define them.
PLAIN: Mapping[str, ServerUseCase[[], None]] = {key: _plain_action(key) for key,
                                                action in ACTIONS.items() if action.plain}


@server_use_case(rule=policy_rule_of_action("reboot-soft"))
def reboot_server(caller: Caller, target: ServerTarget, type: str) -> None:
    """Queue a reboot of the server. *type*: ``soft`` or ``hard``."""
    key = f"reboot-{type}"
    check_action_allowed(caller, target, key)
    enqueue_action(caller, target, key, {"type": type})


@server_use_case("resize")
def resize_server(caller: Caller, target: ServerTarget, flavor_id: str, disk_config: str | None = None) -> None:
    """Queue the resize of the server to the flavor *flavor_id*, on the same host or another. *disk_config*: the new
    value of ``OS-DCF:diskConfig``; ``None`` changes nothing."""
    server, old = target.row, target.row.flavor
    flavor = find_flavor(caller, flavor_id, server.project_id)
    if flavor["id"] == old["id"]:
        raise InvalidRequest("When resizing, instances must change flavor!")
    if flavor["disk"] < old["disk"] and not boots_from_volume(server):
        raise InvalidRequest("Resize error: the disk of the new flavor is smaller than that of the old one."
                             if flavor["disk"] else "Resize to zero disk flavor is not allowed.")
    if not boots_from_volume(server):
        check_flavor_memory(flavor, server.image_id, server.image.get("min_ram"))
    quotas.check_flavor_quota(caller, Owner(server.project_id, server.user_id), old, flavor)
    image = server.image
    warning = check_server_specs(caller, flavor, None, image)
    check_encryption_unchanged(server, (flavor, image))
    tpm_secrets.check_tpm_change(caller, server, "resize", flavor, image)
    check_nics(flavor, image, server.nics)
    enqueue_action(caller, target, "resize", {"flavor": flavor, "disk_config": disk_config, **_cells(caller, target)},
                   message=warning)


@server_use_case("migrate")
def migrate_server(caller: Caller, target: ServerTarget, host: str | None = None) -> None:
    """Queue a cold migration of the server to *host*, or to a host that the scheduler chooses."""
    if host:
        check_cell_change(caller, target, _check_destination(caller, target, "migrate", host))
    enqueue_action(caller, target, "migrate", {"host": host, **_cells(caller, target)})


def _cells(caller: Caller, target: ServerTarget) -> dict[str, bool]:
    """Return additional arguments of a resize or cold migration. They are {"cross_cell": True} if the policy allows the
    caller to move the server to another cell; the scheduler may then choose a host there. Otherwise they are {}."""
    return {"cross_cell": True} if caller.allows(CROSS_CELL, target.row) else {}


@server_use_case("os-migrateLive")
def live_migrate_server(caller: Caller, target: ServerTarget, host: str | None = None, *, ask_for_hosts: bool = False,
                        forced: bool = False) -> None:
    """Queue a live migration of the server to *host*, or to a host that the scheduler chooses. *ask_for_hosts*: refuse
    the request immediately when the cloud has no other host. *forced*: use *host* without the scheduler's filters, if
    *host* has enough free resources."""
    if forced and not host:
        raise InvalidRequest("Can't force to a non-provided destination")
    if host:
        _check_destination(caller, target, "os-migrateLive", host)
    if ask_for_hosts and not host and len(caller.cloud.hosts.all()) < 2:
        raise InvalidRequest("No valid host was found. There are not enough hosts available.")
    drawn = str(uuid.uuid4())
    args = {"host": host, "migration": drawn, **({"forced": True} if forced else {})}
    enqueue_action(caller, target, "os-migrateLive", args, lambda connection: migrations.insert_migration_row(
        connection, target.row, drawn, user_id=caller.context.user_id, type=migrations.LIVE, status="queued"))


def is_other_cell(caller: Caller, target: ServerTarget, host: HostView) -> bool:
    """Return whether *host* is in another cell than the server."""
    return target.database is not caller.cloud.store.cell(host.cell_id)


def check_cell_change(caller: Caller, target: ServerTarget, host: HostView) -> None:
    """Raise ``InvalidRequest`` when *host* is in another cell than the server and the caller may not move the server
    there."""
    if is_other_cell(caller, target, host) and not _cells(caller, target):
        raise InvalidRequest(f"Compute host {host.name} could not be found in the cell of the instance. Policy doesn't "
                             f"allow {CROSS_CELL} to be performed.")


def _check_destination(caller: Caller, target: ServerTarget, key: str, host: str) -> HostView:
    """Return the destination *host* of the action *key*, after checking that the caller may choose a host, and that
    *host* exists and is not the server's current host."""
    caller.check_policy(f"{policy_rule_of_action(key)}:host", target.row)
    destination = caller.cloud.hosts.get(host)
    if destination is None:
        raise InvalidRequest(f"Compute host {host} could not be found.")
    if host == target.row.host:
        raise InvalidRequest(f"The instance is already on the host {host}; migrate it to another.")
    return destination


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """A request to rebuild a server's root disk from an image.

    *files*: injected files, each {path, contents in base64}; ``None`` keeps the previous files. *columns*: new values
    of name, description, hostname, access_ip_v4, access_ip_v6, disk_config, user_data, key_name, trusted_certs
    (``None`` for the default ones). *metadata*: replaces the previous metadata. *reimage*: also rebuild a root disk
    that is a volume; if false, the volume is not changed, and *image_id* must be the volume's image. *admin_pass*: a
    password for the guest.
    """

    image_id: str
    preserve_ephemeral: bool = False
    reimage: bool = True
    columns: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None
    files: Sequence[Mapping[str, str]] | None = None
    admin_pass: str | None = field(default=None, repr=False)


@server_use_case("rebuild")
def rebuild_server(caller: Caller, target: ServerTarget, wanted: Rebuild) -> ServerRow:
    """Queue a rebuild of the server's root disk as requested by *wanted*, from the same or another image. Return the
    server's row with the new values."""
    server, trusted = target.row, {}
    if "trusted_certs" in wanted.columns:
        caller.check_policy(f"{policy_rule_of_action('rebuild')}:trusted_certs", server)
        trusted["trusted_certs"] = trusted_certificates(caller, wanted.columns["trusted_certs"],
                                                        boots_from_volume(server))
    root, flavor = _root_volume(caller, server), server.flavor
    image = find_image(caller, wanted.image_id, flavor, int(root["size"]) if root else None)
    same = _image_of(server, root) == wanted.image_id
    if root and not wanted.reimage and not same:
        raise InvalidRequest(f"Image {wanted.image_id} is unacceptable: Unable to rebuild with a different image for a "
                             "volume-backed server.")
    warning = check_server_specs(caller, None, image, flavor, server.image.get("properties") if same
                                 else None)
    check_placement_unchanged(flavor, server.image, image)
    check_encryption_unchanged(server, (flavor, image or {}))
    tpm_secrets.check_tpm_change(caller, server, "rebuild", flavor, image or {})
    limits = quotas.quota_limits(caller)
    quotas.check_metadata_quota(limits["metadata_items"], wanted.metadata)
    check_ha_metadata(caller.cloud.settings, wanted.metadata)
    quotas.check_file_quota(limits, wanted.files or ())
    made = {**({} if root else {"root_device_name": root_name(flavor, image or {})}),
            "image": servers.json_text(stored_rebuild_image(server, image)), **_made_from(server, wanted.image_id)}
    columns = {**wanted.columns, **made, **trusted}
    if wanted.metadata is not None:
        columns["metadata"] = servers.json_text(wanted.metadata)
    args: dict[str, Any] = {"preserve_ephemeral": wanted.preserve_ephemeral, "image": wanted.image_id,
                            **({"reimage": wanted.reimage} if root else {}), **password_argument(wanted.admin_pass),
                            **({} if same else {
                                "before": {name: getattr(server.stored, name) for name in made}})}
    if wanted.files is not None:
        args["personality"] = wanted.files
    if "key_name" in wanted.columns:
        args["public_key"] = find_public_key(caller, wanted.columns["key_name"])
    enqueue_action(caller, target, "rebuild", args, message=warning, **columns)
    located_server = servers.find_server_row(caller.cloud.store, server.id)
    return located_server[1] if located_server else server


def _image_of(server: ServerRow, root: Mapping[str, Any] | None) -> str | None:
    """Return the uuid of the image from which the server's root disk was made; ``None`` if there is none. *root*: the
    root volume; ``None`` for a local root disk."""
    return (root.get("volume_image_metadata") or {}).get("image_id") if root else server.image_id


def _root_volume(caller: Caller, server: ServerRow) -> dict[str, Any] | None:
    """Return the volume that is the server's root disk; ``None`` for a local disk. Raises ``InvalidRequest`` when the
    volume does not exist any more."""
    if not boots_from_volume(server):
        return None
    id = next((attachment["volume_id"] for attachment in server.volumes if attachment["boot_index"] == 0), None)
    volume = caller.cloud.services.volume.show(caller.context, id) if id else None
    if not volume:
        raise InvalidRequest(f"The root disk of instance {server.id} is a volume that is not there any more, so it "
                             "cannot be rebuilt. Delete it, and make a new server.")
    return volume


def _made_from(server: ServerRow, image_id: str) -> dict[str, Any]:
    """Return the columns of the server's row that store *image_id* as the new image of the root disk."""
    request = server.request
    block_devices = [{**block_device, "uuid": image_id} if _is_root_of_image(block_device) else block_device
                     for block_device in request.get("blocks") or ()]
    return {**({"image_id": image_id} if server.image_id else {}),
            **({"request": servers.json_text({**request, "blocks": block_devices})} if block_devices else {})}


def _is_root_of_image(block_device: Mapping[str, Any]) -> bool:
    return bool(block_device["boot_index"] == 0 and block_device["source_type"] == "image")


@server_use_case("rescue")
def rescue_server(caller: Caller, target: ServerTarget, image_id: str | None = None, *, volume_backed: bool = True,
                  admin_pass: str | None = None) -> None:
    """Queue a rescue of the server: it boots from the image *image_id*, or from the server's own image if *image_id* is
    ``None``. *volume_backed*: allow a server that boots from a volume. *admin_pass*: a password for the guest."""
    own_image_id = target.row.image_id
    if not own_image_id and not volume_backed:
        raise InvalidRequest("Cannot rescue a volume-backed instance (since microversion 2.87 with a "
                             "rescue_image_ref).")
    if not image_id and not own_image_id:
        raise InvalidRequest("rescue.rescue_image_ref: is required: the server boots from a volume, so there is no "
                             "image that would be taken")
    image = target.row.image if not image_id else caller.cloud.services.image.show(
        caller.context, image_id)
    if image is None:
        raise InvalidRequest(f"Image {image_id} could not be found.")
    check_image_unencrypted(image)
    try:
        device = rescue_device(target.row, image)
    except InvalidField as error:
        raise InvalidRequest(f"Image {image_id or own_image_id} cannot rescue: {error.message}") from None
    if device is None and boots_from_volume(target.row):
        raise InvalidRequest(f"Instance {target.row.id} cannot be rescued: Cannot rescue a volume-backed instance, "
                             "unless the rescue image has the property hw_rescue_device or hw_rescue_bus.")
    with rescue_disk.claimed_rescue_disk(caller, target, image_id or own_image_id) as size:
        enqueue_action(caller, target, "rescue", {"image": image_id or own_image_id, **(device or {}),
                                                  **password_argument(admin_pass)},
                       rescue_gb=size)


@server_use_case("lock")
def lock_server(caller: Caller, target: ServerTarget, reason: str | None = None) -> None:
    """Lock the server, so that only admins can change it until it is unlocked, and store the *reason*."""
    server = target.row
    by = "owner" if server.project_id == caller.project and not caller.is_admin else "admin"
    with target.database.write() as connection:
        servers.update_server_row(connection, server.id, locked_by=server.locked_by or by, locked_reason=reason)
        note_done_action(caller, target, connection, "lock")


@server_use_case("unlock")
def unlock_server(caller: Caller, target: ServerTarget) -> None:
    """Unlock the server. Only an admin can remove the lock of an admin."""
    if target.row.locked_by == "admin":
        caller.check_policy(f"{policy_rule_of_action('unlock')}:unlock_override", target.row)
    with target.database.write() as connection:
        servers.update_server_row(connection, target.row.id, locked_by=None, locked_reason=None)
        note_done_action(caller, target, connection, "unlock")


@server_use_case("os-resetState")
def reset_server_state(caller: Caller, target: ServerTarget, state: str) -> None:
    """Set the server's vm_state to *state*, ``active`` or ``error``, and cancel the server's actions, except a deletion
    in progress."""
    with target.database.write() as connection:
        notify_stopped_actions(caller, target.row.id, connection,
                               stopped_actions.reset_server_actions(connection, target.row.id))
        going = stopped_actions.deletion_is_pending(connection, target.row.id)
        servers.update_server_row(connection, target.row.id, vm_state=state,
                                  task_state=servers.DELETING if going else None)
        notify_server(caller, target, connection, old_state=target.row.vm_state, old_task_state=target.row.task_state)


@server_use_case("injectNetworkInfo")
def inject_network_info(_caller: Caller, _target: ServerTarget) -> None:
    """Check policy rule and lock, and do nothing else, as Nova does with libvirt: guests learn their addresses from
    DHCP, config drive and metadata."""


@contextlib.contextmanager
def agent_of_host(caller: Caller, host: HostView) -> Iterator[AgentClient]:
    """Yield a client of the agent of *host*, for requests that wait for its answer. The number of such requests is
    limited; raises ``Unavailable`` when the limit is reached for too long."""
    cloud = caller.cloud
    with cloud.waiting.of(host.name, caller.project), cloud.agents.client(host.endpoint, waiting.ANSWER) as client:
        yield client


@server_use_case("changePassword")
def change_server_password(caller: Caller, target: ServerTarget, password: str) -> None:
    """Set *password* in the guest through the QEMU guest agent, and wait for the result. The password is sent directly
    to the host and not stored. Raises ``Conflict``, ``Unavailable``."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None or not host.up:
        raise Unavailable(f"The host of instance {id} does not answer.", headers={"Retry-After": waiting.AGAIN})
    try:
        with agent_of_host(caller, host) as client:
            client.event("server", id, "change_password", {"password": password}, timeout=PASSWORD_LIMIT,
                         request_id=caller.request_id)
    except MagnetarError as error:
        raise _host_error(error, f"Failed to set admin password on {id}: {_words_for(caller, error)}") from None
    with target.database.write() as connection:
        note_done_action(caller, target, connection, "changePassword")


def _host_error(error: MagnetarError, text: str) -> MagnetarError:
    """Return an error with the message *text* for a request that has failed with *error* at a host: ``Unavailable``,
    which asks clients to try again, when the host did not answer in time; otherwise ``Conflict``."""
    if isinstance(error, Unavailable):
        return error  # too many requests wait for it
    if isinstance(error, (Unreachable, TimedOut, HypervisorDown)):
        return Unavailable(text, headers={"Retry-After": waiting.AGAIN})
    return Conflict(text)


def _words_for(caller: Caller, error: MagnetarError) -> str:
    """Return the message of *error*, a failure at the server's host, for the caller: with the host and the reason only
    if the caller is an admin."""
    return error.message if caller.is_admin else user_message(error)


@server_use_case("console")
def show_console_output(caller: Caller, target: ServerTarget, lines: int | None = None) -> str:
    """Return the last *lines* of the console log; the whole log if *lines* is ``None``. As in Nova, the empty line
    after the last line break counts: with *lines* 10 the text has nine line breaks. Raises ``Conflict``,
    ``Unavailable``."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None:
        raise Conflict(f"Instance {id} is not ready")
    try:
        with agent_of_host(caller, host) as client:
            text = "" if lines == 0 else client.console(id, lines)
    except MagnetarError as error:
        raise _host_error(error, f"Unable to get console log of {id}: {_words_for(caller, error)}") from None
    return text if lines is None else "\n".join(text.split("\n")[-lines:])


@server_use_case(rule="os_compute_api:os-server-diagnostics")
def show_diagnostics(caller: Caller, target: ServerTarget) -> Mapping[str, Any]:
    """Return the diagnostics of a running or paused guest, as the host's agent reports them. Raises ``Conflict`` when
    the server is off or has no host, ``Unavailable`` when its host does not answer, ``NotSupported`` when the agent is
    too old."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None:
        raise Conflict(f"Instance {id} is not ready: it is on no host.")
    its_host = f"its host {host.name}" if caller.context.knows_hosts else "its host"
    try:
        with agent_of_host(caller, host) as client:
            document = client.diagnostics(id)
    except NotFound as error:
        if "kind" not in error.details:  # the route does not exist
            raise NotSupported(f"The agent of {its_host} is too old to tell. Update it.") from None
        raise Conflict(f"Instance {id} is not ready: {its_host} does not have it.") from None
    except MagnetarError as error:
        raise _host_error(error, f"Instance {id} is not ready: {its_host} cannot tell: {_words_for(caller, error)} "
                              "Try again in a moment, or look at `openstack compute service list`.") from None
    if document["power_state"] not in LIVE:
        raise Conflict(f"Cannot 'get_diagnostics' instance {id} while it is in power state {document['power_state']}")
    return document
