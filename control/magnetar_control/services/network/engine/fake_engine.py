# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine without hosts: it keeps the units and does nothing with them. For tests, and for trying things out."""

from __future__ import annotations

import threading

from magnetar_core.errors import Unavailable

from .engine import EngineDifference, Incomplete, LogicalGroup, LogicalPort, LogicalRouter, Unit, Wanted


class FakeEngine:
    """See ``NetworkEngine``. *units* is what there is; *cards*: serial number of a SmartNIC to its chassis. ``away``:
    it does not answer; ``lost_cards``: nobody tells the chassis of SmartNICs."""

    knows_cards = True

    def __init__(self) -> None:
        self.cards: dict[str, str] = {}
        self.units: dict[str, Unit] = {}
        self.away, self.silent, self.lost_cards = False, False, False
        self.number, self._claimed, self._all = 0, False, False
        self._lock = threading.Lock()

    def lose(self) -> None:
        """Everything is lost, as with a northbound database that is made anew."""
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

    def repair(self, wanted: Wanted) -> int:
        self._answer()
        with self._lock:
            keys = self.units.keys() if wanted.scope is None else wanted.scope | wanted.units.keys()
            units = {key: unit for key, unit in self.units.items() if key not in keys} | dict(wanted.units)
            for unit in wanted.units.values():
                if isinstance(unit, LogicalPort) and f"network/{unit.network_id}" not in units:
                    raise Incomplete(f"port {unit.id} is on network {unit.network_id}, which is not there")
            self.units, self._all = units, self._all or wanted.scope is None
            self.number += 1
            return self.number

    def unplaced(self, wanted: Wanted) -> frozenset[str]:
        return frozenset(key for key, unit in wanted.units.items()
                         if self.lost_cards and isinstance(unit, LogicalPort) and unit.card)

    def differences(self, wanted: Wanted) -> list[EngineDifference]:
        self._answer()
        keys = self.units.keys() | wanted.units.keys() if wanted.scope is None else wanted.scope
        found = []
        for key in sorted(keys):
            have, want = self.units.get(key), wanted.units.get(key)
            if have != want:
                how = "is missing" if have is None else "differs" if want else "is to go"
                found.append(EngineDifference(key, f"{key} {how}"))
        return found

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
        """A port that it has."""
        found = self.units.get(f"port/{id}")
        return found if isinstance(found, LogicalPort) else None

    def group(self, id: str) -> LogicalGroup | None:
        """A security group that it has."""
        found = self.units.get(f"group/{id}")
        return found if isinstance(found, LogicalGroup) else None

    def router(self, id: str) -> LogicalRouter | None:
        """A router that it has."""
        found = self.units.get(f"router/{id}")
        return found if isinstance(found, LogicalRouter) else None

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("The northbound database does not answer.")
