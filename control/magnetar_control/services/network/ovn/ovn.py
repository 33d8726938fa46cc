# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine OVN. Units are rows of its northbound database, which ovn-northd and the hosts' ovn-controllers apply.

One process writes: the holder of the database's lock (RFC 7047, 4.1.8). Transactions of other processes fail. The
connection, its copy of the database and its thread are ovsdbapp's. In a cluster the connection is to the leader,
because only the leader grants locks. If the leader is lost, the connection goes to the next one.
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

from magnetar_control.services.network.engine.engine import DesiredContent, EngineDifference, LogicalPort, Unit
from magnetar_control.store.engine.bell import ChangeSignals
from magnetar_core.errors import Unavailable

from . import ovn_messages, ovn_servers, ovn_stream
from .ovn_changes import Northbound, write_northbound_changes
from .ovn_rows import GROUP, SWITCH, TABLES
from .southbound import CARD, Southbound

T = TypeVar("T")
LOCK = "magnetar"
#: The key in ``external_ids`` of NB_Global that says which process has written everything.
WRITTEN = "magnetar:written"
GLOBAL = "NB_Global"
#: Kind of units to the table that has a row with the unit's id.
ROW_OF = {"network": SWITCH, "group": GROUP}
#: Seconds after which a caller that waits for hosts checks that the database still answers.
POLL_INTERVAL = 1.0
#: Seconds that ovn-northd has for a change before the audit reports that it does not follow.
NORTHD = 10.0
#: The signal of a change of NB_Global: hosts or ovn-northd have applied changes.
HOSTS = "hosts"
NOT_FOLLOWED = ("ovn-northd does not write what has changed to the southbound database, so that hosts do not hear of "
                "it: no ovn-northd runs, or a cluster of the southbound database has no quorum. Look at both on the "
                "centrals (docs/howto/recover-ovn-central.md).")
log = logging.getLogger(__name__)
ovn_messages.register_message_parser()
ovn_stream.register_tls_stream()
# It logs each attempt; the worker logs the failure once.
logging.getLogger("ovsdbapp.backend.ovs_idl.idlutils").setLevel(logging.CRITICAL)


class OvnEngine:
    """The ``NetworkEngine`` that makes networks with OVN. *url*: of the northbound database, such as
    ``ssl:10.0.0.1:6641`` or ``unix:/path``; the servers of a cluster are separated by commas. *key*, *certificate*,
    *ca*: PEM files, for ssl. *patience*: seconds to wait for an answer. *south*: URL of the southbound database, from
    which the engine finds the chassis of SmartNICs; ``None``: it finds no chassis of SmartNICs."""

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

    def repair(self, desired: DesiredContent) -> int:
        if cards := _on_cards(desired):
            desired = _placed(desired, cards, self._chassis() if self._knows_chassis() else None)
        done = _WriteDifference(self._connected(), desired, self.token)
        work = ovs_transaction.Transaction(done.api, done.api.ovsdb_connection, self.patience, check_error=True,
                                           log_errors=False)
        work.add(done)
        try:
            work.commit()
        except (OSError, RuntimeError, OvsdbAppException) as error:
            raise self._unavailable(error) from error
        return done.number

    def unplaced(self, desired: DesiredContent) -> frozenset[str]:
        cards = _on_cards(desired)
        return frozenset(cards) if cards and not self._knows_chassis() else frozenset()

    def differences(self, desired: DesiredContent) -> list[EngineDifference]:
        differences = []
        if cards := _on_cards(desired):
            chassis = None
            try:
                chassis = self._chassis()
            except Unavailable as error:  # the rest is compared
                differences = [EngineDifference("", error.message)]
            else:
                differences = [EngineDifference(key, f"port {port.id}: no chassis has {CARD}={port.card}")
                               for key, port in cards.items() if port.card not in chassis]
            desired = _placed(desired, cards, chassis)
        return differences + self._read(lambda idl: Northbound(idl.tables).changes(desired).found)

    def faults(self) -> list[str]:
        faults = list(ovn_servers.cluster_faults(self.url))
        try:
            number = self._read(lambda idl: max((row.nb_cfg for row in _global(idl.tables)), default=0))
            if not self._followed("sb_cfg", number, NORTHD):
                faults.append(NOT_FOLLOWED)
        except Unavailable:
            pass  # ``differences`` reports it
        return faults

    def reached(self, number: int, seconds: float) -> bool:
        return self._followed("hv_cfg", number, seconds)

    def _followed(self, column: str, number: int, seconds: float) -> bool:
        """Wait at most *seconds* until *column* of NB_Global (sb_cfg or hv_cfg) is at least *number*, the number of a
        change. Return whether it is. ovn-northd raises sb_cfg when it has processed a change, and hv_cfg when all hosts
        have applied the change."""
        deadline = time.monotonic() + seconds
        while True:
            followed = self._connected().idl.followed
            signal_count = followed.count(HOSTS)
            if self._read(lambda idl: any(getattr(row, column) >= number for row in _global(idl.tables))):
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            followed.wait(HOSTS, signal_count, remaining)

    def _knows_chassis(self) -> bool:
        """Return whether ``_chassis`` can answer without waiting for the southbound database."""
        return self._south is None or self._south.is_known()

    def _chassis(self) -> Mapping[str, str]:
        """Return {serial number of a SmartNIC: name of its chassis}. Wait for the southbound database, if necessary."""
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
                    self._open = ovn_servers.open_connection(
                        self.url, ovn_servers.NORTHBOUND, (*TABLES, GLOBAL), self.patience, _Idl,
                        lambda idl: idl.set_lock(LOCK) if self._claimed else None)
                except Exception as error:
                    raise self._unavailable(error) from error
            return self._open

    def _unavailable(self, why: object) -> Unavailable:
        return Unavailable(f"The northbound database of OVN at {self.url} does not take it: {why}. See to ovsdb-server "
                           "there, and to the settings ovn_northbound….")


class _Idl(ovn_servers.DatabaseCopy):
    """The local copy of the northbound database. ``followed``: ``ChangeSignals`` (conditions for waiting threads),
    which signal a change of the row of NB_Global."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self.followed = ChangeSignals(POLL_INTERVAL)  # before the first message of the database
        self._north: Northbound | None = None
        super().__init__(*words, **more)

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Override the IDL's callback for a changed *row*. *event*: the type of the change. *updates*: the old values.
        The thread of the connection calls this."""
        if row._table.name == GLOBAL:  # noqa: SLF001 - a row has no other name of its table
            self.followed.notify(HOSTS)
        elif self._north:
            self._north.update_row(row, updates._data if event == ROW_UPDATE else None,  # noqa: SLF001 - what was, by column
                                   is_present=event != ROW_DELETE)

    def known(self) -> Northbound:
        """Return the cached rows that this cloud has created in the northbound database. The first call reads all rows;
        later changes update the cache. Only for the thread of the connection."""
        if self._north is None or not self._north.is_of(self.tables):
            self._north = Northbound(self.tables)
        return self._north

    def is_connected(self) -> bool:
        """Return whether the copy is connected to the database and up to date."""
        return bool(self._session.is_connected()) and self.state == self.IDL_S_MONITORING


class _Api:
    """A minimal substitute for the API object of ovsdbapp: it has only the attributes that transactions read. *open_*:
    the connection."""

    def __init__(self, open_: connection.Connection) -> None:
        self.ovsdb_connection, self.idl = open_, open_.idl


class _WriteDifference(command.BaseCommand):  # type: ignore[misc]
    """The ``ovsdbapp`` command that compares the northbound database with the objects *desired* and writes the
    difference, in one transaction. *token*: identifies this process. ``number``: afterwards the number of the change,
    as ``NetworkEngine.reached`` needs it."""

    def __init__(self, open_: connection.Connection, desired: DesiredContent, token: str) -> None:
        super().__init__(_Api(open_))
        self.wanted, self.token, self.number = desired, token, 0

    def run_idl(self, txn: Any) -> None:
        """Override ``BaseCommand``: compare the database with the desired objects, and add the differences to the
        transaction *txn*. ovsdbapp calls this again if another transaction has changed the database meanwhile."""
        idl = self.api.idl
        if not idl.is_connected():
            raise ConnectionError("it has closed the connection")
        north = Northbound(idl.tables) if self.wanted.scope is None else idl.known()
        changes = north.changes(self.wanted)
        write_northbound_changes(north, changes, txn, idl.tables)
        row = next(iter(_global(idl.tables)), None)
        if row is None:  # new database, ovn-northd has not begun
            raise ConnectionError("ovn-northd has not begun with it")
        self.number = row.nb_cfg + (1 if changes.found else 0)
        if changes.found:
            row.nb_cfg = self.number
        if self.wanted.scope is None and row.external_ids.get(WRITTEN) != self.token:
            row.setkey("external_ids", WRITTEN, self.token)


def _on_cards(desired: DesiredContent) -> dict[str, LogicalPort]:
    """Return those ports in *desired* that are on SmartNICs: {key (``port/UUID``): port}."""
    return {key: unit for key, unit in desired.units.items() if isinstance(unit, LogicalPort) and unit.card}


def _placed(desired: DesiredContent, cards: Mapping[str, LogicalPort],
            chassis: Mapping[str, str] | None) -> DesiredContent:
    """Return a copy of *desired* in which the ports *cards* (by key) have the chassis of their SmartNICs as hosts.
    *chassis*: {serial number of a SmartNIC: name of its chassis}; ``None``: not known yet, the ports stay on their
    present chassis."""
    def hosts(card: str) -> tuple[str, ...] | None:
        if chassis is None:
            return None
        return (chassis[card],) if card in chassis else ()

    placed_ports: dict[str, Unit] = {key: replace(port, hosts=hosts(port.card)) for key, port in cards.items()}
    return replace(desired, units={**desired.units, **placed_ports})


def _global(tables: Mapping[str, Any]) -> list[Any]:
    return list(tables[GLOBAL].rows.values())
