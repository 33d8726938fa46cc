# SPDX-License-Identifier: GPL-3.0-or-later
"""The conversion of requests for servers to the arguments of the use cases, with names resolved to uuids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from magnetar_control.api.hints import Hints
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.v1.flavor import CloudFlavors
from magnetar_control.api.v1.groups import ServerGroups
from magnetar_control.api.v1.keypair import CloudKeypairs
from magnetar_control.api.v1.network.network import CloudNetworks
from magnetar_control.api.v1.network.port import Ports
from magnetar_control.api.v1.volume import IMAGES, SNAPSHOTS, VOLUMES
from magnetar_control.api.values import Address
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers.metadata import METADATA
from magnetar_control.compute.servers.server_actions import Rebuild
from magnetar_control.compute.servers.server_create import NewServers
from magnetar_control.store.servers import servers
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.kinds.common import REFERENCE
from magnetar_core.kinds.flavor import complete_sizes
from magnetar_core.power import OFF
from magnetar_core.reconcile import is_uuid_key, refuse_missing
from magnetar_core.values import Value

from .server_plan import nics_fit
from .server_view import BLOCK, SIZES, group_key

FLAVORS, KEYPAIRS, NETWORKS = CloudFlavors(), CloudKeypairs(), CloudNetworks()
GROUPS, PORTS, HINTS = ServerGroups(), Ports(), Hints()
#: Value types of the access addresses.
ACCESS: Mapping[str, Value] = {"access_ip_v4": Address(4), "access_ip_v6": Address(6)}
#: Fields of a NIC that only devices of a single host have; a cloud has ports for them.
OF_DEVICES = ("physical_network", "vnic_type", "trusted", "max_tx_rate", "min_tx_rate", "vlan")
#: Sources of an item of the block device mapping, by its source_type; other types name no source.
SOURCES: Mapping[str, CloudDriver] = {"image": IMAGES, "volume": VOLUMES, "snapshot": SNAPSHOTS}


def resolve_server_references(caller: Caller, want: Document, have: Document | None) -> Document:
    """Return the desired state *want* of a server with its references resolved: names of flavors, images, networks, …
    are replaced by the values that ``server_view.render_server`` shows.

    A reference that means the same as in the current state *have*, but is written differently, is replaced by the value
    in *have*. Added keys: ``_flavor`` (the flavor's id), ``_specs`` (the extra specs of a new flavor), ``_groups``
    (keys of security groups) and ``_assumed`` (whether a dry run assumes that an earlier Ansible task creates a missing
    resource). Raises ``InvalidField``.
    """
    references = _References(caller, have)
    flavor, flavor_id = references.flavor(want["flavor"])
    resolved = {**want, "flavor": flavor, "_flavor": flavor_id, "_specs": references.specs,
                "image": references.image(want.get("image")), "networks": references.networks(want["networks"]),
                "block_device_mapping": references.blocks(want.get("block_device_mapping") or [])}
    if want.get("key_name") and not (have and have["key_name"] == want["key_name"]):
        references.resolve(KEYPAIRS, want["key_name"], "key_name")
    zone = want.get("availability_zone")
    if zone and have:  # ZONE:HOST places a new server; afterwards only the zone counts
        resolved["availability_zone"] = zone.partition(":")[0] or have["availability_zone"]
    resolved["trusted_image_certificates"] = want.get("trusted_image_certificates") or None  # an empty list names none
    resolved.update(access_addresses(want), scheduler_hints=references.hints(want.get("scheduler_hints")))
    names, keys = references.groups(want.get("security_groups"))
    return {**resolved, "security_groups": names, "_groups": keys, "rescue": references.rescue(want.get("rescue")),
            "_assumed": references.assumed}


def access_addresses(want: Document) -> Document:
    """Return access_ip_v4 and access_ip_v6 of the desired state *want*, if it has them, in normal form. Raises
    ``InvalidField``."""
    return {name: value.check(want[name], name) for name, value in ACCESS.items() if want.get(name)}


def with_port_ids(caller: Caller, desired: Document) -> Document:
    """Return the desired state *desired* with uuids in place of the names of existing ports in its NICs, because NICs
    are compared by the uuids of ports."""
    networks = [{**nic, "port": port["id"]} if nic.get("port") and not is_uuid_key(nic["port"]) and (
        port := PORTS.find(caller, nic["port"])) else nic for nic in desired.get("networks") or ()]
    return {**desired, "networks": networks} if networks else desired


class _References:
    """A resolver of the references in a request for a server, such as names of images. *have*: the current state of the
    server; ``None`` for a new server."""

    def __init__(self, caller: Caller, have: Document | None) -> None:
        self.caller, self.have = caller, have
        self.assumed = False
        #: Extra specs of the flavor, if it differs from the server's.
        self.specs: Document | None = None

    def resolve(self, driver: CloudDriver, name: str, field: str) -> Document | None:
        """Return the resource with the uuid or name *name*. *driver*: the driver of its type. If it does not exist,
        raise ``InvalidField`` for *field*; a dry run may assume that an earlier Ansible task creates the resource; then
        return ``None``."""
        resource = driver.referred(self.caller, name, field)
        self.assumed |= resource is None
        return resource

    def flavor(self, requested: Any) -> tuple[Document, str]:
        """Return the *requested* flavor as a pair: a dict of its name and sizes, and its id. *requested*: a name, an
        id, or a dict of sizes. Raises ``InvalidField``."""
        mine: Document = self.have["flavor"] if self.have else {}
        if isinstance(requested, dict):
            sizes = {**dict.fromkeys(SIZES[3:], 0), **{
                name: n for name, n in complete_sizes(requested, mine).items() if name in SIZES[1:]}}
            if self.have and all(mine.get(name) == value for name, value in sizes.items()):
                return mine, str(self.have["_flavor"])
            fits = [flavor for flavor in FLAVORS.every(self.caller)
                    if all(flavor[name] == n for name, n in sizes.items())]
            if not fits:
                raise InvalidField("flavor", "no flavor of this cloud has these sizes; ask an administrator for one, "
                                             "or name one", sizes)
            # A flavor without extra specs, if there is one.
            chosen_flavor: Document | None = min(fits, key=lambda flavor: bool(flavor.get("extra_specs")))
        else:
            chosen_flavor = self.resolve(FLAVORS, str(requested), "flavor")
        if chosen_flavor is None:
            return {**dict.fromkeys(SIZES, 0), **mine, "name": requested}, str(requested)
        self.specs = chosen_flavor.get("extra_specs") or {}
        return {name: chosen_flavor[name] for name in SIZES}, str(chosen_flavor["id"])

    def image(self, requested: Any) -> Document | None:
        """Return the *requested* image (a name or uuid) as {id, name}; ``None`` if no image is requested. Raises
        ``InvalidField``."""
        if not requested or isinstance(requested, dict):
            return requested or None
        mine: Document | None = self.have["image"] if self.have else None
        if mine and requested in (mine["id"], mine["name"]):
            return mine
        image = self.resolve(IMAGES, requested, "image")
        return {"id": image["id"], "name": image["name"]} if image else {"id": None, "name": requested}

    def networks(self, requested_nics: list[Document]) -> list[Document]:
        """Return the requested NICs with their references resolved. If the requested NICs and the server's current NICs
        match one to one, return the current NICs."""
        have: list[Document] | None = self.have["networks"] if self.have else None
        if have is not None and requested_nics is have:
            return have
        wishes = [nic if "_made" in nic else self._nic(nic, at) for at, nic in enumerate(requested_nics)]
        named = {nic.get("_port") for nic in wishes if nic.get("port")}
        wishes = [nic for nic in wishes if nic.get("port") or nic.get("_port") not in named - {None}]
        return have if have is not None and nics_fit(wishes, have) == ([], []) else wishes

    def _nic(self, nic: Mapping[str, Any], at: int) -> Document:
        where = f"networks[{at}]"
        if nic.get("bridge"):
            raise InvalidField(f"{where}.bridge", "is for a single host; in a cloud, name a network (mode bridge makes "
                                                  "one of a bridge)", nic["bridge"])
        for name in OF_DEVICES:
            if nic.get(name):
                raise InvalidField(f"{where}.{name}", "is for a single host; in a cloud, a port of vnic_type direct is "
                                                      "such a NIC (openstack server create --port)", nic[name])
        if nic.get("port"):
            return self._of_port(nic, where)
        if not nic.get("network"):
            raise InvalidField(f"{where}.network", "is required, or port")
        if nic.get("model", "virtio") != "virtio":
            raise InvalidField(f"{where}.model", "must be virtio in a cloud", nic["model"])
        if name := next((field for field in ("network_affinity", "card") if field in nic), ""):
            raise InvalidField(f"{where}.{name}", "follows from network and port in a cloud", nic[name])
        for name in ("port_security", "allowed_addresses"):
            if name in nic:
                raise InvalidField(f"{where}.{name}", "is a port's in a cloud; make the port with the network service",
                                   nic[name])
        network = self.resolve(NETWORKS, nic["network"], where)
        name, id = (network["name"], network["id"]) if network else (nic["network"], None)
        return {"network": name, "model": "virtio", "_id": id,
                **{key: nic[key] for key in ("mac", "tag", "address") if nic.get(key)}}

    def _of_port(self, requested_nic: Mapping[str, Any], where: str) -> Document:
        """Return the NIC that is requested with an existing port. *where*: the position of the NIC in the request, for
        errors. Raises ``InvalidField`` if *requested_nic* also has a network, address or MAC address, because the port
        determines them."""
        for name in ("network", "address", "mac"):
            if requested_nic.get(name):
                raise InvalidField(f"{where}.{name}", "cannot be combined with port, which has its own",
                                   requested_nic[name])
        port = self.resolve(PORTS, requested_nic["port"], f"{where}.port")
        nic: Document = {"network": "", "port": requested_nic["port"], "model": "virtio", "_id": None,
                         **({"tag": requested_nic["tag"]} if requested_nic.get("tag") else {})}
        return {**nic, "_id": port["network"], "_port": port["id"]} if port else nic

    def hints(self, requested: Document | None) -> Document:
        """Return the *requested* scheduler hints, with uuids of servers and groups in place of names. If they mean the
        same as the server's current hints, return the current hints. Raises ``InvalidField``."""
        hints: Document = dict(requested or {})
        if hints.get("group"):
            group = self.resolve(GROUPS, _name(hints["group"], "scheduler_hints.group"), "scheduler_hints.group")
            hints["group"] = group["id"] if group else None
        for name in ("different_host", "same_host"):
            if hints.get(name):
                servers = hints[name] if isinstance(hints[name], list) else [hints[name]]
                hints[name] = [self._server(server, f"scheduler_hints.{name}") for server in servers]
        hints = {name: value for name, value in hints.items() if value is not None}
        stored: Document = self.have["scheduler_hints"] if self.have else {}
        return stored if _listed(stored) == _listed(hints) else hints

    def _server(self, reference: Any, field: str) -> str:
        """Return the uuid of the server with the uuid or name *reference* in the caller's project. Raises
        ``InvalidField`` for *field* if not exactly one server has the name."""
        key = _name(reference, field)
        if is_uuid_key(key):
            return key.lower()
        named = servers.find_servers_named(self.caller.cloud.store, self.caller.project, key)
        if len(named) != 1:
            raise InvalidField(field, f"must name one server, and your project has {len(named)} called {key!r}")
        return str(named[0][1].id)

    def groups(self, requested: list[str] | None) -> tuple[list[str], list[str]]:
        """Return the names and the keys of the *requested* security groups. Return the server's current groups (none
        for a new server) if *requested* is ``None`` or means exactly these groups. Also return the current groups of an
        existing server without NICs. Raises ``InvalidField``."""
        stored = (self.have["security_groups"], self.have["_groups"]) if self.have else ([], [])
        if requested is None or requested is stored[0] or (self.have and not self.have["networks"]):
            return stored
        groups: list[Document] = []
        for at, name in enumerate(requested):
            try:
                groups += self.caller.cloud.services.network.groups(self.caller.context, [name])
            except InvalidRequest:
                self.assumed = True
                refuse_missing(InvalidField(f"security_groups[{at}]",
                                            f"there is no security group {name!r} in your project"),
                               "security_group", name)
        keys = [*dict.fromkeys(map(group_key, groups))]
        return stored if {*keys} == {*stored[1]} else (sorted({group["name"] for group in groups}), keys)

    def blocks(self, requested: list[Document]) -> list[Document]:
        """Return the *requested* block devices with uuids in place of names. Omitted values are taken from the server's
        current block devices, if all block devices match: both lists have the same length, and ``_fits`` is true at
        each position. Raises ``InvalidField``."""
        blocks = []
        for at, block_device in enumerate(requested):
            driver = SOURCES.get(block_device["source_type"])
            block = {key: value for key, value in block_device.items() if key in BLOCK and value is not None}
            name = block.get("uuid")
            if name and driver and not is_uuid_key(name):
                source = self.resolve(driver, name, f"block_device_mapping[{at}].uuid")
                block["uuid"] = source["id"] if source else None
            blocks.append(block)
        stored: list[Document] = self.have["block_device_mapping"] if self.have else []
        if len(stored) != len(blocks) or not all(map(_fits, blocks, stored)):
            return blocks
        return [{**old, **new} for old, new in zip(stored, blocks, strict=True)]

    def rescue(self, requested: Document | None) -> Document | None:
        """Return the *requested* rescue with the uuid of its image; ``None`` if no rescue is requested. For a server
        that is already rescued, return the current rescue. Raises ``InvalidField``."""
        for name in ("device", "bus"):
            if requested and requested.get(name):
                raise InvalidField(f"rescue.{name}", f"follows from the image's property hw_rescue_{name} in a cloud")
        if requested and requested.get("image"):
            image = self.resolve(IMAGES, requested["image"], "rescue.image")
            requested = {**requested, "image": image["id"] if image else requested["image"]}
        rescued: Document | None = self.have["rescue"] if self.have else None
        return requested if requested is None or rescued is None else rescued


def _name(value: Any, field: str) -> str:
    """Return *value* after the check that it is a name or uuid. Raises ``InvalidField`` for *field*."""
    return REFERENCE.check(value, field)  # type: ignore[no-any-return]


def _listed(hints: Document) -> Document:
    """Return *hints* with a list of servers in place of a single server, so that hints can be compared."""
    return {name: [value] if name in ("different_host", "same_host") and not isinstance(value, list) else value
            for name, value in hints.items()}


def _fits(new: Document, old: Document) -> bool:
    """Return whether the server's block device *old* has all values of the requested block device *new*. For a root
    disk from an image, the image may differ."""
    from_image = old["source_type"] == new["source_type"] == "image" and old.get("boot_index") == 0
    return all(old.get(key) == value for key, value in new.items() if not (from_image and key == "uuid"))


def new_server(want: Document, freed: Collection[str] = ()) -> NewServers:
    """Return the request that creates the server *want*. *freed*: addresses and ports of an old server that *want*
    replaces. These are omitted from the request, because the old server still uses them when the request is checked."""
    nics = [requested_network(nic, at, freed) for at, nic in enumerate(want["networks"])]
    return NewServers(
        id=want.get("id"), name=want["name"], flavor_id=want["_flavor"], networks=nics or "none",
        image_id=(want["image"] or {}).get("id"), mapping=want["block_device_mapping"],
        metadata=METADATA.check(want["metadata"], "metadata"), tags=want["tags"],
        config_drive=want["config_drive"], host=want.get("host"), key_name=want["key_name"],
        user_data=want["user_data"], description=want["description"] or None,
        availability_zone=want["availability_zone"], off=want["power"] == OFF,
        hints=HINTS.check(want.get("scheduler_hints") or {}, "scheduler_hints"),
        security_groups=want.get("_groups") or (), hostname=want.get("hostname"),
        access_ip_v4=want.get("access_ip_v4"), access_ip_v6=want.get("access_ip_v6"),
        disk_config=want.get("disk_config"), trusted_certs=want.get("trusted_image_certificates"),
        admin_pass=want.get("admin_pass"))


def requested_network(nic: Mapping[str, Any], at: int, freed: Collection[str] = ()) -> Document:
    """Convert a requested NIC to the format of Nova's ``networks``: {port} or {uuid, fixed_ip}, each with the tag.
    *at*: the index of *nic* in the request. *freed*: addresses and ports of an old server that the request replaces.
    They are still in use when the new server is checked, so they are left out; in place of such a port, the result
    names the NIC's network. Raises ``InvalidField`` if *nic* has a MAC address."""
    if nic.get("mac"):
        raise InvalidField(f"networks[{at}].mac", "cannot be chosen in a cloud; it is drawn by the network service")
    if nic.get("port") and nic.get("_port") not in freed:
        return {"port": nic.get("_port"), **({"tag": nic["tag"]} if nic.get("tag") else {})}
    address = (nic.get("address") or "").partition("/")[0]
    return {"uuid": nic["_id"], **({"fixed_ip": address} if address and address not in freed else {}),
            **({"tag": nic["tag"]} if nic.get("tag") else {})}


def image_of(image: Mapping[str, Any] | None, blocks: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the uuid of the image of the root disk: *image*, or the image of the boot device in *blocks* (the block
    device mapping). Return ``None`` if the root disk has no image."""
    if image:
        return str(image["id"]) if image["id"] else None
    return next((block_device.get("uuid") for block_device in blocks if block_device.get("boot_index") == 0
                 and block_device["source_type"] == "image"),
                None)


def rebuild_of(want: Document, have: Document) -> Rebuild:
    """Return the arguments of the action rebuild that changes the server from *have* to *want*. Raises ``InvalidField``
    for a change that a rebuild cannot make."""
    image = image_of(want["image"], want["block_device_mapping"])
    if image is None:
        raise InvalidField("image", "is required: a server without one cannot be rebuilt")
    if want["availability_zone"] != have["availability_zone"]:
        raise InvalidField("availability_zone", "does not change with a rebuild; recreate the server")
    metadata = want["metadata"] if want["metadata"] != have["metadata"] else None
    return Rebuild(
        image_id=image, preserve_ephemeral=have["rebuild"]["preserve_ephemeral"],
        columns={name: want[name] for name in ("key_name", "user_data") if want[name] != have[name]},
        metadata=None if metadata is None else METADATA.check(metadata, "metadata"))
