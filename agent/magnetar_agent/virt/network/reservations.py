# SPDX-License-Identifier: GPL-3.0-or-later
"""DHCP reservations of addresses for MACs, in a file for a network's dnsmasq.

virNetworkUpdate of a running network replaces all its firewall rules: about half a second for one address, one server
after the other. dnsmasq reads a file of ``dhcp-hostsfile`` again when it gets SIGHUP, which takes no time. The file is
in the folder of libvirt's own files, because AppArmor lets dnsmasq read there; libvirt never changes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path
from xml.etree import ElementTree as ET

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.reconcile.documents import write_atomically

log = logging.getLogger(__name__)
FOLDER, RUN = Path("/var/lib/libvirt/dnsmasq"), Path("/run/libvirt/network")
#: The dnsmasq option added to libvirt's (https://libvirt.org/formatnetwork.html, "Network namespaces").
OPTION = "{http://libvirt.org/schemas/network/dnsmasq/1.0}options/{http://libvirt.org/schemas/network/dnsmasq/1.0}option"


def reservations_path(network: str) -> Path:
    """Return the path of the file with the DHCP reservations of the libvirt network *network*."""
    return FOLDER / f"{network}.magnetar"


def reads_reservations(network: str, xml: str) -> bool:
    """Return whether the dnsmasq of *network* reads the file with DHCP reservations. Networks from earlier releases do
    not. *xml*: the network's XML."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    return any(option.get("value") == f"dhcp-hostsfile={reservations_path(network)}"
               for option in root.iterfind(OPTION))


def read_reservations(network: str) -> dict[str, str]:
    """Return the DHCP reservations ``{MAC: address}`` in the file of the libvirt network *network*; empty if there is
    no file."""
    try:
        lines = reservations_path(network).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {mac: address for mac, _comma, address in (line.partition(",") for line in lines)}


def write_reservations(network: str, hosts: dict[str, str]) -> None:
    """Write *hosts*, the DHCP reservations ``{MAC: address}``, to the file of the libvirt network *network*."""
    make_state_folder(FOLDER, 0o755)
    write_atomically(reservations_path(network), "".join(f"{mac},{address}\n" for mac,
                                                         address in hosts.items()).encode(), 0o644)


def remove_reservations(network: str) -> None:
    """Remove the file with the DHCP reservations of the libvirt network *network*."""
    with contextlib.suppress(OSError):  # then it could not be written either
        reservations_path(network).unlink()


def signal_dnsmasq(network: str) -> None:
    """Make the dnsmasq of the libvirt network *network* read its DHCP reservations again (SIGHUP)."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int((RUN / f"{network}.pid").read_text())
        if Path(f"/proc/{pid}/comm").read_text().strip() == "dnsmasq":
            os.kill(pid, signal.SIGHUP)
            return
    log.warning("network %s: its dnsmasq is not there, so that DHCP answers nobody: restart the network", network)
