# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are devices of the host, virtual functions (SR-IOV) or whole cards, and the checks of their fields. ``pci``
chooses the device of a NIC.

These NICs send and receive past the host, so the host cannot filter, limit or count their traffic. The card itself
keeps a virtual function to its MAC and VLAN, which libvirt sets; a whole card is not limited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.servers.hardware import pci
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import MEMORY
from magnetar_core.hardware.pci import BY_OVN, DIRECT, MACVTAP, VDPA, WHOLE, describe_devices

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

#: Fields of a virtual function's highest send rate, and of its guaranteed one.
RATES = ("max_tx_rate", "min_tx_rate")


def check_function_nics(desired: Fields) -> None:
    """Raise ``InvalidField`` if the server *desired* has NICs that are PCI devices of the host, combined with a setting
    that such NICs do not support."""
    functions = pci.device_nics(desired)
    for at, nic in enumerate(desired["networks"]):
        field = f"networks[{at}]"
        if rate := next((name for name in RATES if nic.get(name)), None):
            _check_rate(nic, f"{field}.{rate}", nic[rate])
        if nic not in functions:
            if nic.get("vlan"):
                raise InvalidField(f"{field}.vlan", "is for NICs of a physical_network", nic["vlan"])
        elif nic.get("vnic_type") in BY_OVN:
            _check_by_ovn(nic, field)
        else:
            _check_past_host(nic, field)
    if functions and (desired.get("hardware") or {}).get(MEMORY):
        raise InvalidField(f"hardware.{MEMORY}", "must not be set for a server with a device of a physical network, "
                           "such as a virtual function: devices of the host cannot read encrypted memory; leave one of "
                           "the two out", True)
    limit = next((name for name in desired.get("hardware") or () if name.startswith("vif_")), None)
    if functions and limit:
        raise InvalidField(f"hardware.{limit}", "limits NICs of the host, and the server has a device of a physical "
                           "network, which the host cannot limit; leave one of the two out", desired["hardware"][limit])


def is_forwarded(nic: Fields) -> bool:
    """Return whether *nic* is both a PCI device of the host and an OVN port: its card forwards the packets as
    configured by OVN (hardware offload)."""
    return bool(nic.get("port") and nic.get("physical_network") and nic.get("vnic_type") in BY_OVN
                and not nic.get("network") and not nic.get("bridge"))


def _check_rate(nic: Fields, field: str, rate: int) -> None:
    if not nic.get("physical_network") or nic.get("vnic_type", DIRECT) not in (DIRECT, MACVTAP):
        raise InvalidField(field, f"is for virtual functions of a physical_network (vnic_type {DIRECT} or {MACVTAP}), "
                                  "which their card limits", rate)
    most, least = (nic.get(name) or 0 for name in RATES)
    if most and least > most:
        raise InvalidField(field, f"must not be less than min_tx_rate, which is {least}", most)


def _check_past_host(nic: Fields, field: str) -> None:
    if nic.get("port_security", True):
        raise InvalidField(f"{field}.port_security", "must be false for a device of a physical_network: its frames "
                           "pass the host by, which cannot filter them", True)
    if nic.get("allowed_addresses"):
        raise InvalidField(f"{field}.allowed_addresses", "must be left out for a device of a physical_network, which "
                           "the host does not filter", nic["allowed_addresses"])
    if nic.get("trusted") and nic.get("vnic_type", DIRECT) != DIRECT:
        raise InvalidField(f"{field}.trusted", f"must be false but for vnic_type {DIRECT}: a card trusts virtual "
                           "functions that guests have themselves", True)
    if nic.get("vlan") and nic.get("vnic_type") == WHOLE:
        raise InvalidField(f"{field}.vlan", f"must be left out for vnic_type {WHOLE}: nothing keeps a whole card to a "
                           "VLAN, and its guest tags frames itself", nic["vlan"])


def _check_by_ovn(nic: Fields, field: str) -> None:
    way = nic["vnic_type"]
    if not nic.get("port"):
        raise InvalidField(f"{field}.port", f"must name a port of OVN for vnic_type {way}: the card forwards as OVN "
                                            "says")
    if nic.get("vlan") or nic.get("trusted"):
        name = "vlan" if nic.get("vlan") else "trusted"
        raise InvalidField(f"{field}.{name}", f"must be left out for vnic_type {way}, which OVN looks after",
                           nic[name])
    if way == VDPA and nic["model"] != "virtio":
        raise InvalidField(f"{field}.model", f"must be virtio for vnic_type {VDPA}", nic["model"])


def check_type(nic: Fields, former: Fields | None, field: str) -> None:
    """Check the NIC fields ``vnic_type``, ``card`` and ``trusted``. Raises ``InvalidField`` if *nic* has one of them
    but no physical network, and ``Conflict`` if one differs from *former*, the existing NIC (``None`` for a new
    NIC)."""
    for name, usual in (("vnic_type", DIRECT), ("trusted", False), ("card", "")):
        new, old = nic.get(name) or usual, (former or nic).get(name) or usual
        if nic.get(name) and not nic.get("physical_network"):
            raise InvalidField(f"{field}.{name}", "is for NICs of a physical_network", nic[name])
        if new != old and (former or nic).get("physical_network"):
            raise Conflict(f"{field}.{name} cannot change from {old} to {new}: the host has to get the device back "
                           "first. Remove the NIC, and add it again with the other one.", field=f"{field}.{name}")


def check_device_network(host: LocalHost, devices: str, field: str) -> None:
    """Raise ``Conflict`` if the host has no PCI device for NICs of the physical network or card *devices* (a result of
    ``nic_devices_name`` in ``hardware.pci``)."""
    host_devices = pci.assignable_devices(host)
    networks = {name for device in host_devices for name in device.nic_names}
    if devices not in networks and not any(devices in device.card_nic_names for device in host_devices):
        has = ", ".join(map(describe_devices, sorted(networks))) or "none"
        raise Conflict(
            f"{field}.physical_network: host {host.name} has no {describe_devices(devices)}; of such devices it has "
                       f"{has}. Name their physical_network in its agent's setting pci_device_spec, or choose another "
                       "host. A card is there as a whole while it has no virtual functions.",
                       field=f"{field}.physical_network")
