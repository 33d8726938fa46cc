# SPDX-License-Identifier: GPL-3.0-or-later
"""Making servers. Everything that can be refused is refused here; the rest is the conductors' work."""

from __future__ import annotations

import random
import re
import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import orjson

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.compute.flavors.flavors import check_memory
from magnetar_control.compute.flavors.hardware import check_nics, check_specs, kept_of_image, kept_of_volume, root_name
from magnetar_control.compute.hosts.availability_zones import forced_in
from magnetar_control.compute.proxies import networks
from magnetar_control.compute.target import visible
from magnetar_control.delivery import ITSELF
from magnetar_control.services.image.boot_parts import check_parts
from magnetar_control.services.network.ports.dns import check_server
from magnetar_control.store.accounts import flavors, keypairs
from magnetar_control.store.actions.action_secrets import argument
from magnetar_control.store.engine.database import advisory_lock, now
from magnetar_control.store.servers import server_groups, servers
from magnetar_core.actions import rule_of
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest
from magnetar_core.kinds.server import is_root_volume

from . import block_devices, hints, server_reservations

CREATE = rule_of("create")
DESTINATION = "compute:servers:create:requested_destination"


@dataclass(frozen=True, kw_only=True)
class NewServers:
    """A request for servers, all alike. *networks*: ``none``, ``auto``, or what ``Networks.check_requested`` takes.
    *mapping*: items of the block device mapping, see ``block_devices.FIELDS``; errors call them *mapping_field*.
    *hints*: of the scheduler. *files*: {path, contents in base64} each. *user_data*: base64. *admin_pass*: a password
    that the guests are told. *count*: how many at least, *most*: at most, where the quota lets them be (*count* when
    left out). *disk_config*: ``AUTO``, ``MANUAL``, or what the image says. *described_by_name*: the description is the
    name. *multiattach*: whether volumes for several servers may be named. *resource_requests*: whether ports may
    ask for bandwidth of the host. *id*: the uuid of a single server; drawn when
    left out. *off*: it is made, and not started."""

    name: str
    flavor_id: str
    image_id: str | None = None
    networks: Any = ()
    mapping: Sequence[Mapping[str, Any]] = ()
    mapping_field: str = "block_device_mapping"
    hints: Mapping[str, Any] = field(default_factory=dict)
    availability_zone: str | None = None
    host: str | None = None
    hypervisor_hostname: str | None = None
    hostname: str | None = None
    description: str | None = None
    described_by_name: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[str] = ()
    key_name: str | None = None
    user_data: str | None = None
    files: Sequence[Mapping[str, str]] = ()
    security_groups: Sequence[str] = ()
    config_drive: bool = False
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    disk_config: str | None = None
    trusted_certs: Sequence[str] | None = None
    multiattach: bool = True
    resource_requests: bool = True
    count: int = 1
    most: int | None = None
    admin_pass: str | None = field(default=None, repr=False)
    id: str | None = None
    off: bool = False

    @property
    def limit(self) -> int:
        """How many servers are asked for at most."""
        return self.count if self.most is None else self.most


class Place(NamedTuple):
    """Where new servers are to be: a zone and hosts, each where one was asked for. *past_filters*: the host was asked
    for by ``ZONE:HOST``, so no filter is applied."""

    zone: str | None
    host: str | None
    hypervisor_hostname: str | None
    past_filters: bool = False


class Prepared(NamedTuple):
    """A request that can be fulfilled, but for the quota of servers, with what it refers to."""

    wanted: NewServers
    flavor: dict[str, Any]
    image: dict[str, Any] | None
    kept_of_image: dict[str, Any]
    place: Place
    public_key: str | None
    blocks: list[dict[str, Any]]
    networks: Sequence[Mapping[str, Any]]
    security_groups: list[dict[str, Any]]
    warning: str | None
    trusted_certs: str | None
    disk_config: str

    @property
    def new_ports(self) -> int:
        """How many ports are made for each server."""
        return sum(not wish["port_id"] for wish in self.networks)


@use_case(CREATE)
def create(caller: Caller, wanted: NewServers) -> list[dict[str, Any]]:
    """Write new servers down with their ``create`` actions, and return their rows: as many as the quota lets be. They
    come into being afterwards. Raises what can be refused beforehand."""
    prepared, given = prepare(caller, wanted), quotas.given(caller)
    bounds = quotas.bounds(caller, known=given)
    most = quotas.check_ports(caller, prepared.new_ports, wanted.count, wanted.limit, given)
    with caller.cloud.store.cell0.write() as connection:
        count = quotas.check_servers(caller, prepared.flavor, wanted.count, most, bounds, connection)
        rows = rows_of(caller, prepared, count)
        named = server_reservations.named_by(rows)
        servers.make(connection, rows, caller.request_id, prepared.warning, argument(wanted.admin_pass),
                     server_reservations.held_until(caller, named))
        caller.cloud.store.cell0.ring(connection, servers.ACTIONS_BELL)
    server_reservations.reserve(caller, named)
    return rows


@use_case(CREATE)
def row_to_be(caller: Caller, wanted: NewServers,
              instead_of: servers.Found | None = None) -> tuple[dict[str, Any], str | None]:
    """The row of the one server that ``create`` would write, and a warning of specs without effect; nothing changes.
    *instead_of*: the row of a server that is deleted before, so that its share of the quota and its volumes are free.
    Raises what ``create`` would raise."""
    prepared = prepare(caller, wanted, instead_of.id if instead_of else None)
    if instead_of is None:
        quotas.check_ports(caller, prepared.new_ports, 1, 1)
        quotas.check_servers(caller, prepared.flavor, 1, 1)
    else:
        freed = sum(nic["created"] for nic in orjson.loads(instead_of.interfaces))
        quotas.check_ports(caller, max(prepared.new_ports - freed, 0), 1, 1)
        quotas.check_flavor(caller, Owner(instead_of.project_id, instead_of.user_id), orjson.loads(instead_of.flavor),
                            prepared.flavor)
    return rows_of(caller, prepared, 1)[0], prepared.warning


def create_named(caller: Caller, row: dict[str, Any], warning: str | None, admin_pass: str | None = None) -> bool:
    """Write a *row* of ``row_to_be`` down. False, and nothing is written, when the project has a server of that name
    by now. *admin_pass*: as of ``NewServers``. Raises ``Conflict`` when another server has the uuid."""
    store = caller.cloud.store
    with store.cell0.write() as connection:
        advisory_lock(connection, caller.project, row["name"])
        if servers.by_name(store, caller.project, row["name"]):
            return False
        if servers.find(store, row["id"]):
            raise Conflict(f"The uuid {row['id']} belongs to another server. Use another.", uuids=[row["id"]])
        named = server_reservations.named_by([row])
        servers.make(connection, [row], caller.request_id, warning, argument(admin_pass),
                     server_reservations.held_until(caller, named))
        store.cell0.ring(connection, servers.ACTIONS_BELL)
    server_reservations.reserve(caller, named)
    return True


def check_unused(caller: Caller, id: str) -> None:
    """Raises ``Conflict`` when a server has the uuid *id*, or had it before it was deleted."""
    store = caller.cloud.store
    with store.cell0.read() as connection:
        held = servers.row(connection, id) is not None
    if held or servers.mapping(store, id) is not None:
        raise Conflict(f"The uuid {id} belongs to another server, or did before that was deleted. Use another.",
                       uuids=[id])


def prepare(caller: Caller, wanted: NewServers, instead_of: str | None = None) -> Prepared:
    """Look everything up that the request refers to, and refuse what can be refused beforehand, but for the quota of
    servers. *instead_of*: the uuid of a server that is deleted before."""
    if wanted.count > wanted.limit:
        raise InvalidRequest("min_count must be <= max_count")
    flavor = find_flavor(caller, wanted.flavor_id)
    image = find_image(caller, wanted.image_id, flavor)
    warning = check_specs(caller, flavor, image) if image or not wanted.mapping else None
    place = _place(caller, wanted)
    in_vain = hints.check(caller, wanted.hints)
    _check_group(caller, wanted.hints.get("group"))
    public_key = find_public_key(caller, wanted.key_name)
    if wanted.mapping:
        caller.check_policy(f"{CREATE}:attach_volume")
    blocks = block_devices.complete(caller, block_devices.BlockDeviceRequest(
        wanted.mapping, image, flavor, wanted.mapping_field, wanted.limit > 1, wanted.multiattach, instead_of))
    properties = block_devices.root_properties(caller, image, blocks)
    block_devices.check_buses(blocks, properties)
    if wanted.mapping and image is None:
        warning = check_specs(caller, flavor, {"id": "of the root volume", "properties": properties})
    warning = " ".join(filter(None, (warning, in_vain))) or None
    if wanted.trusted_certs:
        caller.check_policy(f"{CREATE}:trusted_certs")
    trusted = trusted_certificates(caller, wanted.trusted_certs, image is None or any(
        map(is_root_volume, blocks)), "server.")
    network = caller.cloud.services.network
    if wanted.networks and wanted.networks != "none":
        caller.check_policy(f"{CREATE}:attach_network")
    nics = networks.check_requested(caller, wanted.networks)
    _check_nics(wanted, nics)
    groups = network.groups(caller.context, list(wanted.security_groups) or ["default"])
    if wanted.files or wanted.metadata:
        limits = quotas.limits(caller)
        quotas.check_metadata(limits["metadata_items"], wanted.metadata)
        quotas.check_files(limits, wanted.files)
    kept = kept_of_image(image) if image else kept_of_volume(properties)
    check_nics(flavor, kept, nics)
    return Prepared(wanted, flavor, image, kept, place, public_key, blocks, nics, groups, warning, trusted,
                    wanted.disk_config or block_devices.disk_config(properties))


def trusted_certificates(caller: Caller, ids: Sequence[str] | None, on_volume: bool, where: str = "") -> str | None:
    """The column of a server that trusts certificates of these *ids*, or the default ones where it names none.
    *on_volume*: whether its root disk is a volume, of which no signature is verified. Errors name the field below
    *where*. Raises ``InvalidField``."""
    if ids and on_volume:
        raise InvalidField(f"{where}trusted_image_certificates",
                           "is not supported when booting from volume: no image is verified then. Leave it out")
    found = ids or (None if on_volume else caller.settings.trusted_certificates)
    return servers.text(found) if found else None


def _check_nics(wanted: NewServers, nics: Sequence[Mapping[str, Any]]) -> None:
    """Raises ``InvalidRequest`` for NICs that the servers cannot have."""
    if not wanted.resource_requests and any(nic.get("resources") for nic in nics):
        raise InvalidRequest("Creating servers with ports having resource requests, like a port with a QoS minimum "
                             "bandwidth policy, is not supported until microversion 2.72.")
    if wanted.limit > 1:
        _check_nics_of_many(nics)
    for nic in nics:
        if "dns_name" in nic:
            check_server(nic["port_id"], nic["dns_name"], wanted.hostname or hostname(wanted.name, ""))


def _check_nics_of_many(networks: Sequence[Mapping[str, Any]]) -> None:
    """Raises ``InvalidRequest`` for NICs that only one server can have."""
    if any(wish["port_id"] for wish in networks):
        raise InvalidRequest("Unable to launch multiple instances with a single configured port ID. Please launch your "
                             "instance one by one with different ports.")
    if any(wish["fixed_ip"] for wish in networks):
        raise InvalidRequest("max_count cannot be greater than 1 if an fixed_ip is specified.")


def _check_count(caller: Caller, wanted: NewServers, count: int) -> None:
    """Raises ``InvalidField`` for more servers than one request may make. Nova bounds them by the quota only; but that
    may be unlimited, and all rows are made at once."""
    most = caller.settings.max_servers_at_once
    if count > most:
        name, value = ("min_count", wanted.count) if wanted.count > most else ("max_count", wanted.limit)
        raise InvalidField(f"server.{name}", f"must be {most} or less, whatever the quota; ask for more servers with "
                                             "more requests", value)


def find_flavor(caller: Caller, id: str, project: str | None = None) -> dict[str, Any]:
    """The flavor as servers keep it. Raises ``InvalidRequest`` where the caller may not use it, or *project*, whose
    server is to have it, where that is another project."""
    own = project in (None, caller.project)
    row = caller.fetch(flavors.find, id, project or caller.project, everything=own and caller.is_admin)
    if row is None:
        raise InvalidRequest(f"Flavor {id[:255]} could not be found.")
    return {"id": row.id, "name": row.name, "vcpus": row.vcpus, "ram": row.ram, "disk": row.disk,
            "ephemeral": row.ephemeral, "swap": row.swap, "extra_specs": orjson.loads(row.extra_specs)}


def find_image(caller: Caller, id: str | None, flavor: Mapping[str, Any],
               volume_size: int | None = None) -> dict[str, Any] | None:
    """The image, usable and not too large for the flavor, or for a root volume of *volume_size* GiB; ``None`` without
    *id*. Raises ``InvalidRequest``."""
    if not id:
        return None
    image = caller.cloud.services.image.show(caller.context, id)
    if image is None:
        raise InvalidRequest(f"Image {id} could not be found.")
    if image["status"] != "active":
        raise InvalidRequest(f"Image {id} is not active.")
    check_parts(image, partial(caller.cloud.services.image.show, ITSELF))
    check_memory(flavor, id, image.get("min_ram"))
    if volume_size is not None:
        block_devices.check_room(image, volume_size)
    elif flavor["disk"]:
        need = max(int(image.get("size") or 0), int(image.get("virtual_size") or 0))
        if need > flavor["disk"] << 30:
            raise InvalidRequest("Flavor's disk is too small for requested image. Flavor disk is "
                                 f"{flavor['disk'] << 30} bytes, image is {need} bytes.")
        if int(image.get("min_disk") or 0) > flavor["disk"]:
            raise InvalidRequest("Flavor's disk is smaller than the minimum size specified in image metadata. Flavor "
                                 f"disk is {flavor['disk'] << 30} bytes, minimum size is "
                                 f"{int(image['min_disk']) << 30} bytes.")
    return image


def find_public_key(caller: Caller, name: str | None) -> str | None:
    """The public key of the caller's key pair, for the guest; of type x509 it is a certificate in PEM. Raises
    ``InvalidRequest``."""
    if not name:
        return None
    found = caller.fetch(keypairs.find, caller.context.user_id, name)
    if found is None:
        raise InvalidRequest(f"Invalid key_name provided. Keypair {name} not found for user {caller.context.user_id}")
    return str(found.public_key)


def _place(caller: Caller, wanted: NewServers) -> Place:
    """Zone and hosts that are asked for, where they exist and may be asked for. ``ZONE:HOST`` forces a host."""
    known = caller.cloud.hosts.all()
    zone, forced = wanted.availability_zone, None
    if zone and ":" in zone:
        caller.check_policy(f"{CREATE}:forced_host")
        zone, forced = forced_in(zone)
    place = Place(zone or None, forced or wanted.host, wanted.hypervisor_hostname, bool(forced))
    if wanted.host or wanted.hypervisor_hostname:
        caller.check_policy(DESTINATION)
        if forced:
            raise InvalidRequest("One mechanism with host and/or hypervisor_hostname and another mechanism with "
                                 "zone:host:node are mutually exclusive. Leave one of them out.")
    for name in (place.host, place.hypervisor_hostname):
        if name and name not in known:
            raise InvalidRequest(f"Compute host {name} could not be found.")
    if zone:
        check_zone(caller, zone)
    return place


def check_zone(caller: Caller, zone: str) -> None:
    """Raises ``InvalidRequest`` where there is no such zone."""
    known = {host.zone for host in caller.cloud.hosts.all().values()}
    if zone not in known | {caller.settings.default_availability_zone}:
        raise InvalidRequest("The requested availability zone is not available")


def _check_group(caller: Caller, id: str | None) -> None:
    """The server group of the hints is there, and has room."""
    if not id:
        return
    group = caller.fetch(server_groups.find, id)
    if group is None or not visible(caller, group):
        raise InvalidRequest(f"Instance group {id} could not be found.")
    quotas.check_group(caller, group.id)


def hostname(name: str, id: str) -> str:
    """A host name made of a server's name, as Nova makes it."""
    found = re.sub(r"[^\w.-]+", "", re.sub(r"[ _]", "-", name.encode("ascii", "ignore").decode())).lower().strip(".-")
    found = found.replace(".", "-")[:63].strip("-")
    return found or f"server-{id}"


def rows_of(caller: Caller, prepared: Prepared, count: int) -> list[dict[str, Any]]:
    """The rows of *count* new servers. Raises ``InvalidField`` when these are more than one request may make."""
    wanted = prepared.wanted
    _check_count(caller, wanted, count)
    shared, rows = _shared(caller, prepared), []
    for at in range(count):
        id = wanted.id or str(uuid.uuid4())
        name, host = wanted.name, wanted.hostname
        if count > 1:
            name, host = f"{name}-{at + 1}", f"{host}-{at + 1}" if host else None
        rows.append({**shared, "id": id, "name": name, "launch_index": at, "hostname": host or hostname(name, id)})
        if wanted.described_by_name:
            rows[-1]["description"] = name
    return rows


def _shared(caller: Caller, prepared: Prepared) -> dict[str, Any]:
    """The columns that all servers of a request have alike."""
    wanted, flavor, image, place = prepared.wanted, prepared.flavor, prepared.image, prepared.place
    moment = now()
    reservation = "r-" + "".join(random.choices(string.ascii_lowercase + string.digits, k=8))  # noqa: S311 - a name
    request = {"networks": prepared.networks, "blocks": prepared.blocks, "public_key": prepared.public_key,
               "host": place.host, "hypervisor_hostname": place.hypervisor_hostname, "image": image and image["id"],
               "roles": sorted(caller.context.roles), **({"personality": wanted.files} if wanted.files else {}),
               **({"past_filters": True} if place.past_filters else {}), **({"off": True} if wanted.off else {})}
    return {
        "project_id": caller.project, "user_id": caller.context.user_id, "vm_state": "building",
        "task_state": "scheduling", "power_state": 0, "progress": 0, "description": wanted.description,
        "availability_zone": place.zone or caller.settings.default_schedule_zone,
        "pinned_availability_zone": place.zone, "flavor_id": flavor["id"], "flavor": servers.text(flavor),
        "image_id": image["id"] if image else None, "image": servers.text(prepared.kept_of_image),
        "key_name": wanted.key_name, "metadata": servers.text(wanted.metadata), "tags": servers.text(wanted.tags),
        "user_data": wanted.user_data, "config_drive": wanted.config_drive, "access_ip_v4": wanted.access_ip_v4,
        "access_ip_v6": wanted.access_ip_v6, "disk_config": prepared.disk_config,
        "root_device_name": root_name(flavor, prepared.kept_of_image), "reservation_id": reservation,
        "security_groups": servers.text(prepared.security_groups),
        "request": servers.text(request), "hints": servers.text(wanted.hints),
        "trusted_certs": prepared.trusted_certs,
        "created_at": moment, "updated_at": moment, "interfaces": "[]", "addresses": "{}", "volumes": "[]"}
