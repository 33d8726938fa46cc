# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host check``: the agent's report on its host, as a list of features that work or are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_core.hardware import needs
from magnetar_core.http.client import Client

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

#: Features that a caller can require, and those that every host needs.
NAMES = ("libvirt", "kvm", "local_disks", "port_security", "metadata_service", "ovn", "uefi", "secure_boot", "tpm",
         "injection")
ALWAYS = ("libvirt", "local_disks", "port_security")
#: Features of guests, each with the hardware that asks for it.
HARDWARE: Mapping[str, Mapping[str, str]] = {
    "uefi": {"firmware": "uefi"}, "secure_boot": {"secure_boot": "required"},
    "tpm": {"tpm_version": "2.0"}}


def print_host_check(socket: str, needed: Collection[str]) -> int:
    """Print for each feature of the host whether it works, as reported by the agent at the unix *socket*. Return the
    exit status: 1 if a required feature does not work, otherwise 0. Required are: always libvirt, local disks and port
    security; injection and the shared folder of disks if the settings use them; and the features in *needed*."""
    with Client(f"unix://{socket}") as client:
        host = client.get("host")
    bad = False
    for name, fine, remark in host_findings(host):
        required = name in needed or name in (*ALWAYS, "disk_folder") or (
                name == "injection" and host["injection"] is not None)
        bad |= required and not fine
        print(f"{name}: {'ok' if fine else 'LACKS' if required else 'no'}{remark and f' - {remark}'}")
    return int(bad)


def host_findings(host: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Yield (name, works, explanation) for each feature of the host. *host*: the fields of the API's resource ``host``.
    """
    connected = bool(host["connected"])
    yield "libvirt", connected, (f"{host['libvirt_version']}, QEMU {host['hypervisor_version']}" if connected else
                                 "libvirt does not answer. Start libvirtd, and look at its log.")
    kvm = host["kvm"] or {"usable": False, "reason": "nobody knows while libvirt does not answer"}
    yield "kvm", bool(kvm["usable"]), kvm["reason"]
    disks = host["local_disks"]
    pool = f" in the pool {disks['pool']}" if disks["format"] in ("lvm", "rbd") else ""
    yield "local_disks", not disks["reason"], disks["reason"] or (
        f"root_format {disks['format']}{pool}, {host['disk_gb_free']} of {host['disk_gb']} GiB free")
    if folder := host.get("disk_folder"):
        yield "disk_folder", not folder["reason"], folder["reason"] or f"{folder['path']}, {folder['id']}"
    if ceph := host.get("disk_pool"):
        yield "disk_pool", not ceph["reason"], ceph["reason"] or f"{ceph['pool']}, {ceph['id']}"
    for target in (pool for pool in host["pools"] or () if pool["kind"] == "backup"):
        yield "backups", target["state"] == "up", target["reason"] or str(target["identity"]).partition(":")[2]
    for name in ("port_security", "metadata_service"):
        reason = host[name]["reason"]
        yield name, not reason, reason
    ovn = host["ovn"]
    yield "ovn", not ovn["reason"], ovn["reason"] or f"{ovn['bridge']}, datapath {ovn['datapath']}, {ovn['chassis']}"
    for name, hardware in HARDWARE.items():
        lacks = "; ".join(lack for _field, lack in needs.missing_hardware(hardware, host))
        yield name, not lacks, lacks and f"the host lacks {lacks}. Install it and restart libvirtd"
    injection = host["injection"]
    yield ("injection", injection is not None and not injection["reason"], "off: inject_partition is -2"
           if injection is None else injection["reason"] or f"inject_partition {injection['partition']}")
