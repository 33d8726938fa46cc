# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses that DHCP keeps for MACs, in a file beside those that libvirt writes for a network's dnsmasq.

virNetworkUpdate of a running network replaces all its firewall rules: some half a second for one address, one server
after the other. dnsmasq reads a file of ``dhcp-hostsfile`` again when it gets SIGHUP, which costs nothing. The file
stands where libvirt's own do, as that is where AppArmor lets dnsmasq read; libvirt never touches it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path
from xml.etree import ElementTree as ET

from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.reconcile.documents import write_atomically

log = logging.getLogger(__name__)
FOLDER, RUN = Path("/var/lib/libvirt/dnsmasq"), Path("/run/libvirt/network")
#: What dnsmasq is given besides what libvirt writes (https://libvirt.org/formatnetwork.html, "Network namespaces").
OPTION = "{http://libvirt.org/schemas/network/dnsmasq/1.0}options/{http://libvirt.org/schemas/network/dnsmasq/1.0}option"


def path(network: str) -> Path:
    """The file of a network."""
    return FOLDER / f"{network}.magnetar"


def used(network: str, xml: str) -> bool:
    """Whether the network of this XML reads the file; one that an earlier release made does not."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    return any(one.get("value") == f"dhcp-hostsfile={path(network)}" for one in root.iterfind(OPTION))


def read(network: str) -> dict[str, str]:
    """Address by MAC."""
    try:
        lines = path(network).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {mac: address for mac, _comma, address in (line.partition(",") for line in lines)}


def write(network: str, hosts: dict[str, str]) -> None:
    """Keep these, and no others."""
    make_folder(FOLDER, 0o755)
    write_atomically(path(network), "".join(f"{mac},{address}\n" for mac, address in hosts.items()).encode(), 0o644)


def remove(network: str) -> None:
    """The network is gone."""
    with contextlib.suppress(OSError):  # it cannot have been written either
        path(network).unlink()


def tell(network: str) -> None:
    """Have the running network's dnsmasq read the file again. One that has died reads it when it is started."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int((RUN / f"{network}.pid").read_text())
        if Path(f"/proc/{pid}/comm").read_text().strip() == "dnsmasq":
            os.kill(pid, signal.SIGHUP)
            return
    log.warning("network %s: its dnsmasq is not there, so that DHCP answers nobody: restart the network", network)
