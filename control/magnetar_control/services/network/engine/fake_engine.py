# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine without hosts, which only stores the units. It is for tests and experiments."""

from __future__ import annotations

import threading

from magnetar_core.errors import Unavailable

from .engine import DesiredContent, EngineDifference, Incomplete, LogicalGroup, LogicalPort, LogicalRouter, Unit


class FakeEngine:
    """A ``NetworkEngine`` for tests that stores its objects in memory. *units*: the objects by key. *cards*: {serial
    number of a SmartNIC: its chassis}. ``away``: if true, the engine does not answer. ``lost_cards``: if true, the
    chassis of SmartNICs are not known."""

    knows_cards = True

    def __init__(self) -> None:
        self.cards: dict[str, str] = {}
        self.units: dict[str, Unit] = {}
        self.away, self.silent, self.lost_cards = False, False, False
        self.number, self._claimed, self._all = 0, False, False
        self._lock = threading.Lock()

    def lose(self) -> None:
        """Delete all objects, like a northbound database that was created again."""
        with self._lock:
            self.units, self._all, self.number = {}, False, 0

    def claim(self) -> None:
        self._claimed = True

    def leads(self) -> bool:
        self._answer()
        return self._claimed

    def knows_all(self) -> bool:
        self._answer()
        return self._all

    def has(self, key: str) -> bool:
        return key in self.units

    def repair(self, desired: DesiredContent) -> int:
        self._answer()
        with self._lock:
            keys = self.units.keys() if desired.scope is None else desired.scope | desired.units.keys()
            units = {key: unit for key, unit in self.units.items() if key not in keys} | dict(desired.units)
            for unit in desired.units.values():
                if isinstance(unit, LogicalPort) and f"network/{unit.network_id}" not in units:
                    raise Incomplete(f"port {unit.id} is on network {unit.network_id}, which is not there")
            self.units, self._all = units, self._all or desired.scope is None
            self.number += 1
            return self.number

    def unplaced(self, desired: DesiredContent) -> frozenset[str]:
        return frozenset(key for key, unit in desired.units.items()
                         if self.lost_cards and isinstance(unit, LogicalPort) and unit.card)

    def differences(self, desired: DesiredContent) -> list[EngineDifference]:
        self._answer()
        keys = self.units.keys() | desired.units.keys() if desired.scope is None else desired.scope
        differences = []
        for key in sorted(keys):
            have, want = self.units.get(key), desired.units.get(key)
            if have != want:
                how = "is missing" if have is None else "differs" if want else "is to go"
                differences.append(EngineDifference(key, f"{key} {how}"))
        return differences

    def faults(self) -> list[str]:
        return []

    def reached(self, number: int, seconds: float) -> bool:
        return not self.silent and self.number >= number

    def chassis_of(self, card: str) -> str | None:
        self._answer()
        if self.lost_cards:
            raise Unavailable("The southbound database does not answer.", everywhere=True)
        return self.cards.get(card)

    def close(self) -> None:
        self._claimed = False

    def port(self, id: str) -> LogicalPort | None:
        """Return the port *id* in the engine; ``None`` if there is none."""
        unit = self.units.get(f"port/{id}")
        return unit if isinstance(unit, LogicalPort) else None

    def group(self, id: str) -> LogicalGroup | None:
        """Return the security group *id* in the engine; ``None`` if there is none."""
        unit = self.units.get(f"group/{id}")
        return unit if isinstance(unit, LogicalGroup) else None

    def router(self, id: str) -> LogicalRouter | None:
        """Return the router *id* in the engine; ``None`` if there is none."""
        unit = self.units.get(f"router/{id}")
        return unit if isinstance(unit, LogicalRouter) else None

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("The northbound database does not answer.")
