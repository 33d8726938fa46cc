# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server gets of the host that it comes to: CPUs, NUMA cells, pages and devices, for what it becomes there.

A resize has the server come with another flavor and hardware (``becomes`` of the manifest): the target must have what
these need, and need not have what the server had before. Of which cards of the target its virtual functions are, a
cloud says, too (``cards``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import resize
from magnetar_agent.servers.disks import pmem
from magnetar_agent.servers.hardware import encrypted_memory, mdevs, memory, pci, placement
from magnetar_agent.servers.hardware.hardware import ASKED, check_sizes
from magnetar_agent.servers.resolve import SIZES
from magnetar_core.errors import Conflict
from magnetar_core.server_plan import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields


def manifest(told: Fields) -> Fields:
    """The manifest *told*, as if the server were already what it becomes."""
    becomes = told.get("becomes") or {}
    flavor = becomes.get("flavor") or {}
    return {**told, **{name: flavor[name] for name in ("vcpus", "ram") if name in flavor},
            **({"hardware": becomes["hardware"]} if "hardware" in becomes else {}),
            "networks": _on_cards(told["networks"], told)}


def _on_cards(networks: Sequence[Fields], told: Mapping[str, Any]) -> list[Fields]:
    """NICs with the cards of this host in the place of those that they were on."""
    cards = told.get("cards") or {}
    return [{**{name: value for name, value in nic.items() if name != "card"},
             **({"card": cards[nic["mac"]]} if nic["mac"] in cards else {})} for nic in networks]


def check(host: LocalHost, told: Fields, live: bool) -> None:
    """Raise ``Conflict`` where a server cannot get what its manifest (as ``manifest`` gives it) asks for, or is to move
    while it runs, and ``InvalidField`` for a flavor beyond this host's bounds. An earlier agent tells no hardware: its
    servers need nothing."""
    if flavor := (told.get("becomes") or {}).get("flavor"):
        local = any(disk["name"] == ROOT for disk in told["disks"])
        check_sizes(host, {size: flavor.get(size, 0) for size in SIZES}, not local, told.get("root_format", ""))
    want = {"hardware": told.get("hardware"), "flavor": {"vcpus": told.get("vcpus", 1), "ram": told["ram"]},
            placement.FIELD: told.get("placement"), "networks": told["networks"]}
    if live:
        pci.check_live(host, want, bool(told.get("moves_devices")), bool(told.get("pulls_nics")))
    if mdevs.asked(want) and live:
        raise Conflict("The server has a virtual GPU (hardware.vgpus), which cannot move while the guest runs. "
                       "Migrate it cold.")
    if live:
        encrypted_memory.check_live(want)
    if pmem.asked(want) and live:
        raise Conflict("The server has persistent memory (hardware.pmem), which cannot move while the guest runs. "
                       "Migrate it cold, without what is in there.")
    pmem.check(host, want)
    _choose(host, want, told["server"], live)


def arrive(host: LocalHost, told: Mapping[str, Any], given: Fields, live: bool) -> None:
    """Have the ``want`` of a server's document *given* be what it becomes, with what it gets here. Hold the lock of
    choices until it is written. *told*: the manifest. Raises ``Conflict``."""
    becomes, want = told.get("becomes") or {}, given["want"]
    if "flavor" in becomes:
        # An earlier agent may not have noted them, and the flavor that tells them goes.
        given["state"]["sizes"] = resize.sizes_of(want, given["state"])
        want["flavor"] = dict(becomes["flavor"])
    if "hardware" in becomes:
        want["hardware"] = dict(becomes["hardware"])
        want.pop(ASKED, None)
        want.update({ASKED: {"own": want["hardware"]}} if want["hardware"] else {})
    want["networks"] = _on_cards(want["networks"], told)
    _choose(host, want, told["server"], live)


def _choose(host: LocalHost, want: Fields, id: str, live: bool) -> None:
    memory.check(host, want, id)
    placement.arrive(host, want, id, live, pci.cells(host, want, id))
    pci.arrive(host, want, id)
    mdevs.arrive(host, want, id)
    pmem.arrive(host, want, id)
    encrypted_memory.check(host, want, id)
