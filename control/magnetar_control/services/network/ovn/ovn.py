# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine OVN: units are rows of its northbound database, from which ovn-northd and the hosts' ovn-controllers go
on.

Of all processes one writes, which has the database's lock (RFC 7047, 4.1.8): a transaction of another one fails. The
connection, its copy of the database and its thread are ovsdbapp's. Of a cluster it goes to the server that leads, which
alone has locks, and to the next one when that is lost.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ovs.db.idl import ROW_DELETE, ROW_UPDATE
from ovs.stream import Stream
from ovsdbapp.backend.ovs_idl import command, connection
from ovsdbapp.backend.ovs_idl import transaction as ovs_transaction
from ovsdbapp.exceptions import OvsdbAppException

from magnetar_control.services.network.engine.engine import EngineDifference, LogicalPort, Unit, Wanted
from magnetar_control.store.engine.bell import Bell
from magnetar_core.errors import Unavailable

from . import ovn_messages, ovn_servers, ovn_stream
from .ovn_changes import Northbound, write
from .ovn_rows import GROUP, SWITCH, TABLES
from .southbound import CARD, Southbound

T = TypeVar("T")
LOCK = "magnetar"
#: What NB_Global has in ``external_ids``: who has written everything.
WRITTEN = "magnetar:written"
GLOBAL = "NB_Global"
#: Kinds of units to the table that has a row of the unit's id.
ROW_OF = {"network": SWITCH, "group": GROUP}
#: Seconds after which somebody who waits for the hosts looks whether the database still answers.
LOOK = 1.0
#: Seconds that ovn-northd has for a change before the audit says that it does not follow.
NORTHD = 10.0
#: What rings when the hosts have told how far they are.
HOSTS = "hosts"
NOT_FOLLOWED = ("ovn-northd does not write what has changed to the southbound database, so that hosts do not hear of "
                "it: no ovn-northd runs, or a cluster of the southbound database has no quorum. Look at both on the "
                "centrals (docs/ovn-central.md).")
log = logging.getLogger(__name__)
ovn_messages.register()
ovn_stream.register()
# It complains at each attempt; the worker says it once.
logging.getLogger("ovsdbapp.backend.ovs_idl.idlutils").setLevel(logging.CRITICAL)


class OvnEngine:
    """See ``NetworkEngine``. *url*: the northbound database, such as ``ssl:10.0.0.1:6641`` or ``unix:/path``, the
    servers of a cluster joined by commas. *key*, *certificate*, *ca*: PEM files, for ssl. *patience*: seconds for one
    answer. *south*: the southbound database, which knows the chassis of SmartNICs; left out, none are found."""

    def __init__(self, url: str, key: Path | None = None, certificate: Path | None = None, ca: Path | None = None,
                 patience: float = 20.0, south: str | None = None) -> None:
        self.url, self.patience = url, patience
        self._south = None if south is None else Southbound(south, patience)
        for file, use in ((key, Stream.ssl_set_private_key_file), (certificate, Stream.ssl_set_certificate_file),
                          (ca, Stream.ssl_set_ca_cert_file)):
            if file is not None:
                use(str(file))
        self.token = uuid.uuid4().hex
        self._opening = threading.Lock()
        self._open: connection.Connection | None = None
        self._claimed = False

    def claim(self) -> None:
        self._claimed = True
        if self._open is not None:
            with self._open.lock:
                self._open.idl.set_lock(LOCK)

    def leads(self) -> bool:
        return self._read(lambda idl: bool(idl.has_lock))

    def knows_all(self) -> bool:
        return self._read(lambda idl: any(row.external_ids.get(WRITTEN) == self.token for row in _global(idl.tables)))

    @property
    def knows_cards(self) -> bool:
        return self._south is not None

    def chassis_of(self, card: str) -> str | None:
        return None if self._south is None else self._south.chassis_of(card)

    def has(self, key: str) -> bool:
        kind, _slash, id = key.partition("/")
        return self._read(lambda idl: (ROW_OF[kind], id) in idl.known().rows)

    def repair(self, wanted: Wanted) -> int:
        if cards := _on_cards(wanted):
            wanted = _placed(wanted, cards, self._chassis() if self._knows_chassis() else None)
        done = _Repair(self._connected(), wanted, self.token)
        work = ovs_transaction.Transaction(done.api, done.api.ovsdb_connection, self.patience, check_error=True,
                                           log_errors=False)
        work.add(done)
        try:
            work.commit()
        except (OSError, RuntimeError, OvsdbAppException) as error:
            raise self._unavailable(error) from error
        return done.number

    def unplaced(self, wanted: Wanted) -> frozenset[str]:
        cards = _on_cards(wanted)
        return frozenset(cards) if cards and not self._knows_chassis() else frozenset()

    def differences(self, wanted: Wanted) -> list[EngineDifference]:
        found = []
        if cards := _on_cards(wanted):
            chassis = None
            try:
                chassis = self._chassis()
            except Unavailable as error:  # and all else is compared
                found = [EngineDifference("", error.message)]
            else:
                found = [EngineDifference(key, f"port {port.id}: no chassis has {CARD}={port.card}")
                         for key, port in cards.items() if port.card not in chassis]
            wanted = _placed(wanted, cards, chassis)
        return found + self._read(lambda idl: Northbound(idl.tables).changes(wanted).found)

    def faults(self) -> list[str]:
        found = list(ovn_servers.faults(self.url))
        try:
            number = self._read(lambda idl: max((row.nb_cfg for row in _global(idl.tables)), default=0))
            if not self._followed("sb_cfg", number, NORTHD):
                found.append(NOT_FOLLOWED)
        except Unavailable:
            pass  # whoever asked for differences has heard that
        return found

    def reached(self, number: int, seconds: float) -> bool:
        return self._followed("hv_cfg", number, seconds)

    def _followed(self, column: str, number: int, seconds: float) -> bool:
        """Wait until NB_Global has this number in a column: ``sb_cfg`` of ovn-northd, ``hv_cfg`` of all hosts."""
        deadline = time.monotonic() + seconds
        while True:
            followed = self._connected().idl.followed
            seen = followed.count(HOSTS)
            if self._read(lambda idl: any(getattr(row, column) >= number for row in _global(idl.tables))):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            followed.wait(HOSTS, seen, left)

    def _knows_chassis(self) -> bool:
        """Whether it can be said at once which chassis has a card, or that none has."""
        return self._south is None or self._south.is_known()

    def _chassis(self) -> Mapping[str, str]:
        """See ``Southbound.chassis``, which waits."""
        return {} if self._south is None else self._south.chassis()

    def close(self) -> None:
        if self._south is not None:
            self._south.close()
        with self._opening:
            if self._open is not None:
                self._open.stop(timeout=self.patience)
                self._open = None

    def _read(self, look: Callable[[Any], T]) -> T:
        open_ = self._connected()
        with open_.lock:
            if not open_.idl.is_connected():
                raise self._unavailable("it has closed the connection")
            return look(open_.idl)

    def _connected(self) -> connection.Connection:
        with self._opening:
            if self._open is None:
                try:
                    self._open = ovn_servers.opened(
                        self.url, ovn_servers.NORTHBOUND, (*TABLES, GLOBAL), self.patience, _Idl,
                        lambda idl: idl.set_lock(LOCK) if self._claimed else None)
                except Exception as error:
                    raise self._unavailable(error) from error
            return self._open

    def _unavailable(self, why: object) -> Unavailable:
        return Unavailable(f"The northbound database of OVN at {self.url} does not take it: {why}. See to ovsdb-server "
                           "there, and to the settings ovn_northbound….")


class _Idl(ovn_servers.DatabaseCopy):
    """The copy of the database. ``followed`` wakes those who wait for the hosts."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self.followed = Bell(LOOK)  # before the first message of the database
        self._north: Northbound | None = None
        super().__init__(*words, **more)

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Called by the connection's thread for each row that has changed."""
        if row._table.name == GLOBAL:  # noqa: SLF001 - a row has no other name of its table
            self.followed.ring(HOSTS)
        elif self._north:
            self._north.hear(row, updates._data if event == ROW_UPDATE else None,  # noqa: SLF001 - what was, by column
                             there=event != ROW_DELETE)

    def known(self) -> Northbound:
        """The rows of ours, for the connection's thread: looked at once, and kept up to date."""
        if self._north is None or not self._north.is_of(self.tables):
            self._north = Northbound(self.tables)
        return self._north

    def is_connected(self) -> bool:
        """Whether the copy follows the database now."""
        return bool(self._session.is_connected()) and self.state == self.IDL_S_MONITORING


class _Api:
    """What a transaction of ovsdbapp needs to know."""

    def __init__(self, open_: connection.Connection) -> None:
        self.ovsdb_connection, self.idl = open_, open_.idl


class _Repair(command.BaseCommand):  # type: ignore[misc]
    """A repair: what differs is found in the transaction that writes it. ``number``: that of the change."""

    def __init__(self, open_: connection.Connection, wanted: Wanted, token: str) -> None:
        super().__init__(_Api(open_))
        self.wanted, self.token, self.number = wanted, token, 0

    def run_idl(self, txn: Any) -> None:
        """Called again where another transaction came between."""
        idl = self.api.idl
        if not idl.is_connected():
            raise ConnectionError("it has closed the connection")
        north = Northbound(idl.tables) if self.wanted.scope is None else idl.known()
        changes = north.changes(self.wanted)
        write(north, changes, txn, idl.tables)
        row = next(iter(_global(idl.tables)), None)
        if row is None:  # of a new database, before ovn-northd has made it
            raise ConnectionError("ovn-northd has not begun with it")
        self.number = row.nb_cfg + (1 if changes.found else 0)
        if changes.found:
            row.nb_cfg = self.number
        if self.wanted.scope is None and row.external_ids.get(WRITTEN) != self.token:
            row.setkey("external_ids", WRITTEN, self.token)


def _on_cards(wanted: Wanted) -> dict[str, LogicalPort]:
    """The ports on SmartNICs, by key."""
    return {key: unit for key, unit in wanted.units.items() if isinstance(unit, LogicalPort) and unit.card}


def _placed(wanted: Wanted, cards: Mapping[str, LogicalPort], chassis: Mapping[str, str] | None) -> Wanted:
    """With the *chassis* (by serial number) of the ports on *cards*; ``None``: nobody tells them."""
    def hosts(card: str) -> tuple[str, ...] | None:
        if chassis is None:
            return None
        return (chassis[card],) if card in chassis else ()

    found: dict[str, Unit] = {key: replace(port, hosts=hosts(port.card)) for key, port in cards.items()}
    return replace(wanted, units={**wanted.units, **found})


def _global(tables: Mapping[str, Any]) -> list[Any]:
    return list(tables[GLOBAL].rows.values())
