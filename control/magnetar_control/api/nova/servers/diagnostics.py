# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics: the resource usage of a server's guest, as the agent of its host counts it.

Until 2.47 it has the form of Nova's libvirt driver, since then the common form of all drivers, with null for values
that are not counted (CPUs in percent, rates of NICs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import ApiOperation
from magnetar_control.compute.servers.server_actions import show_diagnostics

#: Counters of the form since 2.48 to the agent's; ``None``: not counted.
NIC = {counter: counter for counter in ("rx_octets", "rx_errors", "rx_drop", "rx_packets", "tx_octets", "tx_errors",
                                        "tx_drop",
                                        "tx_packets")} | {"mac_address": "mac", "rx_rate": None, "tx_rate": None}
DISK = {counter: counter for counter in ("read_bytes", "read_requests", "write_bytes", "write_requests")} | {
    "errors_count": "errors"}
#: Counters of the form until 2.47 to the agent's.
OLD_NIC = {"rx": "rx_octets", "tx": "tx_octets", **{
    counter: counter for counter in ("rx_errors", "rx_drop", "rx_packets", "tx_errors", "tx_drop", "tx_packets")}}
OLD_DISK = {"read": "read_bytes", "read_req": "read_requests", "write": "write_bytes", "write_req": "write_requests"}
#: The value for errors that are not counted, as libvirt reports it and Nova's old form shows it.
UNCOUNTED = -1
KIB = 1024
GuestUsage = Mapping[str, Any]


def _new(usage: GuestUsage) -> dict[str, Any]:
    cpus, nics, disks = ([dict(device) for device in usage[name]] for name in ("cpus", "nics", "disks"))
    return {
        "state": usage["power_state"], "driver": "libvirt", "hypervisor": usage["virt_type"], "hypervisor_os": "linux",
        "uptime": usage["uptime"], "config_drive": usage["config_drive"],
        "num_cpus": len(cpus), "num_nics": len(nics), "num_disks": len(disks),
        "cpu_details": [{"id": cpu["id"], "time": cpu["time"], "utilisation": None} for cpu in cpus],
        "nic_details": [_counters(nic, NIC) for nic in nics], "disk_details": [_counters(disk, DISK) for disk in disks],
        "memory_details": _memory(usage["memory"])}


def _counters(device: GuestUsage, words: Mapping[str, str | None]) -> dict[str, Any]:
    return {counter: device[theirs] if theirs else None for counter, theirs in words.items()}


def _memory(memory: GuestUsage) -> dict[str, int | None]:
    """Return the guest's memory for the answer, in MiB. If the guest's balloon driver does not report the used memory,
    the assigned memory is shown as used, as in Nova."""
    used, available = memory.get("actual"), memory.get("available")
    free = memory.get("usable", memory.get("unused"))
    if available is not None and free is not None:
        used = available - free
    return {name: None if kib is None else kib // KIB
            for name, kib in (("maximum", memory.get("maximum")), ("used", used))}


def _old(usage: GuestUsage) -> Iterator[tuple[str, int]]:
    """Yield the (name, value) pairs of *usage* in the format of versions before 2.48: each known counter of each
    device, and the memory in KiB."""
    yield from _known_counters({f"cpu{cpu['id']}_time": cpu["time"] for cpu in usage["cpus"]})
    for disk in usage["disks"]:
        yield from _known_counters({f"{disk['device']}_{counter}": disk[theirs] for counter,
                                    theirs in OLD_DISK.items()})
        yield f"{disk['device']}_errors", UNCOUNTED if disk["errors"] is None else disk["errors"]
    for nic in usage["nics"]:
        yield from _known_counters({f"{nic['device']}_{counter}": nic[theirs] for counter, theirs in OLD_NIC.items()})
    memory = usage["memory"]
    yield from _known_counters({"memory": memory.get("maximum")})
    yield from _known_counters({f"memory-{counter}": value for counter,
                                value in memory.items() if counter != "maximum"})


def _known_counters(counters: Mapping[str, int | None]) -> Iterator[tuple[str, int]]:
    return ((name, value) for name, value in counters.items() if value is not None)


OPERATIONS = (
    ApiOperation(method="GET", path="/servers/{server_id}/diagnostics", name="servers.diagnostics.list", strict=102,
                 use=show_diagnostics, target="server", waits=True,
                 shown=lambda call, usage: _new(usage) if call.at(ApiChange.DIAGNOSTICS_FORM) else dict(_old(usage))),
)
