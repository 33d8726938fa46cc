# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose memory the CPU encrypts (``mem_encryption`` of their hardware): a CPU has keys for so many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.host.provider_config import MOST, inventory
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import MEMORY_KEY, memory_model
from magnetar_core.power import SUSPENDED

from . import placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

_STATE = ("cannot be suspended while the memory of the server is encrypted (mem_encryption), as the host cannot read "
          "it; stop it, or pause it")


def _of(want: Mapping[str, Any]) -> str:
    return memory_model(want.get("hardware") or {})


def _most(host: LocalHost, there: Mapping[str, Mapping[str, int]]) -> int:
    """How many such servers the host can have, whatever encrypts their memory."""
    asked, whole = host.settings.num_memory_encrypted_guests, sum(one["guests"] for one in there.values())
    return min(whole, MOST) if asked is None else min(asked, whole)


def resources(host: LocalHost, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """That as an inventory, of which a cloud claims. *facts*: of the host."""
    most = _most(host, facts.get("memory_encryption") or {})
    return {MEMORY_KEY: inventory(most, 1)} if most else {}


def complete(host: LocalHost, found: Fields, old: Fields, id: str) -> None:
    """Raise ``InvalidField`` for a server that is to be suspended with encrypted memory, and ``Conflict`` where the
    host has no key left for it."""
    mine = _of(found)
    if mine and found.get("power") == SUSPENDED:
        raise InvalidField("power", _STATE, SUSPENDED)
    if mine != _of(old):
        check(host, found, id)


def check(host: LocalHost, want: Mapping[str, Any], id: str) -> None:
    """Raise ``Conflict`` where the host has no key left for the server *id* with these fields: servers that are off
    keep theirs. Hold the lock of choices until it is written."""
    if not (mine := _of(want)):
        return
    there = host.hypervisor.host()["memory_encryption"]
    others = [word for one in placement.holders(host, id) if (word := _of(one))]
    of_kind = there.get(mine, {}).get("guests", 0)
    if others.count(mine) >= of_kind or len(others) >= _most(host, there):
        raise Conflict(f"hardware.mem_encryption: host {host.name} has no key left to encrypt the memory of a server: "
                       f"{others.count(mine)} of {of_kind} are taken for {mine}, and {len(others)} of "
                       f"{_most(host, there)} in all (the agent's setting num_memory_encrypted_guests). Choose another "
                       "host, or free one there.", field="hardware.mem_encryption")


def check_live(want: Mapping[str, Any]) -> None:
    """Raise ``Conflict`` for a server that cannot move while its guest runs."""
    if _of(want):
        raise Conflict("The memory of the server is encrypted (hardware.mem_encryption), and no other host could read "
                       "it. Migrate it cold.")
