# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics: what a server's guest has, and what it does, as far as its host's agent tells. What it does not tell is
null: agents keep no counters of processors, disks and NICs."""

from __future__ import annotations

import string
from typing import Any

from magnetar_control.api.operation import Call, Operation
from magnetar_control.web import Fault
from magnetar_core.errors import MagnetarError, NotFound, Unreachable

PATH = "/servers/{server_id}/diagnostics"
#: Gate: one form for all hypervisors.
ONE_FORM = 48
RUNNING = "running"
#: Counters, in the words of the new form and of the old.
NIC = ("rx_octets", "rx_errors", "rx_drop", "rx_packets", "rx_rate", "tx_octets", "tx_errors", "tx_drop", "tx_packets",
       "tx_rate")
OLD_NIC = ("rx", "rx_errors", "rx_drop", "rx_packets", "tx", "tx_errors", "tx_drop", "tx_packets")
DISK = ("read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count")
OLD_DISK = ("read", "read_req", "write", "write_req", "errors")


def show(call: Call) -> dict[str, Any]:
    """GET …/diagnostics of a server that runs."""
    resource, host = _asked(call)
    if resource["power_state"] != RUNNING:
        raise Fault(409, f"Cannot 'get_diagnostics' instance {call.server.id} while it is in power state "
                         f"{resource['power_state']}")
    return _new(resource, host) if call.version >= ONE_FORM else _old(resource)


def _asked(call: Call) -> tuple[Any, Any]:
    """The server and the host as the agent tells them. Raises ``Fault`` 409 while the server is on no host, 503 when
    the agent does not answer."""
    found = call.cloud.hosts.get(call.server.host)
    if found is None:
        raise Fault(409, f"Instance {call.server.id} is not ready: it is on no host.")
    try:
        with call.cloud.agents.client(found.endpoint) as client:
            return client.get("server", call.server.id), client.get("host")
    except NotFound:
        raise Fault(409, f"Instance {call.server.id} is not ready: its host {found.name} does not have it.") from None
    except Unreachable:
        raise Fault(503, f"The agent of host {found.name} does not answer. Try again in a moment, or look at "
                         "`openstack compute service list`.") from None
    except MagnetarError as error:
        raise Fault(503, f"Host {found.name} cannot tell: {error.message}") from error


def _disks(resource: Any) -> int:
    """Root, ephemeral and swap disks, and volumes; a config drive is none."""
    flavor, volumes = resource["flavor"], resource.get("volumes_attached") or []
    return bool(resource.get("image")) + bool(flavor.get("ephemeral")) + bool(flavor.get("swap")) + len(volumes)


def _macs(resource: Any) -> list[str | None]:
    return [nic.get("mac") for nic in resource.get("networks") or ()]


def _new(resource: Any, host: Any) -> dict[str, Any]:
    flavor, disks, macs = resource["flavor"], _disks(resource), _macs(resource)
    virt = resource.get("virt_type")
    return {
        "state": resource["power_state"], "driver": "libvirt", "hypervisor_os": "linux", "uptime": None,
        "hypervisor": virt if virt != "auto" else next(iter(host.get("virt_types") or ()), None),
        "config_drive": bool(resource.get("config_drive")),
        "num_cpus": flavor["vcpus"], "num_nics": len(macs), "num_disks": disks,
        "cpu_details": [{"id": number, "time": None, "utilisation": None} for number in range(flavor["vcpus"])],
        "nic_details": [{"mac_address": mac, **dict.fromkeys(NIC)} for mac in macs],
        "disk_details": [dict.fromkeys(DISK) for _number in range(disks)],
        "memory_details": {"maximum": flavor["ram"], "used": None}}


def _old(resource: Any) -> dict[str, Any]:
    """As Nova's libvirt driver had it: sizes in KiB, a name for each counter of each device."""
    shown: dict[str, Any] = {f"cpu{number}_time": None for number in range(resource["flavor"]["vcpus"])}
    for letter in string.ascii_lowercase[:_disks(resource)]:
        shown.update((f"vd{letter}_{word}", None) for word in OLD_DISK)
    for number in range(len(_macs(resource))):
        shown.update((f"vnet{number}_{word}", None) for word in OLD_NIC)
    return {**shown, "memory": resource["flavor"]["ram"] * 1024, "memory-actual": None, "memory-rss": None}


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=show, name="servers.diagnostics.list",
              rule="os_compute_api:os-server-diagnostics", target="server", strict=102),
)
