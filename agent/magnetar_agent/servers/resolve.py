# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete what is wanted of a server: resolve references to uuids, draw MACs, refuse what cannot be done.

What is drawn is kept in the document, so every later step can be repeated.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers.disks import block_devices, encryption, image_links, pmem, root_pool
from magnetar_agent.servers.hardware import encrypted_memory, hardware, mdevs, memory, pci, placement
from magnetar_agent.servers.nics import addresses, virtual_functions
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import DIRECT, REMOTE, kind_of, of_nic
from magnetar_core.kinds.flavor import completed
from magnetar_core.power import SHELVED
from magnetar_core.reconcile import is_uuid, missing
from magnetar_core.server_plan import root_volume

from . import GIB, rescue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")
#: What a NIC has that says nothing of it.
USUAL: Fields = {"port_security": True, "allowed_addresses": [], "security_groups": None, "vnic_type": DIRECT,
                 "trusted": False, "max_tx_rate": 0, "min_tx_rate": 0}
#: Network, bridge, port (of OVN) and devices (``pci.of_nic``) of a NIC; one of them is set.
Plug = tuple[str | None, str | None, str | None, str | None]


def complete(host: LocalHost, want: Fields, document: Document | None) -> Fields:
    """See ``Driver.complete``. Raises ``InvalidField`` naming the field, or ``Conflict`` for a MAC that is taken."""
    old = document.want if document else {}
    found = dict(want)
    if want.get("power") == SHELVED:
        raise InvalidField("power", "cannot be shelved on a single host, since it is the image service of a cloud that "
                                    "keeps the root disk; stop the server, or make an image of it (create_image)")
    if document is None and want.get("id"):
        _uuid_is_free(host, want["id"])
    found["flavor"] = _flavor(host, want["flavor"], old.get("flavor"))
    if found["flavor"] != old.get("flavor"):
        hardware.check_flavor(host, found["flavor"])
    image = _image(host, want.get("image"), document)
    found["image"] = image.id if image else want.get("image")
    if image and found["image"] != old.get("image"):
        _fits(image, found["flavor"])
        hardware.check_image(host, image)
        found["config_drive"] = want["config_drive"] or image.want["properties"].get("img_config_drive") == "mandatory"
    if "rescue" in found:  # a document of an older agent does not have it
        found["rescue"] = rescue.complete(host, found, document)
    found["root_format"] = _root_format(host, want["root_format"], old.get("root_format"))
    found["virt_type"] = _virt_type(host, want["virt_type"], old.get("virt_type"))
    hardware.complete(host, found, old, image, want["virt_type"])
    encryption.complete(host, found, old, want["root_format"], image)
    found[block_devices.FIELD] = block_devices.complete(host, found, document)
    id = document.id if document else want.get("id", "")
    if found["flavor"] != old.get("flavor"):
        hardware.check_sizes(host, found["flavor"], root_volume(found) is not None, found["root_format"])
        memory.check(host, found, id)
    placement.complete(host, found, old, id, pci.cells(host, found, id))
    mdevs.complete(host, found, old, id)
    pmem.complete(host, found, old, id)
    encrypted_memory.complete(host, found, old, id)
    found["key_name"] = _key(host, want.get("key_name"), old)
    found["networks"] = _networks(host, want["networks"], document)
    hardware.choose_nic_models(found, old)
    virtual_functions.check(found)
    pci.complete(host, found, old, id)
    return found


def _uuid_is_free(host: LocalHost, id: str) -> None:
    domain = host.hypervisor.domain(id)
    if domain is not None and not domain.owned:
        raise Conflict(f"The uuid {id} belongs to the libvirt domain {domain.name!r}, which Magnetar did not make and "
                       "does not touch. Use another uuid.", uuids=[id])


def _flavor(host: LocalHost, given: Any, old: Fields | None) -> Fields:
    """Sizes of a flavor, and its name when it has one."""
    if isinstance(given, dict):
        if old and given.items() <= old.items():
            return old
        whole = completed(given, old)
        sizes = {size: whole.get(size, 0) for size in SIZES}
        return {"name": given["name"], **sizes} if "name" in given else sizes
    found = host.documents.standing("flavor", given)
    if found is None:
        if old and given == old.get("name"):
            return old
        missing(InvalidField("flavor", f"must name a flavor of this host, and there is none called {given!r}; make it, "
                                       "or give its sizes"), "flavor", given)
        return {"name": given, **dict.fromkeys(SIZES, 0)}
    return {"name": found.name, **{size: found.want[size] for size in SIZES}}


def _image(host: LocalHost, given: str | None, document: Document | None) -> Document | None:
    """The image's document; ``None`` without one, or when the server has it already and the image has gone since."""
    if given is None:
        return None
    if document and given == document.want.get("image"):
        return host.documents.get("image", given)
    if document and given == document.state.get("image_name") and host.documents.standing("image", given) is None:
        return host.documents.get("image", document.want["image"]) or _gone(document)
    return image_links.bootable_image(host, given)


def _gone(document: Document) -> Document:
    """A stand-in for an image that was removed after the server was made: only its uuid is needed."""
    image = document.copy()
    image.id = document.want["image"]
    return image


def _fits(image: Document, flavor: Fields) -> None:
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


def _key(host: LocalHost, given: str | None, old: Fields) -> str | None:
    if given is None or given == old.get("key_name"):
        return given
    found = host.documents.standing("keypair", given)
    if found is None:
        missing(InvalidField("key_name", f"must name a keypair of this host, and there is none called {given!r}; make "
                                         "it first"), "keypair", given)
        return given
    return found.name


def _root_format(host: LocalHost, given: str, old: str | None) -> str:
    """``auto`` keeps what the server has, else takes what the settings say."""
    found = str(old or host.settings.root_format) if given == "auto" else given
    if found in root_pool.WHAT and old is None:
        root_pool.check_host(host, "root_format", found)
    return found


def _virt_type(host: LocalHost, given: str, old: str | None) -> str:
    """kvm or qemu; ``auto`` keeps what the server has, else takes the best that works here."""
    if given == "auto":
        asked = host.settings.virt_type if host.settings.virt_type != "auto" else None
        return old or asked or ("kvm" if host.hypervisor.kvm()["usable"] else "qemu")
    if given == "kvm" and given != old:
        kvm = host.hypervisor.kvm()
        if not kvm["usable"]:
            raise InvalidField("virt_type", f"cannot be kvm on this host: {kvm['reason']}; use qemu or auto")
    return given


def _networks(host: LocalHost, given: list[Fields], document: Document | None) -> list[Fields]:
    """NICs with a MAC each: given, kept from before, or drawn."""
    old = list(document.want["networks"]) if document else []
    found: list[Fields] = []
    for field, nic, kept in _matched(host, given, old):
        if nic.get("port"):
            _check_port(host, nic, field, found, document)
        virtual_functions.check_type(nic, kept, field)
        if nic.get("security_groups") is not None and not nic.get("port_security", True):
            raise InvalidField(f"{field}.security_groups", "need port_security, without which nothing is filtered")
        mac = nic.get("mac") or (kept["mac"] if kept else _draw_mac(host, {f["mac"] for f in found}))
        other = None if kept else mac_owner(host, mac, document)  # what is kept was held against others when it came
        if other:
            raise Conflict(f"{field}.mac: {mac} belongs to server {other.name!r}. Leave it out to have one drawn.",
                           field=f"{field}.mac", uuids=[other.id])
        if mac in {f["mac"] for f in found}:
            raise InvalidField(f"{field}.mac", "must differ from the other NICs'", mac)
        found.append(_plain({"model": "virtio", **nic, "mac": mac}))
    addresses.complete(host, found, old, document)
    return found


def _plain(nic: Fields) -> Fields:
    """Without what a NIC is when nothing is said of it."""
    return {name: value for name, value in nic.items() if name not in USUAL or value != USUAL[name]}


def _matched(host: LocalHost, given: list[Fields], old: list[Fields]) -> Iterator[tuple[str, Fields, Fields | None]]:
    """The name, the wish and the NIC from before (``None``: it is a new one) of each NIC."""
    keeping = list(old)
    for at, nic in enumerate(given):
        field = f"networks[{at}]"
        asked = plug(nic, field)
        kept = next((k for k in keeping if _same(nic, k, asked)), None)
        if kept:
            keeping.remove(kept)
        elif not any(asked == plug(o, field) for o in old):
            check_plug(host, asked, field)
        yield field, nic, kept


def macs(server: Document) -> list[str]:
    """Those of a server's NICs."""
    return [nic["mac"] for nic in server.want["networks"]]


def mac_owner(host: LocalHost, mac: str, document: Document | None = None) -> Document | None:
    """The server, other than that of *document*, that has the MAC."""
    found = host.documents.having("server", "mac", mac)
    return next((one for one in found if document is None or one.id != document.id), None)


def ports(server: Document) -> list[str]:
    """The ports of OVN of a server's NICs."""
    return [nic["port"] for nic in server.want["networks"] if nic.get("port")]


def port_owner(host: LocalHost, port: str | None, document: Document | None = None) -> Document | None:
    """The server, other than that of *document*, that has a NIC at the port."""
    found = host.documents.having("server", "port", port) if port else ()
    return next((one for one in found if document is None or one.id != document.id), None)


def _check_port(host: LocalHost, nic: Fields, field: str, before: list[Fields], document: Document | None) -> None:
    """Raise unless the port has just this NIC, and OVN is left to filter it."""
    if not is_uuid(nic["port"]):
        raise InvalidField(f"{field}.port", "must be the uuid by which OVN knows the port; names of ports are for a "
                                            "cloud", nic["port"])
    for name in ("port_security", "allowed_addresses", "security_groups"):
        if nic.get(name, USUAL[name]) != USUAL[name]:
            raise InvalidField(f"{field}.{name}", "is OVN's where the NIC names a port; set port security, "
                                                  "addresses and groups of the logical switch port there", nic[name])
    if any(one.get("port") == nic["port"] for one in before):
        raise InvalidField(f"{field}.port", "must differ from the other NICs'", nic["port"])
    if other := port_owner(host, nic["port"], document):
        raise Conflict(f"{field}.port: {nic['port']} belongs to server {other.name!r}. Name another port.",
                       field=f"{field}.port", uuids=[other.id])


def plug(nic: Fields, field: str) -> Plug:
    """Where the NIC is plugged in. Raises ``InvalidField`` unless it is one place."""
    devices = of_nic(nic) if nic.get("physical_network") else None
    found = (nic.get("network"), nic.get("bridge"), nic.get("port"), devices)
    if sum(one is not None for one in found) != 1 and not virtual_functions.is_forwarded(nic):
        raise InvalidField(field, "must name either a network, a bridge, a port or a physical network")
    return found


def _same(nic: Fields, old: Fields, asked: Plug) -> bool:
    """Whether *old* is the NIC that *nic* asks for."""
    if nic.get("mac"):
        return bool(nic["mac"] == old["mac"])
    return asked == plug(old, "networks")


def check_plug(host: LocalHost, asked: Plug, field: str) -> None:
    """Raise unless this host has what the NIC is to be plugged into."""
    network, bridge, port, devices = asked
    if devices is not None:
        virtual_functions.check_network(host, devices, field)
    if devices is not None and (port is None or kind_of(devices) == REMOTE):  # whose OVN is the card's
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
            there = ", ".join(sorted(bridges)) or "none"
            raise InvalidField(f"{field}.bridge", "must be a bridge of this host, and there is none called "
                                                  f"{bridge!r}; there are {there}")
        return
    assert network is not None
    known = host.documents.look_for("network", network)
    if known.deleting if known else network not in host.hypervisor.networks():
        missing(InvalidField(f"{field}.network", f"must name a network, and there is none called {network!r}; make it "
                                                 "with the network module, or name a bridge"), "network", network)


def _draw_mac(host: LocalHost, drawn: set[str]) -> str:
    """A MAC of QEMU's range that no server here has, and that is not among those *drawn*."""
    while True:
        mac = "52:54:00:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))
        if mac not in drawn and not mac_owner(host, mac):
            return mac
