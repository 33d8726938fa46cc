# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with memory that the CPU encrypts (``mem_encryption`` of their hardware). A CPU has a limited number of keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.host.provider_config import MOST, make_inventory
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


def _encryption_model(want: Mapping[str, Any]) -> str:
    return memory_model(want.get("hardware") or {})


def _max_encrypted_guests(host: LocalHost, capabilities: Mapping[str, Mapping[str, int]]) -> int:
    """Return the maximum number of servers with encrypted memory (SEV) on this host: the sum of the limits in
    *capabilities* (the host's field ``memory_encryption``), or the setting ``num_memory_encrypted_guests`` if that is
    smaller."""
    configured, whole = host.settings.num_memory_encrypted_guests, sum(capability["guests"]
                                                                       for capability in capabilities.values())
    return min(whole, MOST) if configured is None else min(configured, whole)


def memory_key_inventory(host: LocalHost, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the Placement inventory of the CPU's memory encryption keys, as ``{resource class: inventory}``; empty if
    the CPU has none. *facts*: the host's fields."""
    most = _max_encrypted_guests(host, facts.get("memory_encryption") or {})
    return {MEMORY_KEY: make_inventory(most, 1)} if most else {}


def complete_memory_encryption(host: LocalHost, desired: Fields, old: Fields, id: str) -> None:
    """Check the changed fields *desired* of the server *id*. Raises ``InvalidField`` if *desired* would suspend a
    server with encrypted memory. Raises ``Conflict`` if *desired* requests another memory encryption than *old*, the
    fields before the change, and the host has no free encryption key."""
    mine = _encryption_model(desired)
    if mine and desired.get("power") == SUSPENDED:
        raise InvalidField("power", _STATE, SUSPENDED)
    if mine != _encryption_model(old):
        check_memory_key(host, desired, id)


def check_memory_key(host: LocalHost, want: Mapping[str, Any], id: str) -> None:
    """Raise ``Conflict`` if *want* requests encrypted memory for the server *id* and the host has no free encryption
    key. Servers that are off also use keys. The caller must hold the lock ``CHOICES`` until the server's JSON document
    is written. Under this lock, the agent reserves resources for only one server at a time."""
    if not (mine := _encryption_model(want)):
        return
    capabilities = host.hypervisor.host()["memory_encryption"]
    other_models = [model for holder in placement.fields_of_holders(host, id) if (model := _encryption_model(holder))]
    of_kind = capabilities.get(mine, {}).get("guests", 0)
    if other_models.count(mine) >= of_kind or len(other_models) >= _max_encrypted_guests(host, capabilities):
        raise Conflict(f"hardware.mem_encryption: host {host.name} has no key left to encrypt the memory of a server: "
                       f"{other_models.count(mine)} of {of_kind} are taken for {mine}, and {len(other_models)} of "
                       f"{_max_encrypted_guests(host, capabilities)} in all (the agent's setting "
                       "num_memory_encrypted_guests). Choose another host, or free one there.",
                       field="hardware.mem_encryption")


def check_encrypted_memory_live(want: Mapping[str, Any]) -> None:
    """Raise ``Conflict`` if the server has encrypted memory, because such a server cannot be live-migrated."""
    if _encryption_model(want):
        raise Conflict("The memory of the server is encrypted (hardware.mem_encryption), and no other host could read "
                       "it. Migrate it cold.")
