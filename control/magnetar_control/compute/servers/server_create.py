# SPDX-License-Identifier: GPL-3.0-or-later
"""Creation of servers. Checks that can be made before the answer are made here; the conductors do the rest."""

from __future__ import annotations

import random
import re
import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.availability.ha_policy import check_ha_metadata
from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.compute.flavors.flavors import check_flavor_memory
from magnetar_control.compute.flavors.hardware import (
    check_nics,
    check_server_specs,
    root_name,
    stored_image_fields,
    stored_volume_image,
)
from magnetar_control.compute.hosts.availability_zones import parse_forced_host
from magnetar_control.compute.proxies import networks
from magnetar_control.compute.target import is_visible_to
from magnetar_control.delivery import ITSELF
from magnetar_control.documents import BlockDevice, FlavorOfServer, ImageOfServer, PortRequest
from magnetar_control.services.image.boot_parts import check_parts
from magnetar_control.services.network.ports.dns import check_server
from magnetar_control.store.accounts import flavors, keypairs
from magnetar_control.store.actions.actions import password_argument
from magnetar_control.store.engine.database import advisory_lock, utc_now
from magnetar_control.store.servers import server_groups, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import policy_rule_of_action
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest
from magnetar_core.kinds.server import is_root_volume

from . import block_devices, hints, server_reservations

CREATE = policy_rule_of_action("create")
DESTINATION = "compute:servers:create:requested_destination"


@dataclass(frozen=True, kw_only=True)
class NewServers:
    """A request for one server, or for several equal servers.

    *networks*: ``none``, ``auto``, or a list of {uuid, port, fixed_ip, tag} as in Nova's API; empty: the default
    network. *mapping*: the block device mapping in the form of Nova's block_device_mapping_v2, with the keys
    ``block_devices.FIELDS``; *mapping_field*: its name in error messages. *hints*: scheduler hints. *files*: injected
    files, each {path, contents in base64}. *user_data*: base64. *admin_pass*: a password for the guests. *count*,
    *most*: the smallest and largest number of servers; the quota decides how many are created (*most* is *count* by
    default). *disk_config*: ``AUTO``, ``MANUAL``, or ``None`` for the image's value. *described_by_name*: use the name
    as description. *multiattach*: allow multiattach volumes. *resource_requests*: allow ports that need bandwidth of
    the host. *id*: the uuid of a single server; ``None``: generate it. *off*: create the server without starting it.
    """

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
        """The largest number of servers that the request asks for."""
        return self.count if self.most is None else self.most


class RequestedDestination(NamedTuple):
    """The availability zone and the hosts that a request for new servers names; a field is ``None`` if the request does
    not name it. *past_filters*: the host was requested as ``ZONE:HOST``, so no scheduler filter is applied."""

    zone: str | None
    host: str | None
    hypervisor_hostname: str | None
    past_filters: bool = False


class Prepared(NamedTuple):
    """A request for new servers that has passed all checks except the quota of servers. It includes the flavor, image,
    networks and other resources that the request names."""

    new_servers: NewServers
    flavor: FlavorOfServer
    image: dict[str, Any] | None
    stored_image: ImageOfServer
    destination: RequestedDestination
    public_key: str | None
    block_devices: list[BlockDevice]
    networks: Sequence[PortRequest]
    security_groups: list[dict[str, Any]]
    warning: str | None
    trusted_certs: str | None
    disk_config: str

    @property
    def new_ports(self) -> int:
        """The number of ports to create for each server."""
        return sum(not nic["port_id"] for nic in self.networks)


@use_case(CREATE)
def create_servers(caller: Caller, new_servers: NewServers) -> list[dict[str, Any]]:
    """Insert the rows of *new_servers*, as many as the quota allows, and queue the action ``create`` for
    each. Return the rows. The conductors then build the servers. Errors that the API can detect are raised before
    anything is inserted."""
    prepared, configured = prepare_servers(caller, new_servers), quotas.configured_limits(caller)
    bounds = quotas.binding_limits(caller, configured=configured)
    most = quotas.check_port_quota(caller, prepared.new_ports, new_servers.count, new_servers.limit, configured)
    with caller.cloud.store.cell0.write() as connection:
        count = quotas.check_server_quota(caller, prepared.flavor, new_servers.count, most, bounds, connection)
        rows = new_server_rows(caller, prepared, count)
        named = server_reservations.named_resources(rows)
        servers.insert_server_rows(connection, rows, caller.request_id, prepared.warning,
                                   password_argument(new_servers.admin_pass),
                                   server_reservations.held_until(caller, named))
        caller.cloud.store.cell0.notify(connection, servers.ACTIONS_CHANGED)
    server_reservations.reserve_named_resources(caller, named)
    return rows


@use_case(CREATE)
def preview_server_row(caller: Caller, new_servers: NewServers,
                       instead_of: ServerRow | None = None) -> tuple[dict[str, Any], str | None]:
    """Return the row that ``create_servers`` would insert for one server, and a warning about extra specs without
    effect (``None`` if there are none). Nothing is changed. *instead_of*: the row of a server that is deleted first;
    its share of the quota and its volumes count as free. Raises the errors of ``create_servers``."""
    prepared = prepare_servers(caller, new_servers, instead_of.id if instead_of else None)
    if instead_of is None:
        quotas.check_port_quota(caller, prepared.new_ports, 1, 1)
        quotas.check_server_quota(caller, prepared.flavor, 1, 1)
    else:
        freed = sum(nic["created"] for nic in instead_of.nics)
        quotas.check_port_quota(caller, max(prepared.new_ports - freed, 0), 1, 1)
        quotas.check_flavor_quota(caller, Owner(instead_of.project_id, instead_of.user_id),
                                  instead_of.flavor, prepared.flavor)
    return new_server_rows(caller, prepared, 1)[0], prepared.warning


def create_named_server(caller: Caller, row: dict[str, Any], warning: str | None,
                        admin_pass: str | None = None) -> bool:
    """Insert *row*, a result of ``preview_server_row``, and queue its action ``create``; return ``True``. If the
    project has got a server of the same name since the preview, insert nothing and return ``False``. *warning*: a text
    stored with the action. *admin_pass*: a password for the guest. Raises ``Conflict`` when another server has the
    uuid."""
    store = caller.cloud.store
    with store.cell0.write() as connection:
        advisory_lock(connection, caller.project, row["name"])
        if servers.find_servers_named(store, caller.project, row["name"]):
            return False
        if servers.find_server_row(store, row["id"]):
            raise Conflict(f"The uuid {row['id']} belongs to another server. Use another.", uuids=[row["id"]])
        named = server_reservations.named_resources([row])
        servers.insert_server_rows(connection, [row], caller.request_id, warning, password_argument(admin_pass),
                                   server_reservations.held_until(caller, named))
        store.cell0.notify(connection, servers.ACTIONS_CHANGED)
    server_reservations.reserve_named_resources(caller, named)
    return True


def check_unused_uuid(caller: Caller, id: str) -> None:
    """Raise ``Conflict`` when an existing or deleted server has the uuid *id*."""
    store = caller.cloud.store
    with store.cell0.read() as connection:
        in_use = servers.fetch_server_row(connection, id) is not None
    if in_use or servers.fetch_server_mapping(store, id) is not None:
        raise Conflict(f"The uuid {id} belongs to another server, or did before that was deleted. Use another.",
                       uuids=[id])


def prepare_servers(caller: Caller, new_servers: NewServers, instead_of: str | None = None) -> Prepared:
    """Check everything in the request except the quota of servers, and return the request with all resources that it
    names. *instead_of*: the uuid of a server that is deleted first; its volumes count as free."""
    if new_servers.count > new_servers.limit:
        raise InvalidRequest("min_count must be <= max_count")
    flavor = find_flavor(caller, new_servers.flavor_id)
    image = find_image(caller, new_servers.image_id, flavor)
    warning = check_server_specs(caller, flavor, image) if image or not new_servers.mapping else None
    destination = _requested_destination(caller, new_servers)
    in_vain = hints.check_hints(caller, new_servers.hints)
    _check_group(caller, new_servers.hints.get("group"))
    public_key = find_public_key(caller, new_servers.key_name)
    if new_servers.mapping:
        caller.check_policy(f"{CREATE}:attach_volume")
    blocks = block_devices.complete_block_device_mapping(caller, block_devices.BlockDeviceRequest(
        new_servers.mapping, image, flavor, new_servers.mapping_field, new_servers.limit > 1, new_servers.multiattach,
        instead_of))
    properties = block_devices.root_image_properties(caller, image, blocks)
    block_devices.check_disk_buses(blocks, properties)
    if new_servers.mapping and image is None:
        warning = check_server_specs(caller, flavor, {"id": "of the root volume", "properties": properties})
    warning = " ".join(filter(None, (warning, in_vain))) or None
    if new_servers.trusted_certs:
        caller.check_policy(f"{CREATE}:trusted_certs")
    trusted = trusted_certificates(caller, new_servers.trusted_certs, image is None or any(
        map(is_root_volume, blocks)), "server.")
    if new_servers.networks and new_servers.networks != "none":
        caller.check_policy(f"{CREATE}:attach_network")
    nics = networks.resolve_requested_networks(caller, new_servers.networks)
    _check_nics(new_servers, nics)
    groups = caller.cloud.services.network.groups(caller.context, list(new_servers.security_groups) or ["default"])
    if new_servers.files or new_servers.metadata:
        limits = quotas.quota_limits(caller)
        quotas.check_metadata_quota(limits["metadata_items"], new_servers.metadata)
        check_ha_metadata(caller.cloud.settings, new_servers.metadata)
        quotas.check_file_quota(limits, new_servers.files)
    stored_image = stored_image_fields(image) if image else stored_volume_image(properties)
    check_nics(flavor, stored_image, nics)
    return Prepared(new_servers, flavor, image, stored_image, destination, public_key, blocks, nics, groups, warning,
                    trusted, new_servers.disk_config or block_devices.default_disk_config(properties))


def trusted_certificates(caller: Caller, ids: Sequence[str] | None, on_volume: bool, where: str = "") -> str | None:
    """Return the value of a server's column ``trusted_certs``: JSON text with the certificate *ids*, or with the
    certificates of the settings if *ids* is empty. Return ``None`` if there are no certificates, or if the root disk is
    a volume (*on_volume*), because volumes are not verified. Raises ``InvalidField`` for *ids* with *on_volume*.
    *where*: a prefix of the field name in this error."""
    if ids and on_volume:
        raise InvalidField(f"{where}trusted_image_certificates",
                           "is not supported when booting from volume: no image is verified then. Leave it out")
    certificate_ids = ids or (None if on_volume else caller.settings.trusted_certificates)
    return servers.json_text(certificate_ids) if certificate_ids else None


def _check_nics(new_servers: NewServers, nics: Sequence[PortRequest]) -> None:
    """Raise ``InvalidRequest`` when the servers of the request cannot have the *nics*. The reasons: a port needs
    bandwidth, which the API version of the request does not allow; the DNS name of a port differs from the server's
    host name; or several servers would share a port or fixed IP."""
    if not new_servers.resource_requests and any(nic.get("resources") for nic in nics):
        raise InvalidRequest("Creating servers with ports having resource requests, like a port with a QoS minimum "
                             "bandwidth policy, is not supported until microversion 2.72.")
    if new_servers.limit > 1:
        _check_nics_of_many(nics)
    for nic in nics:
        if "dns_name" in nic:
            check_server(str(nic["port_id"]), nic["dns_name"],
                         new_servers.hostname or server_hostname(new_servers.name, ""))


def _check_nics_of_many(nics: Sequence[PortRequest]) -> None:
    """Raise ``InvalidRequest`` for *nics* that a request for several servers cannot use: an existing port, or a fixed
    IP."""
    if any(nic["port_id"] for nic in nics):
        raise InvalidRequest("Unable to launch multiple instances with a single configured port ID. Please launch your "
                             "instance one by one with different ports.")
    if any(nic["fixed_ip"] for nic in nics):
        raise InvalidRequest("max_count cannot be greater than 1 if an fixed_ip is specified.")


def _check_count(caller: Caller, new_servers: NewServers, count: int) -> None:
    """Raise ``InvalidField`` if *count* is more servers than one request may create. Nova has no such limit, only the
    quota; here the limit keeps the transaction that inserts all rows small."""
    most = caller.settings.max_servers_at_once
    if count > most:
        name, value = ("min_count", new_servers.count) if new_servers.count > most else ("max_count", new_servers.limit)
        raise InvalidField(f"server.{name}", f"must be {most} or less, whatever the quota; ask for more servers with "
                                             "more requests", value)


def find_flavor(caller: Caller, id: str, project: str | None = None) -> FlavorOfServer:
    """Return the flavor *id* as the fields that a server's row stores. Raises ``InvalidRequest`` when the caller may
    not use it. *project*: the server's project; if another project than the caller's is given, that project must have
    access to the flavor."""
    own_project = project in (None, caller.project)
    row = caller.fetch(flavors.fetch_flavor_row, id, project or caller.project,
                       everything=own_project and caller.is_admin)
    if row is None:
        raise InvalidRequest(f"Flavor {id[:255]} could not be found.")
    return {"id": row.id, "name": row.name, "vcpus": row.vcpus, "ram": row.ram, "disk": row.disk,
            "ephemeral": row.ephemeral, "swap": row.swap, "extra_specs": row.extra_specs}


def find_image(caller: Caller, id: str | None, flavor: FlavorOfServer,
               volume_size: int | None = None) -> dict[str, Any] | None:
    """Return the image *id* after checking that it is active and fits the disk of *flavor*, or a root volume of
    *volume_size* GiB. Return ``None`` if *id* is ``None``. Raises ``InvalidRequest``."""
    if not id:
        return None
    image = caller.cloud.services.image.show(caller.context, id)
    if image is None:
        raise InvalidRequest(f"Image {id} could not be found.")
    if image["status"] != "active":
        raise InvalidRequest(f"Image {id} is not active.")
    check_parts(image, partial(caller.cloud.services.image.show, ITSELF))
    check_flavor_memory(flavor, id, image.get("min_ram"))
    if volume_size is not None:
        block_devices.check_volume_room(image, volume_size)
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
    """Return the public key of the caller's key pair *name*; for the type x509 a certificate in PEM. Return ``None`` if
    *name* is ``None``. Raises ``InvalidRequest``."""
    if not name:
        return None
    keypair = caller.fetch(keypairs.fetch_keypair_row, caller.context.user_id, name)
    if keypair is None:
        raise InvalidRequest(f"Invalid key_name provided. Keypair {name} not found for user {caller.context.user_id}")
    return str(keypair.public_key)


def _requested_destination(caller: Caller, new_servers: NewServers) -> RequestedDestination:
    """Return the requested availability zone and hosts, after checking that zone and hosts exist and that the caller
    may request them. An availability zone of the form ``ZONE:HOST`` forces a host."""
    zone, forced = new_servers.availability_zone, None
    if zone and ":" in zone:
        caller.check_policy(f"{CREATE}:forced_host")
        zone, forced = parse_forced_host(zone)
    destination = RequestedDestination(zone or None, forced or new_servers.host, new_servers.hypervisor_hostname,
                                       bool(forced))
    if new_servers.host or new_servers.hypervisor_hostname:
        caller.check_policy(DESTINATION)
        if forced:
            raise InvalidRequest("One mechanism with host and/or hypervisor_hostname and another mechanism with "
                                 "zone:host:node are mutually exclusive. Leave one of them out.")
    for name in (destination.host, destination.hypervisor_hostname):
        if name and name not in caller.cloud.hosts.all():
            raise InvalidRequest(f"Compute host {name} could not be found.")
    if zone:
        check_zone_exists(caller, zone)
    return destination


def check_zone_exists(caller: Caller, zone: str) -> None:
    """Raise ``InvalidRequest`` when the availability zone *zone* does not exist."""
    zones = {host.zone for host in caller.cloud.hosts.all().values()}
    if zone not in zones | {caller.settings.default_availability_zone}:
        raise InvalidRequest("The requested availability zone is not available")


def _check_group(caller: Caller, id: str | None) -> None:
    """Raise ``InvalidRequest`` when the server group *id* from the scheduler hints does not exist, ``Forbidden`` when
    the group has as many servers as the quota allows."""
    if not id:
        return
    group = caller.fetch(server_groups.fetch_server_group_row, id)
    if group is None or not is_visible_to(caller, group):
        raise InvalidRequest(f"Instance group {id} could not be found.")
    quotas.check_group_member_quota(caller, group.id)


def server_hostname(name: str, id: str) -> str:
    """Return the host name that Nova derives from the *name* of a server: ``server-`` and the uuid *id* if *name* has
    no valid character."""
    label = re.sub(r"[^\w.-]+", "", re.sub(r"[ _]", "-", name.encode("ascii", "ignore").decode())).lower().strip(".-")
    label = label.replace(".", "-")[:63].strip("-")
    return label or f"server-{id}"


def new_server_rows(caller: Caller, prepared: Prepared, count: int) -> list[dict[str, Any]]:
    """Return the rows (column values) of *count* new servers for the request *prepared*. Raises ``InvalidField`` when
    *count* is more than one request may create."""
    new_servers = prepared.new_servers
    _check_count(caller, new_servers, count)
    shared, rows = _shared_columns(caller, prepared), []
    for at in range(count):
        id = new_servers.id or str(uuid.uuid4())
        name, host = new_servers.name, new_servers.hostname
        if count > 1:
            name, host = f"{name}-{at + 1}", f"{host}-{at + 1}" if host else None
        rows.append({**shared, "id": id, "name": name, "launch_index": at,
                     "hostname": host or server_hostname(name, id)})
        if new_servers.described_by_name:
            rows[-1]["description"] = name
    return rows


def _shared_columns(caller: Caller, prepared: Prepared) -> dict[str, Any]:
    """Return the columns with the same values in all server rows of the request *prepared*."""
    new_servers, destination = prepared.new_servers, prepared.destination
    flavor, image = prepared.flavor, prepared.image
    moment = utc_now()
    reservation = "r-" + "".join(random.choices(string.ascii_lowercase + string.digits, k=8))  # noqa: S311 - a name
    request = {"networks": prepared.networks, "blocks": prepared.block_devices, "public_key": prepared.public_key,
               "host": destination.host, "hypervisor_hostname": destination.hypervisor_hostname,
               "image": image and image["id"],
               "roles": sorted(caller.context.roles), **({"personality": new_servers.files} if new_servers.files
                                                         else {}),
               **({"past_filters": True} if destination.past_filters else {}),
               **({"off": True} if new_servers.off else {})}
    return {
        "project_id": caller.project, "user_id": caller.context.user_id, "vm_state": "building",
        "task_state": "scheduling", "power_state": 0, "progress": 0, "description": new_servers.description,
        "availability_zone": destination.zone or caller.settings.default_schedule_zone,
        "pinned_availability_zone": destination.zone, "flavor_id": flavor["id"], "flavor": servers.json_text(flavor),
        "image_id": image["id"] if image else None, "image": servers.json_text(prepared.stored_image),
        "key_name": new_servers.key_name, "metadata": servers.json_text(new_servers.metadata),
        "tags": servers.json_text(new_servers.tags),
        "user_data": new_servers.user_data, "config_drive": new_servers.config_drive,
        "access_ip_v4": new_servers.access_ip_v4,
        "access_ip_v6": new_servers.access_ip_v6, "disk_config": prepared.disk_config,
        "root_device_name": root_name(flavor, prepared.stored_image), "reservation_id": reservation,
        "security_groups": servers.json_text(prepared.security_groups),
        "request": servers.json_text(request), "hints": servers.json_text(new_servers.hints),
        "trusted_certs": prepared.trusted_certs,
        "created_at": moment, "updated_at": moment, "interfaces": "[]", "addresses": "{}", "volumes": "[]"}
