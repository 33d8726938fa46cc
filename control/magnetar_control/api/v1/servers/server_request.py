# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wanted of a server, with its references resolved, and the same as the use cases take it."""

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
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.kinds.common import REFERENCE
from magnetar_core.kinds.flavor import completed
from magnetar_core.power import OFF
from magnetar_core.reconcile import Document, is_uuid, missing
from magnetar_core.values import Value

from .server_plan import nics_fit
from .server_view import BLOCK, SIZES, group_key

FLAVORS, KEYPAIRS, NETWORKS = CloudFlavors(), CloudKeypairs(), CloudNetworks()
GROUPS, PORTS, HINTS = ServerGroups(), Ports(), Hints()
#: Values of the access addresses.
ACCESS: Mapping[str, Value] = {"access_ip_v4": Address(4), "access_ip_v6": Address(6)}
#: What a NIC has that is a device of a single host; a cloud has ports for such.
OF_DEVICES = ("physical_network", "vnic_type", "trusted", "max_tx_rate", "min_tx_rate", "vlan")
#: What an item of the block device mapping is made from, by its source_type; others name nothing.
SOURCES: Mapping[str, CloudDriver] = {"image": IMAGES, "volume": VOLUMES, "snapshot": SNAPSHOTS}


def complete(caller: Caller, want: Document, have: Document | None) -> Document:
    """*want*, a whole document, with references as ``server_view`` shows them. What differs from *have* in words only
    is as it is there. ``_flavor`` is the flavor's id, ``_specs`` what another one than the server has asks for besides
    sizes, ``_assumed`` whether a dry run assumes that something is made before. Raises ``InvalidField``."""
    references = _References(caller, have)
    flavor, flavor_id = references.flavor(want["flavor"])
    found = {**want, "flavor": flavor, "_flavor": flavor_id, "_specs": references.specs,
             "image": references.image(want.get("image")), "networks": references.networks(want["networks"]),
             "block_device_mapping": references.blocks(want.get("block_device_mapping") or [])}
    if want.get("key_name") and not (have and have["key_name"] == want["key_name"]):
        references.resolve(KEYPAIRS, want["key_name"], "key_name")
    zone = want.get("availability_zone")
    if zone and have:  # ZONE:HOST says where a new server goes; afterwards the zone counts
        found["availability_zone"] = zone.partition(":")[0] or have["availability_zone"]
    found["trusted_image_certificates"] = want.get("trusted_image_certificates") or None  # an empty list names none
    found.update(addressed(want), scheduler_hints=references.hints(want.get("scheduler_hints")))
    names, keys = references.groups(want.get("security_groups"))
    return {**found, "security_groups": names, "_groups": keys, "rescue": references.rescue(want.get("rescue")),
            "_assumed": references.assumed}


def addressed(want: Document) -> Document:
    """Return the access addresses of *want* in their normal form. Raises ``InvalidField``."""
    return {name: value.check(want[name], name) for name, value in ACCESS.items() if want.get(name)}


def with_port_ids(caller: Caller, given: Document) -> Document:
    """Return *given* with uuids in place of names of ports, as far as there are such ports: NICs are known by them."""
    networks = [{**nic, "port": port["id"]} if nic.get("port") and not is_uuid(nic["port"]) and (
        port := PORTS.find(caller, nic["port"])) else nic for nic in given.get("networks") or ()]
    return {**given, "networks": networks} if networks else given


class _References:
    """What a server refers to. *have*: the server, where there is one."""

    def __init__(self, caller: Caller, have: Document | None) -> None:
        self.caller, self.have = caller, have
        self.assumed = False
        #: Extra specs of the flavor, where it is another one than the server has.
        self.specs: Document | None = None

    def resolve(self, driver: CloudDriver, name: str, field: str) -> Document | None:
        """The resource, or ``None`` where a dry run may assume it. Raises ``InvalidField``."""
        found = driver.referred(self.caller, name, field)
        self.assumed |= found is None
        return found

    def flavor(self, given: Any) -> tuple[Document, str]:
        """Name and sizes of the flavor, and its id."""
        mine: Document = self.have["flavor"] if self.have else {}
        if isinstance(given, dict):
            sizes = {**dict.fromkeys(SIZES[3:], 0), **{
                name: n for name, n in completed(given, mine).items() if name in SIZES[1:]}}
            if self.have and all(mine.get(name) == value for name, value in sizes.items()):
                return mine, str(self.have["_flavor"])
            fits = [one for one in FLAVORS.every(self.caller) if all(one[name] == n for name, n in sizes.items())]
            if not fits:
                raise InvalidField("flavor", "no flavor of this cloud has these sizes; ask an administrator for one, "
                                             "or name one", sizes)
            # One that asks for nothing besides sizes, where there is one.
            found: Document | None = min(fits, key=lambda one: bool(one.get("extra_specs")))
        else:
            found = self.resolve(FLAVORS, str(given), "flavor")
        if found is None:
            return {**dict.fromkeys(SIZES, 0), **mine, "name": given}, str(given)
        self.specs = found.get("extra_specs") or {}
        return {name: found[name] for name in SIZES}, str(found["id"])

    def image(self, given: Any) -> Document | None:
        """Name and uuid of the image."""
        if not given or isinstance(given, dict):
            return given or None
        mine: Document | None = self.have["image"] if self.have else None
        if mine and given in (mine["id"], mine["name"]):
            return mine
        found = self.resolve(IMAGES, given, "image")
        return {"id": found["id"], "name": found["name"]} if found else {"id": None, "name": given}

    def networks(self, given: list[Document]) -> list[Document]:
        """The NICs; those that the server has where these fit what is wanted."""
        have: list[Document] | None = self.have["networks"] if self.have else None
        if have is not None and given is have:
            return have
        wishes = [nic if "_made" in nic else self._nic(nic, at) for at, nic in enumerate(given)]
        named = {nic.get("_port") for nic in wishes if nic.get("port")}
        wishes = [nic for nic in wishes if nic.get("port") or nic.get("_port") not in named - {None}]
        return have if have is not None and nics_fit(wishes, have) == ([], []) else wishes

    def _nic(self, given: Mapping[str, Any], at: int) -> Document:
        where = f"networks[{at}]"
        if given.get("bridge"):
            raise InvalidField(f"{where}.bridge", "is for a single host; in a cloud, name a network (mode bridge makes "
                                                  "one of a bridge)", given["bridge"])
        for name in OF_DEVICES:
            if given.get(name):
                raise InvalidField(f"{where}.{name}", "is for a single host; in a cloud, a port of vnic_type direct is "
                                                      "such a NIC (openstack server create --port)", given[name])
        if given.get("port"):
            return self._of_port(given, where)
        if not given.get("network"):
            raise InvalidField(f"{where}.network", "is required, or port")
        if given.get("model", "virtio") != "virtio":
            raise InvalidField(f"{where}.model", "must be virtio in a cloud", given["model"])
        if name := next((one for one in ("network_affinity", "card") if one in given), ""):
            raise InvalidField(f"{where}.{name}", "follows from network and port in a cloud", given[name])
        for name in ("port_security", "allowed_addresses"):
            if name in given:
                raise InvalidField(f"{where}.{name}", "is a port's in a cloud; make the port with the network service",
                                   given[name])
        found = self.resolve(NETWORKS, given["network"], where)
        name, id = (found["name"], found["id"]) if found else (given["network"], None)
        return {"network": name, "model": "virtio", "_id": id,
                **{key: given[key] for key in ("mac", "tag", "address") if given.get(key)}}

    def _of_port(self, given: Mapping[str, Any], where: str) -> Document:
        """Return the NIC of a port that exists, which says its network, addresses and MAC address."""
        for name in ("network", "address", "mac"):
            if given.get(name):
                raise InvalidField(f"{where}.{name}", "cannot be combined with port, which has its own", given[name])
        found = self.resolve(PORTS, given["port"], f"{where}.port")
        nic: Document = {"network": "", "port": given["port"], "model": "virtio", "_id": None,
                         **({"tag": given["tag"]} if given.get("tag") else {})}
        return {**nic, "_id": found["network"], "_port": found["id"]} if found else nic

    def hints(self, given: Document | None) -> Document:
        """Return the scheduler hints with uuids in place of names; those of the server where they say the same."""
        hints: Document = dict(given or {})
        if hints.get("group"):
            group = self.resolve(GROUPS, _name(hints["group"], "scheduler_hints.group"), "scheduler_hints.group")
            hints["group"] = group["id"] if group else None
        for name in ("different_host", "same_host"):
            if hints.get(name):
                servers = hints[name] if isinstance(hints[name], list) else [hints[name]]
                hints[name] = [self._server(one, f"scheduler_hints.{name}") for one in servers]
        hints = {name: value for name, value in hints.items() if value is not None}
        stored: Document = self.have["scheduler_hints"] if self.have else {}
        return stored if _listed(stored) == _listed(hints) else hints

    def _server(self, given: Any, field: str) -> str:
        """Return the uuid of a server of the project. Raises ``InvalidField``."""
        key = _name(given, field)
        if is_uuid(key):
            return key.lower()
        named = servers.by_name(self.caller.cloud.store, self.caller.project, key)
        if len(named) != 1:
            raise InvalidField(field, f"must name one server, and your project has {len(named)} called {key!r}")
        return str(named[0][1].id)

    def groups(self, given: list[str] | None) -> tuple[list[str], list[str]]:
        """Return names and keys of the security groups. A server without NICs has none, whatever is asked for."""
        stored = (self.have["security_groups"], self.have["_groups"]) if self.have else ([], [])
        if given is None or given is stored[0] or (self.have and not self.have["networks"]):
            return stored
        found: list[Document] = []
        for at, name in enumerate(given):
            try:
                found += self.caller.cloud.services.network.groups(self.caller.context, [name])
            except InvalidRequest:
                self.assumed = True
                missing(InvalidField(f"security_groups[{at}]", f"there is no security group {name!r} in your project"),
                        "security_group", name)
        keys = [*dict.fromkeys(map(group_key, found))]
        return stored if {*keys} == {*stored[1]} else (sorted({one["name"] for one in found}), keys)

    def blocks(self, given: list[Document]) -> list[Document]:
        """With uuids in place of names. What a server was made with is compared by what is said now."""
        blocks = []
        for at, one in enumerate(given):
            driver = SOURCES.get(one["source_type"])
            block = {key: value for key, value in one.items() if key in BLOCK and value is not None}
            name = block.get("uuid")
            if name and driver and not is_uuid(name):
                found = self.resolve(driver, name, f"block_device_mapping[{at}].uuid")
                block["uuid"] = found["id"] if found else None
            blocks.append(block)
        kept: list[Document] = self.have["block_device_mapping"] if self.have else []
        if len(kept) != len(blocks) or not all(map(_fits, blocks, kept)):
            return blocks
        return [{**old, **new} for old, new in zip(kept, blocks, strict=True)]

    def rescue(self, given: Document | None) -> Document | None:
        """A server that is rescued stays as it is, whatever it is rescued with."""
        for name in ("device", "bus"):
            if given and given.get(name):
                raise InvalidField(f"rescue.{name}", f"follows from the image's property hw_rescue_{name} in a cloud")
        if given and given.get("image"):
            image = self.resolve(IMAGES, given["image"], "rescue.image")
            given = {**given, "image": image["id"] if image else given["image"]}
        rescued: Document | None = self.have["rescue"] if self.have else None
        return given if given is None or rescued is None else rescued


def _name(value: Any, field: str) -> str:
    """Return *value*, which must be a name or uuid. Raises ``InvalidField``."""
    return REFERENCE.check(value, field)  # type: ignore[no-any-return]


def _listed(hints: Document) -> Document:
    """Return *hints* with lists in place of single servers, to compare them."""
    return {name: [value] if name in ("different_host", "same_host") and not isinstance(value, list) else value
            for name, value in hints.items()}


def _fits(new: Document, old: Document) -> bool:
    """Whether a block says nothing else than *old*, but for the image that a root volume is made from."""
    anew = old["source_type"] == new["source_type"] == "image" and old.get("boot_index") == 0
    return all(old.get(key) == value for key, value in new.items() if not (anew and key == "uuid"))


def new_server(want: Document, freed: Collection[str] = ()) -> NewServers:
    """A request for the server. The addresses and ports *freed* will be, so they are not named where it is only
    checked."""
    nics = [network_of(nic, at, freed) for at, nic in enumerate(want["networks"])]
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


def network_of(nic: Mapping[str, Any], at: int, freed: Collection[str] = ()) -> Document:
    """One of its networks, as ``Networks.check_requested`` takes it."""
    if nic.get("mac"):
        raise InvalidField(f"networks[{at}].mac", "cannot be chosen in a cloud; it is drawn by the network service")
    if nic.get("port") and nic.get("_port") not in freed:
        return {"port": nic.get("_port"), **({"tag": nic["tag"]} if nic.get("tag") else {})}
    address = (nic.get("address") or "").partition("/")[0]
    return {"uuid": nic["_id"], **({"fixed_ip": address} if address and address not in freed else {}),
            **({"tag": nic["tag"]} if nic.get("tag") else {})}


def image_of(image: Mapping[str, Any] | None, blocks: Iterable[Mapping[str, Any]]) -> str | None:
    """The image that the root disk is made from, be it a local one or a volume."""
    if image:
        return str(image["id"]) if image["id"] else None
    return next((one.get("uuid") for one in blocks if one.get("boot_index") == 0 and one["source_type"] == "image"),
                None)


def rebuild_of(want: Document, have: Document) -> Rebuild:
    """The arguments of the action rebuild. Raises ``InvalidField`` for what it cannot do."""
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
