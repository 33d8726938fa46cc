# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers of a database of OVN, one or the members of a cluster (ovsdb(7)): a connection to them, and each asked
for itself.

A cluster takes changes while more than half of its members reach one another, and then one of them leads.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ovs import jsonrpc, poller
from ovs.stream import Stream
from ovsdbapp.backend.ovs_idl import connection, idlutils
from ovsdbapp.exceptions import TimeoutException

NORTHBOUND, SOUTHBOUND = "OVN_Northbound", "OVN_Southbound"
#: Seconds that one server may take.
PATIENCE = 3.0
#: Milliseconds between two attempts to reach the servers of a cluster, at least and at most: one leads again within
#: seconds.
BACKOFF = (100, 1000)


def addresses(url: str) -> list[str]:
    """The servers of a URL, such as ``ssl:10.0.0.1:6641,ssl:10.0.0.2:6641``."""
    return [one.strip() for one in url.split(",")]


def ask(address: str, method: str, parameters: Sequence[Any], patience: float = PATIENCE) -> Any:
    """The result of one call (RFC 7047) of the server at *address*. Raises ``OSError``, also for a refusal of it, and
    ``TimeoutError`` after *patience* seconds."""
    deadline = time.monotonic() + patience
    error, stream = Stream.open_block(Stream.open(address), int(patience * 1000))
    if error:
        raise OSError(error, os.strerror(error))
    line = jsonrpc.Connection(stream)
    try:
        line.send(jsonrpc.Message.create_request(method, list(parameters)))
        while True:
            line.run()
            error, answer = line.recv()
            if not error and answer.type in (jsonrpc.Message.T_REPLY, jsonrpc.Message.T_ERROR):
                break
            if error and error != errno.EAGAIN:
                raise OSError(error, os.strerror(error) if error > 0 else "it has closed the connection")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer for {patience:g} s")
            if error:
                _until(line, left)
    finally:
        line.close()
    if answer.error is not None:
        raise OSError(f"it refuses: {answer.error}"[:200])
    return answer.result


def _until(line: jsonrpc.Connection, seconds: float) -> None:
    waiting = poller.Poller()
    line.wait(waiting)
    line.recv_wait(waiting)
    waiting.timer_wait(max(1, int(seconds * 1000)))
    waiting.block()


class DatabaseCopy(connection.OvsdbIdl):  # type: ignore[misc]
    """The copy of a database. It takes whatever the leader of a cluster has: one that has begun anew
    (``cluster-to-standalone``) counts its changes from the beginning, and is not old for that."""

    @property
    def _min_index(self) -> int:
        """The number of changes below which an Idl takes nothing."""
        return 0

    @_min_index.setter
    def _min_index(self, value: int) -> None:
        """It would be the greatest that was seen."""


def opened(url: str, database: str, tables: Iterable[str], patience: float, copy: type[DatabaseCopy] = DatabaseCopy,
           begin: Callable[[Any], None] | None = None, leader: bool = True) -> connection.Connection:
    """A connection that follows *tables* of a *database*, when it has them; *begin* is called with its *copy* before.
    *leader*: of a cluster, to the server that leads, which alone takes locks; else to any, a relay too.
    *patience*: seconds for the schema, and again for the rows. Raises ``OSError``, and others of ``ovs``; nothing of
    the connection is left then, neither a lock."""
    idl = copy.from_server(url, database, helper_tables=tables,
                           helper=idlutils.create_schema_helper(schema(url, patience, database)), leader_only=leader)
    try:
        if len(addresses(url)) > 1:  # else it would wait up to 8 s between two of them
            idl._session.reconnect.set_backoff(*BACKOFF)  # noqa: SLF001 - an Idl has no other way
        if begin is not None:
            begin(idl)
        made = connection.Connection(idl, patience)
        made.start()
    except TimeoutException as error:  # which has no words of its own
        idl.close()
        only = " (of a cluster, only the one that leads does)" if leader else ""
        raise TimeoutError(f"no server has let us in within {patience:g} s{only}") from error
    except BaseException:
        idl.close()
        raise
    return made


def schema(url: str, patience: float, database: str = NORTHBOUND) -> Any:
    """The schema of a *database*, of the first server that gives it; *patience*: seconds for all of them. Raises
    ``OSError``."""
    said = []
    servers = addresses(url)
    for address in servers:
        try:
            return ask(address, "get_schema", [database], patience / len(servers))
        except OSError as error:
            said.append(f"{address}: {_words(error)}")
    raise OSError("; ".join(said))


def faults(url: str) -> Iterator[str]:
    """What is wrong with a cluster: that nobody leads it, and members that do not answer. Nothing of a single server,
    of which whoever uses it says so."""
    servers = addresses(url)
    if len(servers) == 1:
        return
    silent, leads = {}, False
    for address in servers:
        try:
            (found,) = ask(address, "transact", ["_Server", {
                "op": "select", "table": "Database", "where": [["name", "==", NORTHBOUND]],
                "columns": ["connected", "leader"]}])
            leads = any(row["connected"] and row["leader"] for row in found["rows"]) or leads
        except (OSError, ValueError, KeyError, TypeError) as error:
            silent[address] = _words(error)
    if not leads:
        told = "all answer" if not silent else f"{_told(silent)} do not answer"
        yield (f"The cluster of the northbound database has no quorum: of {', '.join(servers)} nobody leads, and "
               f"{told}. Guests go on as they are, and no network or port changes, until more than half of the "
               "centrals run and reach each other (docs/ovn-central.md).")
    elif silent:
        spare = (len(servers) - 1) // 2 - len(silent)
        yield (f"Members of the cluster of the northbound database do not answer: {_told(silent)}. "
               + (f"Without {spare} more the others still decide" if spare > 0 else
                  "When one more is lost, nothing of networks changes any more")
               + ": start ovn-central there, or replace the central (docs/ovn-central.md).")


def _told(silent: dict[str, str]) -> str:
    return ", ".join(f"{address} ({why})" for address, why in silent.items())


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
