# SPDX-License-Identifier: GPL-3.0-or-later
"""Completion of a requested server: references become uuids, MACs are drawn, and impossible requests are refused.

Drawn values are kept in the document, so every later step can be repeated.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers.disks import block_devices, disk_record, encryption, image_links, pmem, root_pool
from magnetar_agent.servers.hardware import encrypted_memory, hardware, mdevs, memory, pci, placement
from magnetar_agent.servers.nics import addresses, virtual_functions
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import DIRECT, REMOTE, device_kind, nic_devices_name
from magnetar_core.kinds.flavor import complete_sizes
from magnetar_core.power import SHELVED
from magnetar_core.reconcile import is_uuid_key, refuse_missing
from magnetar_core.server_plan import root_block_device

from . import GIB, rescue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")
#: The defaults of a NIC's fields, which are not stored.
USUAL: Fields = {"port_security": True, "allowed_addresses": [], "security_groups": None, "vnic_type": DIRECT,
                 "trusted": False, "max_tx_rate": 0, "min_tx_rate": 0}
#: Network, bridge, port (of OVN) and devices (``pci.nic_devices_name``) of a NIC; one of them is set.
Plug = tuple[str | None, str | None, str | None, str | None]


def complete_server(host: LocalHost, want: Fields, document: Document | None) -> Fields:
    """Return *want* with uuids instead of names, new MACs and assigned CPUs. *document*: the present server, if any."""
    old = document.want if document else {}
    desired = dict(want)
    if want.get("power") == SHELVED:
        raise InvalidField("power", "cannot be shelved on a single host, since it is the image service of a cloud that "
                                    "keeps the root disk; stop the server, or make an image of it (create_image)")
    if document is None and want.get("id"):
        _uuid_is_free(host, want["id"])
    desired["flavor"] = _flavor(host, want["flavor"], old.get("flavor"))
    if desired["flavor"] != old.get("flavor"):
        hardware.check_flavor_specs(host, desired["flavor"])
    image = _image(host, want.get("image"), document, kept=bool(want.get(disk_record.GIVEN)))
    desired["image"] = image.id if image else want.get("image")
    if image and desired["image"] != old.get("image"):
        _check_image_fits(image, desired["flavor"])
        hardware.check_image(host, image)
        desired["config_drive"] = want["config_drive"] or image.want["properties"].get(
            "img_config_drive") == "mandatory"
    if "rescue" in desired:  # a document of an older agent does not have it
        desired["rescue"] = rescue.complete_rescue(host, desired, document)
    desired["root_format"] = _root_format(host, want["root_format"], old.get("root_format"))
    desired["virt_type"] = _virt_type(host, want["virt_type"], old.get("virt_type"))
    hardware.complete_hardware(host, desired, old, image, want["virt_type"])
    encryption.complete_encryption(host, desired, old, want["root_format"], image)
    desired[block_devices.FIELD] = block_devices.complete_device_mapping(host, desired, document)
    id = document.id if document else want.get("id", "")
    if desired["flavor"] != old.get("flavor"):
        hardware.check_sizes(host, desired["flavor"], root_block_device(desired) is not None, desired["root_format"])
        memory.check_file_memory(host, desired, id)
    placement.complete_placement(host, desired, old, id, pci.preferred_device_cells(host, desired, id))
    mdevs.complete_mdev(host, desired, old, id)
    pmem.complete_pmem(host, desired, old, id)
    encrypted_memory.complete_memory_encryption(host, desired, old, id)
    desired["key_name"] = _key(host, want.get("key_name"), old)
    desired["networks"] = _networks(host, want["networks"], document)
    hardware.choose_nic_models(desired, old)
    virtual_functions.check_function_nics(desired)
    pci.complete_pci_devices(host, desired, old, id)
    return desired


def _uuid_is_free(host: LocalHost, id: str) -> None:
    domain = host.hypervisor.domain(id)
    if domain is not None and not domain.owned:
        raise Conflict(f"The uuid {id} belongs to the libvirt domain {domain.name!r}, which Magnetar did not make and "
                       "does not touch. Use another uuid.", uuids=[id])


def _flavor(host: LocalHost, requested: Any, old: Fields | None) -> Fields:
    """Return the sizes (vcpus, ram, …) of the *requested* flavor, and its name if it has one. *requested*: a flavor's
    name, or a dict of sizes. *old*: the server's current flavor, ``None`` for a new server."""
    if isinstance(requested, dict):
        if old and requested.items() <= old.items():
            return old
        whole = complete_sizes(requested, old)
        sizes = {size: whole.get(size, 0) for size in SIZES}
        return {"name": requested["name"], **sizes} if "name" in requested else sizes
    flavor = host.documents.standing("flavor", requested)
    if flavor is None:
        if old and requested == old.get("name"):
            return old
        refuse_missing(
            InvalidField("flavor", f"must name a flavor of this host, and there is none called {requested!r}; make it, "
                                       "or give its sizes"), "flavor", requested)
        return {"name": requested, **dict.fromkeys(SIZES, 0)}
    return {"name": flavor.name, **{size: flavor.want[size] for size in SIZES}}


def _image(host: LocalHost, reference: str | None, document: Document | None, kept: bool) -> Document | None:
    """Return the document of the image with the name or uuid *reference*; ``None`` if *reference* is ``None``. *kept*:
    the server already has disks, so the image may be missing on this host.

    The image of the existing server *document* may have been removed since. Then return ``None`` if *reference* is its
    uuid, and a substitute (``_removed_image``) if *reference* is its name."""
    if reference is None:
        return None
    if kept and document is None:
        return host.documents.get("image", reference)
    if document and reference == document.want.get("image"):
        return host.documents.get("image", reference)
    if document and reference == document.state.get("image_name") and host.documents.standing("image",
                                                                                              reference) is None:
        return host.documents.get("image", document.want["image"]) or _removed_image(document)
    return image_links.bootable_image(host, reference)


def _removed_image(document: Document) -> Document:
    """Return a substitute for the document of the server's image, which was removed. Only the substitute's uuid may be
    used.
    """
    image = document.copy()
    image.id = document.want["image"]
    return image


def _check_image_fits(image: Document, flavor: Fields) -> None:
    least = image.want
    virtual = image.state.get("virtual_size") or 0
    disk = flavor["disk"]
    if flavor["ram"] < least["min_ram"]:
        raise InvalidField("flavor", f"must have at least {least['min_ram']} MiB of ram for image {image.name!r}",
                           flavor["ram"])
    if 0 < disk < least["min_disk"]:
        raise InvalidField("flavor", f"must have at least {least['min_disk']} GiB of disk for image {image.name!r}",
                           disk)
    if 0 < disk * GIB < virtual and image.state["disk_format"] in ("raw", "qcow2"):
        raise InvalidField("flavor", f"must have a disk of at least {-(-virtual // GIB)} GiB: image {image.name!r} has "
                                     "that size, and a disk cannot shrink", disk)


def _key(host: LocalHost, key_name: str | None, old: Fields) -> str | None:
    if key_name is None or key_name == old.get("key_name"):
        return key_name
    keypair = host.documents.standing("keypair", key_name)
    if keypair is None:
        refuse_missing(InvalidField("key_name",
                                    f"must name a keypair of this host, and there is none called {key_name!r}; make "
                                         "it first"), "keypair", key_name)
        return key_name
    return keypair.name


def _root_format(host: LocalHost, requested: str, old: str | None) -> str:
    """Return the *requested* root disk format. ``auto`` means *old*, the format of the existing server, or the setting
    ``root_format`` for a new server."""
    root_format = str(old or host.settings.root_format) if requested == "auto" else requested
    if root_format in root_pool.WHAT and old is None:
        root_pool.check_host(host, "root_format", root_format)
    return root_format


def _virt_type(host: LocalHost, requested: str, old: str | None) -> str:
    """Return the *requested* virtualization type, kvm or qemu. ``auto`` means *old*, the type of the existing server;
    for a new server, the setting or the best type available. Raises ``InvalidField`` for kvm on a host without KVM."""
    if requested == "auto":
        configured = host.settings.virt_type if host.settings.virt_type != "auto" else None
        return old or configured or ("kvm" if host.hypervisor.kvm()["usable"] else "qemu")
    if requested == "kvm" and requested != old:
        kvm = host.hypervisor.kvm()
        if not kvm["usable"]:
            raise InvalidField("virt_type", f"cannot be kvm on this host: {kvm['reason']}; use qemu or auto")
    return requested


def _networks(host: LocalHost, requested: list[Fields], document: Document | None) -> list[Fields]:
    """Return the *requested* NICs, each with a MAC: from the request, from the same NIC in *document* (the existing
    server), or randomly generated."""
    old = list(document.want["networks"]) if document else []
    nics: list[Fields] = []
    for field, nic, former in _matched(host, requested, old):
        if nic.get("port"):
            _check_port(host, nic, field, nics, document)
        virtual_functions.check_type(nic, former, field)
        if nic.get("security_groups") is not None and not nic.get("port_security", True):
            raise InvalidField(f"{field}.security_groups", "need port_security, without which nothing is filtered")
        mac = nic.get("mac") or (former["mac"] if former else _draw_mac(host, {f["mac"] for f in nics}))
        other = None if former else mac_owner(host, mac, document)  # a kept MAC was checked when it came
        if other:
            raise Conflict(f"{field}.mac: {mac} belongs to server {other.name!r}. Leave it out to have one drawn.",
                           field=f"{field}.mac", uuids=[other.id])
        if mac in {f["mac"] for f in nics}:
            raise InvalidField(f"{field}.mac", "must differ from the other NICs'", mac)
        nics.append(_plain({"model": "virtio", **nic, "mac": mac}))
    addresses.complete_addresses(host, nics, old, document)
    return nics


def _plain(nic: Fields) -> Fields:
    """Return *nic* without the fields that have their default values."""
    return {name: value for name, value in nic.items() if name not in USUAL or value != USUAL[name]}


def _matched(host: LocalHost, requested: list[Fields], old: list[Fields]) -> Iterator[tuple[str, Fields,
                                                                                            Fields | None]]:
    """Yield a triple for each *requested* NIC: its field name such as ``networks[0]``, the requested NIC, and the same
    NIC in *old*, the server's current NICs (``None`` for a new NIC)."""
    keeping = list(old)
    for at, nic in enumerate(requested):
        field = f"networks[{at}]"
        requested_plug = nic_plug(nic, field)
        former = next((k for k in keeping if _is_same_nic(nic, k, requested_plug)), None)
        if former:
            keeping.remove(former)
        elif not any(requested_plug == nic_plug(o, field) for o in old):
            check_plug(host, requested_plug, field)
        yield field, nic, former


def macs_of_server(server: Document) -> list[str]:
    """Return the MAC addresses of the server's NICs."""
    return [nic["mac"] for nic in server.want["networks"]]


def mac_owner(host: LocalHost, mac: str, document: Document | None = None) -> Document | None:
    """Return the server that has a NIC with this *mac*; ``None`` if there is none. The server *document* is ignored."""
    servers = host.documents.having("server", "mac", mac)
    return next((server for server in servers if document is None or server.id != document.id), None)


def port_names_of_server(server: Document) -> list[str]:
    """Return the uuids of the OVN ports to which the server's NICs are connected."""
    return [nic["port"] for nic in server.want["networks"] if nic.get("port")]


def port_owner(host: LocalHost, port: str | None, document: Document | None = None) -> Document | None:
    """Return the server that has a NIC on the OVN *port*; ``None`` if there is none. The server *document* is ignored.
    """
    servers = host.documents.having("server", "port", port) if port else ()
    return next((server for server in servers if document is None or server.id != document.id), None)


def _check_port(host: LocalHost, nic: Fields, field: str, checked_nics: list[Fields],
                document: Document | None) -> None:
    """Check the OVN port that the requested *nic* names. Raises ``InvalidField`` or ``Conflict`` if another server or
    one of *checked_nics* has the same port, or if *nic* sets port security, allowed addresses or security groups: for
    an OVN port, they are set in OVN."""
    if not is_uuid_key(nic["port"]):
        raise InvalidField(f"{field}.port", "must be the uuid by which OVN knows the port; names of ports are for a "
                                            "cloud", nic["port"])
    for name in ("port_security", "allowed_addresses", "security_groups"):
        if nic.get(name, USUAL[name]) != USUAL[name]:
            raise InvalidField(f"{field}.{name}", "is OVN's where the NIC names a port; set port security, "
                                                  "addresses and groups of the logical switch port there", nic[name])
    if any(other_nic.get("port") == nic["port"] for other_nic in checked_nics):
        raise InvalidField(f"{field}.port", "must differ from the other NICs'", nic["port"])
    if other := port_owner(host, nic["port"], document):
        raise Conflict(f"{field}.port: {nic['port']} belongs to server {other.name!r}. Name another port.",
                       field=f"{field}.port", uuids=[other.id])


def nic_plug(nic: Fields, field: str) -> Plug:
    """Return what *nic* is connected to, as a tuple (network, bridge, OVN port, host devices) of names. Exactly one of
    the four is set and the others are ``None``, except for a NIC whose card forwards packets for OVN: it has both a
    port and devices. Raises ``InvalidField`` naming *field* for any other combination."""
    devices = nic_devices_name(nic) if nic.get("physical_network") else None
    places = (nic.get("network"), nic.get("bridge"), nic.get("port"), devices)
    if sum(place is not None for place in places) != 1 and not virtual_functions.is_forwarded(nic):
        raise InvalidField(field, "must name either a network, a bridge, a port or a physical network")
    return places


def _is_same_nic(nic: Fields, old: Fields, requested_plug: Plug) -> bool:
    """Return whether *nic*, a requested NIC, is the existing NIC *old*: it has the same MAC or, if the request has no
    MAC, the same connection. *requested_plug*: result of ``nic_plug`` for *nic*."""
    if nic.get("mac"):
        return bool(nic["mac"] == old["mac"])
    return requested_plug == nic_plug(old, "networks")


def check_plug(host: LocalHost, requested_plug: Plug, field: str) -> None:
    """Raise ``InvalidField`` or ``Conflict`` naming *field* if this host lacks the network, bridge, OVN port or device
    in *requested_plug*, a result of ``nic_plug``."""
    network, bridge, port, devices = requested_plug
    if devices is not None:
        virtual_functions.check_device_network(host, devices, field)
    if devices is not None and (port is None or device_kind(devices) == REMOTE):  # the card's own OVN has the port
        return
    if port is not None:
        lacks = host.hypervisor.integration_bridge(host.settings.integration_bridge).reason
        if lacks:
            raise Conflict(f"{field}.port: host {host.name} cannot plug in ports of OVN: {lacks}",
                           field=f"{field}.port")
        return
    if bridge is not None:
        bridges = host.hypervisor.bridges()
        if bridge not in bridges:
            bridge_names = ", ".join(sorted(bridges)) or "none"
            raise InvalidField(f"{field}.bridge", "must be a bridge of this host, and there is none called "
                                                  f"{bridge!r}; there are {bridge_names}")
        return
    assert network is not None
    network_document = host.documents.peek_by_key("network", network)
    if network_document.deleting if network_document else network not in host.hypervisor.networks():
        refuse_missing(InvalidField(f"{field}.network",
                                    f"must name a network, and there is none called {network!r}; make it "
                                                 "with the network module, or name a bridge"), "network", network)


def _draw_mac(host: LocalHost, drawn: set[str]) -> str:
    """Return a random MAC with QEMU's prefix 52:54:00 that no server on this host has and that is not in *drawn*, the
    other MACs of this request."""
    while True:
        mac = "52:54:00:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))
        if mac not in drawn and not mac_owner(host, mac):
            return mac
