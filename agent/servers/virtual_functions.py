# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are virtual functions (SR-IOV): what a server may ask of them. Which one a NIC gets: ``pci``.

A virtual function sends and receives past the host, so that nothing of the host filters, limits or counts what it does;
the card itself keeps it to its MAC and VLAN, which libvirt sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.servers import pci
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import MEMORY

if TYPE_CHECKING:
    from magnetar_agent.documents import Fields
    from magnetar_agent.host import LocalHost


def check(found: Fields) -> None:
    """Raises ``InvalidField`` where a server with these fields asks for what no virtual function has."""
    functions = pci.functions(found)
    for at, nic in enumerate(found["networks"]):
        if nic not in functions:
            if nic.get("vlan"):
                raise InvalidField(f"networks[{at}].vlan", "is for NICs of a physical_network", nic["vlan"])
        elif nic.get("port_security", True):
            raise InvalidField(f"networks[{at}].port_security", "must be false for a virtual function of a "
                               "physical_network: its frames pass the host by, which cannot filter them", True)
        elif nic.get("allowed_addresses"):
            raise InvalidField(f"networks[{at}].allowed_addresses", "must be left out for a virtual function, which "
                               "the host does not filter", nic["allowed_addresses"])
    if functions and (found.get("hardware") or {}).get(MEMORY):
        raise InvalidField(f"hardware.{MEMORY}", "must not be set for a server with a virtual function of a physical "
                           "network: devices of the host cannot read encrypted memory; leave one of the two out", True)
    limit = next((name for name in found.get("hardware") or () if name.startswith("vif_")), None)
    if functions and limit:
        raise InvalidField(f"hardware.{limit}", "limits NICs of the host, and the server has a virtual function of a "
                           "physical network, which the host cannot limit; leave one of the two out",
                           found["hardware"][limit])


def check_network(host: LocalHost, network: str, field: str) -> None:
    """Raises ``Conflict`` where the host has no virtual functions of the physical *network*."""
    there = sorted({one.physical_network for one in pci.devices(host) if one.of_network})
    if network not in there:
        raise Conflict(f"{field}.physical_network: host {host.name} has no virtual functions of {network}; it has "
                       f"some of {', '.join(there) or 'none'}. Name their physical_network in its agent's setting "
                       "pci_device_spec, or choose another host.", field=f"{field}.physical_network")
