# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's guest is told, of its document: the one source of the config drive and of a metadata service.

``document.state["seed"]`` has the random seed and ``keys`` the key of this host that it was made with; both are drawn
once (``draw``), so that telling it again tells the same. What a cloud knows better stands in ``want["guest_data"]``,
``want["vendor_data"]`` and ``told`` of each NIC.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.metadata import configdrive, guest_data
from magnetar_agent.metadata.guest_data import Device, Guest, GuestNic, Key, NicAddress6
from magnetar_agent.servers.disks import disk_layout
from magnetar_agent.servers.hardware import pci
from magnetar_agent.servers.nics import addresses
from magnetar_core import vendordata
from magnetar_core.device_names import device_order
from magnetar_core.hardware import numa
from magnetar_core.hardware.pci import WHOLE
from magnetar_core.server_plan import hardware

from . import admin_password, folder, spec

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain
    from magnetar_agent.host.storage import Disk
    from magnetar_agent.reconcile.documents import Document, Fields


log = logging.getLogger(__name__)


def tree(host: LocalHost, document: Document) -> dict[str, bytes]:
    """Path to content of all that the guest is told now (``guest_data.tree``). The password is not in it: the config
    drive alone has that."""
    return guest_data.tree(replace(guest(host, document), admin_pass=None))


def draw(host: LocalHost, document: Document) -> None:
    """Draw what is drawn once; the caller keeps the document before a guest reads it."""
    if "seed" not in document.state:
        document.state["seed"] = secrets.token_hex(512)
        document.state["keys"] = _key(host, document.want)


def _key(host: LocalHost, want: Fields) -> dict[str, str]:
    found = host.documents.look_for("keypair", want["key_name"]) if want["key_name"] else None
    return {found.name: found.want["public_key"]} if found else {}


def guest(host: LocalHost, document: Document) -> Guest:
    """All that the guest of *document* is told now. A server that nothing was drawn for is told fresh randomness each
    time, as by Nova's metadata service."""
    want, state = document.want, document.state
    usual = spec.arranged(host, document, rescued=False)  # the drive is not written again when it is unrescued
    image = host.documents.get("image", want["image"]) if want["image"] else None
    seed = state.get("seed")
    return Guest(
        uuid=document.id, seed=bytes.fromhex(seed) if seed else secrets.token_bytes(512), image=want["image"],
        kernel=_part(host, image, "kernel"), ramdisk=_part(host, image, "ramdisk"), metadata=want["metadata"],
        user_data=want["user_data"],
        injected=tuple((one["path"], one["contents"]) for one in want.get("personality") or ()),
        nics=tuple(_nic(host, want, nic) for nic in want["networks"]), devices=tuple(_devices(host, document, usual)),
        dedicated_cpus=tuple(sorted(numa.pinned(hardware(want), want["flavor"]["vcpus"]))),
        mappings=_mappings(want, usual), admin_pass=want.get("admin_pass"), **_named(host, document))


def write_drive(host: LocalHost, document: Document, name: str, flushed: bool = True) -> None:
    """Write the config drive called *name*. It keeps the password, which *document* forgets but for what the guest
    agent is still to set (``admin_password``). *flushed*: it outlives a loss of power from now on."""
    path = folder(host, document.id) / name
    vfat = disk_layout.format_of(host, document) == "vfat"
    make = host.hypervisor.make_vfat if vfat else host.hypervisor.make_iso
    make(path, configdrive.LABEL, configdrive.files(guest(host, document)), flushed)
    host.hypervisor.permit([path])
    admin_password.told(document)


def _named(host: LocalHost, document: Document) -> dict[str, Any]:
    """What a cloud says in place of the host, where there is one."""
    want, told = document.want, document.want.get("guest_data")
    vendor = want.get("vendor_data") or {}
    static = _vendor_data(host) if told is None else vendor.get("static") or {}
    given = {"vendor_data": static, "vendor_data2": vendor.get("dynamic") or {}}
    if told is None:
        return {**given, "name": want["name"], "hostname": guest_data.hostname(want["name"]),
                "flavor": want["flavor"].get("name", ""), "availability_zone": want["availability_zone"] or "",
                "keys": keys(host, document)}
    return {**given, **{name: told[name] for name in ("name", "hostname", "launch_index", "flavor")},
            "project": told["project_id"], "reservation": told["reservation_id"],
            "availability_zone": told["availability_zone"], "keys": keys(host, document),
            "security_groups": tuple(told["security_groups"]), "public_ipv4": told.get("public_ipv4") or ""}


def keys(host: LocalHost, document: Document) -> tuple[Key, ...]:
    """Its keys, as its cloud calls them where there is one."""
    told = document.want.get("guest_data")
    if told is not None:
        return tuple(Key(**one) for one in told["keys"])
    found = document.state.get("keys", _key(host, document.want))
    return tuple(Key(name, data) for name, data in found.items())


def _vendor_data(host: LocalHost) -> dict[str, Any]:
    """What this host's operator has guests told; nothing where the file has become unreadable, as at Nova."""
    path = host.settings.vendordata_jsonfile_path
    try:
        return vendordata.read(path) if path else {}
    except ValueError as error:
        log.warning("guests are told no vendor data: %s", error)
        return {}


def _part(host: LocalHost, image: Document | None, name: str) -> str | None:
    """The uuid of the image's kernel or ramdisk."""
    reference = image.want.get(name) if image else None
    found = host.documents.look_for("image", reference) if reference else None
    return found.id if found else None


def _nic(host: LocalHost, want: Fields, wanted: Fields) -> GuestNic:
    plugged, told = spec.nic(host, wanted), wanted.get("told") or {}
    known = host.documents.look_for("network", wanted["network"]) if wanted.get("network") else None
    return GuestNic(
        mac=pci.mac_in_guest(want, wanted), network=(
            told.get("network_id") or plugged.network or plugged.bridge or wanted.get("physical_network", "")),
        port=told.get("port_id") or plugged.port, type=_link_type(wanted),
        mtu=told.get("mtu") or (known.want["mtu"] if known else 0), **_addressed(host, wanted, told),
        vlans=tuple((one["segmentation_id"], GuestNic(
            mac=one["mac"], network=one["network_id"], port=one["port_id"], mtu=one.get("mtu", 0),
            **_addressed(host, {**one, "told": one}, one))) for one in told.get("vlans", ())))


def _addressed(host: LocalHost, wanted: Fields, told: Fields) -> dict[str, Any]:
    """Addresses, name servers and routes of a NIC, or of what one carries with a tag."""
    return {"address": addresses.for_config_drive(host, wanted), "dns": tuple(told.get("dns_nameservers", ())),
            "routes": tuple((one["destination"], one["nexthop"]) for one in told.get("host_routes", ())),
            "ipv6": tuple(_address6(one) for one in told.get("ipv6", ()))}


def _link_type(wanted: Fields) -> str:
    """Nova's word in network_data.json: ``hw_veb`` for a virtual function, ``phy`` for a whole card."""
    if wanted.get("physical_network") and not wanted.get("port"):
        return "phy" if wanted.get("vnic_type") == WHOLE else "hw_veb"
    return "ovs" if wanted.get("port") else "bridge"


def _address6(told: Fields) -> NicAddress6:
    address, _slash, prefix = told["address"].partition("/")
    return NicAddress6(address, int(prefix), told.get("mode"), told.get("gateway"),
                       tuple(told.get("dns_nameservers", ())))


def _devices(host: LocalHost, document: Document, disks: tuple[Disk, ...]) -> Iterator[Device]:
    """Shares, and tagged NICs and disks with bus and address as libvirt says them: of what runs, else of what is
    defined."""
    for share in document.state.get("shares", ()):
        yield Device("share", "none", (share["tag"],), share_id=share.get("share_id") or share["share"])
    nics = [one for one in document.want["networks"] if one.get("tag")]
    tagged = [one for one in disks if one.tag]
    if not nics and not tagged:
        return
    places = _places(host.hypervisor.running(document.id) or host.hypervisor.domain(document.id))
    for nic in nics:
        bus, address = places.get(nic["mac"], ("pci", "none"))
        yield Device("nic", bus, (nic["tag"],), address, mac=pci.mac_in_guest(document.want, nic),
                     trusted=bool(nic.get("trusted")))
    for disk in tagged:
        bus, address = places.get(disk.target, ("pci" if disk.bus == "virtio" else disk.bus, "none"))
        yield Device("disk", bus, (str(disk.tag),), address, serial=disk.serial and disk.serial[:20],
                     path=f"/dev/{disk.target}")


def _places(domain: Domain | None) -> dict[str, tuple[str, str]]:
    """Bus and address of devices, by MAC and target."""
    if domain is None:
        return {}
    return {**{one.mac: one.place for one in domain.nics if one.place},
            **{one.target: one.place for one in domain.disks if one.place}}


def _mappings(want: Fields, disks: tuple[Disk, ...]) -> dict[str, str]:
    """EC2's block device mapping, as Nova numbers it; the config drive is none of it."""
    found = {"ami": disks[0].target, "root": f"/dev/{disks[0].target}"}
    names = {one.file: one.label for one in spec.local_disks(want)}
    others = sorted((one.target for one in disks[1:] if one.device == "disk" and one.path.name not in (
        *names, configdrive.FILE)), key=device_order)
    found |= {names[one.path.name]: f"/dev/{one.target}" for one in disks[1:] if one.path.name in names}
    return {**found, **{f"ebs{at}": f"/dev/{target}" for at, target in enumerate(others)}}
