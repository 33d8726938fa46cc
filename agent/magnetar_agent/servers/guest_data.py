# SPDX-License-Identifier: GPL-3.0-or-later
"""The data for a server's guest, from its document: the one source of the config drive and of a metadata service.

``document.state["seed"]`` has a random seed, and ``keys`` the public key of the server's keypair on this host; both are
set once (``draw_guest_seed``), so the guest gets the same each time. Data from a cloud is in ``want["guest_data"]``,
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
from magnetar_core.hardware import numa
from magnetar_core.hardware.device_names import device_order
from magnetar_core.hardware.pci import WHOLE
from magnetar_core.server_plan import server_hardware

from . import admin_password, server_folder, spec

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain
    from magnetar_agent.host.storage import Disk
    from magnetar_agent.reconcile.documents import Document, Fields


log = logging.getLogger(__name__)


def guest_metadata_tree(host: LocalHost, document: Document) -> dict[str, bytes]:
    """Return the content of the metadata service for the guest as ``{path: content}``. The admin password is omitted;
    only the config drive contains it."""
    return guest_data.metadata_tree(replace(build_guest(host, document), admin_pass=None))


def draw_guest_seed(host: LocalHost, document: Document) -> None:
    """Store a random seed and the public key of the server's keypair in the document, unless a seed is there already.
    The caller writes the document to disk before the guest can read them."""
    if "seed" not in document.state:
        document.state["seed"] = secrets.token_hex(512)
        document.state["keys"] = _key(host, document.want)


def _key(host: LocalHost, want: Fields) -> dict[str, str]:
    keypair = host.documents.peek_by_key("keypair", want["key_name"]) if want["key_name"] else None
    return {keypair.name: keypair.want["public_key"]} if keypair else {}


def build_guest(host: LocalHost, document: Document) -> Guest:
    """Return the data for the server's config drive and metadata service. If the document contains no random seed, each
    call generates a new one, as in Nova's metadata service."""
    want, state = document.want, document.state
    usual = spec.arranged_disks(host, document, rescued=False)  # an unrescue does not write the drive again
    image = host.documents.get("image", want["image"]) if want["image"] else None
    seed = state.get("seed")
    return Guest(
        uuid=document.id, seed=bytes.fromhex(seed) if seed else secrets.token_bytes(512), image=want["image"],
        kernel=_part(host, image, "kernel"), ramdisk=_part(host, image, "ramdisk"), metadata=want["metadata"],
        user_data=want["user_data"],
        injected=tuple((file["path"], file["contents"]) for file in want.get("personality") or ()),
        nics=tuple(_nic(host, want, nic) for nic in want["networks"]), devices=tuple(_devices(host, document, usual)),
        dedicated_cpus=tuple(sorted(numa.pinned_cpus(server_hardware(want), want["flavor"]["vcpus"]))),
        mappings=_mappings(want, usual), admin_pass=want.get("admin_pass"), **_cloud_fields(host, document))


def write_drive(host: LocalHost, document: Document, name: str, flushed: bool = True) -> None:
    """Write the config drive, which contains the admin password, to the file *name* in the server's folder. Afterwards,
    move the password in *document* to the state field ``admin_pass``, from which the guest agent gets it later.
    *flushed*: whether to flush the file to storage."""
    path = server_folder(host, document.id) / name
    vfat = disk_layout.config_drive_filesystem(host, document) == "vfat"
    make = host.hypervisor.make_vfat if vfat else host.hypervisor.make_iso
    make(path, configdrive.LABEL, configdrive.config_drive_files(build_guest(host, document)), flushed)
    host.hypervisor.permit([path])
    admin_password.note_admin_password(document)


def _cloud_fields(host: LocalHost, document: Document) -> dict[str, Any]:
    """Return the keyword arguments of ``Guest`` whose values come from the control plane (project, flavor, hostname,
    keys, …). For a server that does not belong to a control plane, the values come from this host."""
    want, cloud_data = document.want, document.want.get("guest_data")
    vendor = want.get("vendor_data") or {}
    static = _vendor_data(host) if cloud_data is None else vendor.get("static") or {}
    fields = {"vendor_data": static, "vendor_data2": vendor.get("dynamic") or {}}
    if cloud_data is None:
        return {**fields, "name": want["name"], "hostname": guest_data.guest_hostname(want["name"]),
                "flavor": want["flavor"].get("name", ""), "availability_zone": want["availability_zone"] or "",
                "keys": guest_keys(host, document)}
    return {**fields, **{name: cloud_data[name] for name in ("name", "hostname", "launch_index", "flavor")},
            "project": cloud_data["project_id"], "reservation": cloud_data["reservation_id"],
            "availability_zone": cloud_data["availability_zone"], "keys": guest_keys(host, document),
            "security_groups": tuple(cloud_data["security_groups"]), "public_ipv4": cloud_data.get("public_ipv4") or ""}


def guest_keys(host: LocalHost, document: Document) -> tuple[Key, ...]:
    """Return the public SSH keys of the server, under the names that the control plane or this host gives them."""
    cloud_data = document.want.get("guest_data")
    if cloud_data is not None:
        return tuple(Key(**key) for key in cloud_data["keys"])
    keypairs = document.state.get("keys", _key(host, document.want))
    return tuple(Key(name, data) for name, data in keypairs.items())


def _vendor_data(host: LocalHost) -> dict[str, Any]:
    """Return the vendor data from the operator's file ``vendordata_jsonfile_path``; empty if the file is not set or
    cannot be read, as in Nova."""
    path = host.settings.vendordata_jsonfile_path
    try:
        return vendordata.read_vendor_data(path) if path else {}
    except ValueError as error:
        log.warning("guests are told no vendor data: %s", error)
        return {}


def _part(host: LocalHost, image: Document | None, name: str) -> str | None:
    """Return the uuid of the kernel or ramdisk image that *image* refers to; ``None`` if there is none. *name*:
    ``kernel`` or ``ramdisk``."""
    reference = image.want.get(name) if image else None
    part = host.documents.peek_by_key("image", reference) if reference else None
    return part.id if part else None


def _nic(host: LocalHost, want: Fields, nic: Fields) -> GuestNic:
    plugged, nic_data = spec.domain_nic(host, nic), nic.get("told") or {}
    network_document = host.documents.peek_by_key("network", nic["network"]) if nic.get("network") else None
    return GuestNic(
        mac=pci.mac_in_guest(want, nic), network=(
            nic_data.get("network_id") or plugged.network or plugged.bridge or nic.get("physical_network", "")),
        port=nic_data.get("port_id") or plugged.port, type=_link_type(nic),
        mtu=nic_data.get("mtu") or (network_document.want["mtu"] if network_document else 0),
        **_addressed(host, nic, nic_data),
        vlans=tuple((vlan["segmentation_id"], GuestNic(
            mac=vlan["mac"], network=vlan["network_id"], port=vlan["port_id"], mtu=vlan.get("mtu", 0),
            **_addressed(host, {**vlan, "told": vlan}, vlan))) for vlan in nic_data.get("vlans", ())))


def _addressed(host: LocalHost, nic: Fields, nic_data: Fields) -> dict[str, Any]:
    """Return addresses, name servers and routes of *nic* as keyword arguments of ``GuestNic``. *nic*: a NIC, or a VLAN
    on a NIC. *nic_data*: the control plane's data about the NIC."""
    return {"address": addresses.for_config_drive(host, nic), "dns": tuple(nic_data.get("dns_nameservers", ())),
            "routes": tuple((route["destination"], route["nexthop"]) for route in nic_data.get("host_routes", ())),
            "ipv6": tuple(_address6(ipv6) for ipv6 in nic_data.get("ipv6", ()))}


def _link_type(nic: Fields) -> str:
    """Return the link type of the NIC for network_data.json, as in Nova: ``hw_veb`` for an SR-IOV virtual function,
    ``phy`` for a whole card, ``ovs`` for an OVN port, otherwise ``bridge``."""
    if nic.get("physical_network") and not nic.get("port"):
        return "phy" if nic.get("vnic_type") == WHOLE else "hw_veb"
    return "ovs" if nic.get("port") else "bridge"


def _address6(ipv6: Fields) -> NicAddress6:
    address, _slash, prefix = ipv6["address"].partition("/")
    return NicAddress6(address, int(prefix), ipv6.get("mode"), ipv6.get("gateway"),
                       tuple(ipv6.get("dns_nameservers", ())))


def _devices(host: LocalHost, document: Document, disks: tuple[Disk, ...]) -> Iterator[Device]:
    """Yield the devices for the guest's metadata: shares, then tagged NICs and tagged *disks*. Bus and address are
    those of the running libvirt domain; if it is not running, those of the defined domain."""
    for share in document.state.get("shares", ()):
        yield Device("share", "none", (share["tag"],), share_id=share.get("share_id") or share["share"])
    nics = [nic for nic in document.want["networks"] if nic.get("tag")]
    tagged = [disk for disk in disks if disk.tag]
    if not nics and not tagged:
        return
    places = _guest_addresses(host.hypervisor.running(document.id) or host.hypervisor.domain(document.id))
    for nic in nics:
        bus, address = places.get(nic["mac"], ("pci", "none"))
        yield Device("nic", bus, (nic["tag"],), address, mac=pci.mac_in_guest(document.want, nic),
                     trusted=bool(nic.get("trusted")))
    for disk in tagged:
        bus, address = places.get(disk.target, ("pci" if disk.bus == "virtio" else disk.bus, "none"))
        yield Device("disk", bus, (str(disk.tag),), address, serial=disk.serial and disk.serial[:20],
                     path=f"/dev/{disk.target}")


def _guest_addresses(domain: Domain | None) -> dict[str, tuple[str, str]]:
    """Return ``{MAC or device name: (bus, address)}`` of the NICs and disks of the domain."""
    if domain is None:
        return {}
    return {**{nic.mac: nic.place for nic in domain.nics if nic.place},
            **{disk.target: disk.place for disk in domain.disks if disk.place}}


def _mappings(want: Fields, disks: tuple[Disk, ...]) -> dict[str, str]:
    """Return the EC2 block device mapping of the server's *disks* as ``{name: device}``, such as ``{"root":
    "/dev/vda"}``, numbered as in Nova. The config drive is not included."""
    mappings = {"ami": disks[0].target, "root": f"/dev/{disks[0].target}"}
    names = {disk.file: disk.label for disk in spec.blank_disks_of_server(want)}
    other_targets = sorted((disk.target for disk in disks[1:] if disk.device == "disk" and disk.path.name not in (
        *names, configdrive.FILE)), key=device_order)
    mappings |= {names[disk.path.name]: f"/dev/{disk.target}" for disk in disks[1:] if disk.path.name in names}
    return {**mappings, **{f"ebs{at}": f"/dev/{target}" for at, target in enumerate(other_targets)}}
