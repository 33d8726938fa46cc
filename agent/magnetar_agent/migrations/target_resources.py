# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of a server on its target host, for its new flavor: CPUs, NUMA cells, pages and devices.

In a resize the server gets another flavor and hardware (``becomes`` of the manifest): the target must have the
resources for these, not for the former flavor. A cloud may also choose the target's cards for the server's virtual
functions (``cards``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import resize
from magnetar_agent.servers.disks import pmem
from magnetar_agent.servers.hardware import encrypted_memory, mdevs, memory, pci, placement
from magnetar_agent.servers.hardware.hardware import REQUESTED_BY, check_sizes
from magnetar_agent.servers.resolve import SIZES
from magnetar_core.errors import Conflict
from magnetar_core.server_plan import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields


def target_manifest(manifest: Fields) -> Fields:
    """Return a copy of *manifest*, the source's description of the server, with the vCPUs, RAM and hardware that the
    server gets on the target, and the target's network cards whose virtual functions its NICs use."""
    becomes = manifest.get("becomes") or {}
    flavor = becomes.get("flavor") or {}
    return {**manifest, **{name: flavor[name] for name in ("vcpus", "ram") if name in flavor},
            **({"hardware": becomes["hardware"]} if "hardware" in becomes else {}),
            "networks": _on_cards(manifest["networks"], manifest)}


def _on_cards(networks: Sequence[Fields], manifest: Mapping[str, Any]) -> list[Fields]:
    """Return a copy of *networks*, the server's NICs, with the target's network cards in the field ``card``. The NIC
    must use a virtual function of this card. *manifest*: its field ``cards`` has the target's card by the MAC of the
    NIC. A NIC with another MAC has no ``card`` in the result."""
    cards = manifest.get("cards") or {}
    return [{**{name: value for name, value in nic.items() if name != "card"},
             **({"card": cards[nic["mac"]]} if nic["mac"] in cards else {})} for nic in networks]


def check_target_resources(host: LocalHost, manifest: Fields, live: bool) -> None:
    """Raise ``Conflict`` if this host lacks the resources in *manifest* (from ``target_manifest``), or if the server
    cannot migrate *live*. Raises ``InvalidField`` for a flavor beyond this host's limits."""
    if flavor := (manifest.get("becomes") or {}).get("flavor"):
        local = any(disk["name"] == ROOT for disk in manifest["disks"])
        check_sizes(host, {size: flavor.get(size, 0) for size in SIZES}, not local, manifest.get("root_format", ""))
    want = {"hardware": manifest.get("hardware"), "flavor": {"vcpus": manifest.get("vcpus", 1), "ram": manifest["ram"]},
            placement.FIELD: manifest.get("placement"), "networks": manifest["networks"]}
    if live:
        pci.check_pci_live(host, want, bool(manifest.get("moves_devices")), bool(manifest.get("pulls_nics")))
    if mdevs.requests_vgpu(want) and live:
        raise Conflict("The server has a virtual GPU (hardware.vgpus), which cannot move while the guest runs. "
                       "Migrate it cold.")
    if live:
        encrypted_memory.check_encrypted_memory_live(want)
    if pmem.requested_pmem_labels(want) and live:
        raise Conflict("The server has persistent memory (hardware.pmem), which cannot move while the guest runs. "
                       "Migrate it cold, without what is in there.")
    pmem.check_pmem_labels(host, want)
    _choose(host, want, manifest["server"], live)


def claim_target_resources(host: LocalHost, manifest: Mapping[str, Any], server: Fields, live: bool) -> None:
    """Choose the incoming server's resources on this host (CPUs, PCI devices, …), and store them in *server*, the
    server's document as a dict. *manifest*: may specify a new flavor and hardware. *live*: the guest runs, so its page
    size stays.

    Raises ``Conflict`` if this host lacks the resources. The caller must hold the lock ``CHOICES`` until the document
    is written, so that no other server gets the same resources.
    """
    becomes, want = manifest.get("becomes") or {}, server["want"]
    if "flavor" in becomes:
        # An earlier agent may not have noted the sizes, and the flavor with them is replaced.
        server["state"]["sizes"] = resize.sizes_of(want, server["state"])
        want["flavor"] = dict(becomes["flavor"])
    if "hardware" in becomes:
        want["hardware"] = dict(becomes["hardware"])
        want.pop(REQUESTED_BY, None)
        want.update({REQUESTED_BY: {"own": want["hardware"]}} if want["hardware"] else {})
    want["networks"] = _on_cards(want["networks"], manifest)
    _choose(host, want, manifest["server"], live)


def _choose(host: LocalHost, want: Fields, id: str, live: bool) -> None:
    memory.check_file_memory(host, want, id)
    placement.choose_target_placement(host, want, id, live, pci.preferred_device_cells(host, want, id))
    pci.choose_target_pci(host, want, id)
    mdevs.choose_target_mdev(host, want, id)
    pmem.choose_target_pmem(host, want, id)
    encrypted_memory.check_memory_key(host, want, id)
