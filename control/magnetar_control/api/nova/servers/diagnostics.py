# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics: what a server's guest has used, as its host's agent counts it. Until 2.47 it has the form of Nova's
libvirt driver, since then the one of all drivers, where null is what nobody counts (CPUs in percent, rates of NICs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import ApiOperation
from magnetar_control.compute.servers.server_actions import diagnostics

#: Counters in the words of the new form and of the agent; ``None``: nobody counts it.
NIC = {word: word for word in ("rx_octets", "rx_errors", "rx_drop", "rx_packets", "tx_octets", "tx_errors", "tx_drop",
                               "tx_packets")} | {"mac_address": "mac", "rx_rate": None, "tx_rate": None}
DISK = {word: word for word in ("read_bytes", "read_requests", "write_bytes", "write_requests")} | {
    "errors_count": "errors"}
#: The same of the old form.
OLD_NIC = {"rx": "rx_octets", "tx": "tx_octets", **{
    word: word for word in ("rx_errors", "rx_drop", "rx_packets", "tx_errors", "tx_drop", "tx_packets")}}
OLD_DISK = {"read": "read_bytes", "read_req": "read_requests", "write": "write_bytes", "write_req": "write_requests"}
#: What libvirt says, and so Nova's old form, where errors are not counted.
UNCOUNTED = -1
KIB = 1024
Told = Mapping[str, Any]


def _new(told: Told) -> dict[str, Any]:
    cpus, nics, disks = ([dict(one) for one in told[name]] for name in ("cpus", "nics", "disks"))
    return {
        "state": told["power_state"], "driver": "libvirt", "hypervisor": told["virt_type"], "hypervisor_os": "linux",
        "uptime": told["uptime"], "config_drive": told["config_drive"],
        "num_cpus": len(cpus), "num_nics": len(nics), "num_disks": len(disks),
        "cpu_details": [{"id": cpu["id"], "time": cpu["time"], "utilisation": None} for cpu in cpus],
        "nic_details": [_counters(nic, NIC) for nic in nics], "disk_details": [_counters(disk, DISK) for disk in disks],
        "memory_details": _memory(told["memory"])}


def _counters(device: Told, words: Mapping[str, str | None]) -> dict[str, Any]:
    return {word: device[theirs] if theirs else None for word, theirs in words.items()}


def _memory(told: Told) -> dict[str, int | None]:
    """In MiB. What is used is for the guest to tell (its balloon driver); of one that does not, as Nova has it, what it
    was given."""
    used, given = told.get("actual"), told.get("available")
    free = told.get("usable", told.get("unused"))
    if given is not None and free is not None:
        used = given - free
    return {name: None if kib is None else kib // KIB
            for name, kib in (("maximum", told.get("maximum")), ("used", used))}


def _old(told: Told) -> Iterator[tuple[str, int]]:
    """A name for each counter of each device, and memory in KiB; what is not known is left out."""
    yield from _known({f"cpu{cpu['id']}_time": cpu["time"] for cpu in told["cpus"]})
    for disk in told["disks"]:
        yield from _known({f"{disk['device']}_{word}": disk[theirs] for word, theirs in OLD_DISK.items()})
        yield f"{disk['device']}_errors", UNCOUNTED if disk["errors"] is None else disk["errors"]
    for nic in told["nics"]:
        yield from _known({f"{nic['device']}_{word}": nic[theirs] for word, theirs in OLD_NIC.items()})
    memory = told["memory"]
    yield from _known({"memory": memory.get("maximum")})
    yield from _known({f"memory-{word}": value for word, value in memory.items() if word != "maximum"})


def _known(counters: Mapping[str, int | None]) -> Iterator[tuple[str, int]]:
    return ((name, value) for name, value in counters.items() if value is not None)


OPERATIONS = (
    ApiOperation(method="GET", path="/servers/{server_id}/diagnostics", name="servers.diagnostics.list", strict=102,
                 use=diagnostics, target="server", waits=True,
                 shown=lambda call, told: _new(told) if call.at(Gate.DIAGNOSTICS_FORM) else dict(_old(told))),
)
