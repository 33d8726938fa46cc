# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers of an OVN database: one, or the members of a cluster (ovsdb(7)). This module connects to them, and can
query each of them separately.

A cluster accepts changes while more than half of its members reach one another. One of them is then the leader.
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
#: Seconds that one server may take to answer.
PATIENCE = 3.0
#: Milliseconds between two attempts to reach the servers of a cluster, minimum and maximum: a cluster has a new leader
#: within seconds.
BACKOFF = (100, 1000)


def server_addresses(url: str) -> list[str]:
    """Return the addresses of the servers in a URL such as ``ssl:10.0.0.1:6641,ssl:10.0.0.2:6641``."""
    return [address.strip() for address in url.split(",")]


def call_server(address: str, method: str, parameters: Sequence[Any], patience: float = PATIENCE) -> Any:
    """Call the OVSDB *method* (RFC 7047) on the server at *address* with *parameters*, and return the result. Raises
    ``OSError``, also when the server refuses the request, and ``TimeoutError`` after *patience* seconds."""
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
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"no answer for {patience:g} s")
            if error:
                _until(line, remaining)
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
    """The local copy of an OVSDB database (an IDL) that accepts the content of any server, even if the server has
    counted fewer changes than the copy. This is necessary because a database that was converted with
    ``cluster-to-standalone`` counts from the beginning."""

    @property
    def _min_index(self) -> int:
        """Override the IDL: return 0, so a server's content is accepted, however few changes it has counted."""
        return 0

    @_min_index.setter
    def _min_index(self, value: int) -> None:
        """Override the IDL: ignore *value*, the greatest number of changes that the IDL has seen."""


def open_connection(url: str, database: str, tables: Iterable[str], patience: float,
                    copy: type[DatabaseCopy] = DatabaseCopy,
                    begin: Callable[[Any], None] | None = None, leader: bool = True) -> connection.Connection:
    """Return an open connection to *database*, with a local copy of *tables*. Wait until the copy is complete.
    *patience*: seconds to wait for the schema, and again for the rows. *copy*: the class of the local copy. *begin*:
    called with the copy before the connection starts. *leader*: connect only to the leader of a cluster, because only
    the leader grants locks; false: to any server, even a relay. Raises ``OSError`` and errors of ``ovs``, and then
    leaves no connection and no lock."""
    idl = copy.from_server(url, database, helper_tables=tables,
                           helper=idlutils.create_schema_helper(fetch_schema(url, patience, database)),
                           leader_only=leader)
    try:
        if len(server_addresses(url)) > 1:  # otherwise up to 8 s between two of them
            idl._session.reconnect.set_backoff(*BACKOFF)  # noqa: SLF001 - an Idl has no other way
        if begin is not None:
            begin(idl)
        made = connection.Connection(idl, patience)
        made.start()
    except TimeoutException as error:  # it has no message of its own
        idl.close()
        only = " (of a cluster, only the one that leads does)" if leader else ""
        raise TimeoutError(f"no server has let us in within {patience:g} s{only}") from error
    except BaseException:
        idl.close()
        raise
    return made


def fetch_schema(url: str, patience: float, database: str = NORTHBOUND) -> Any:
    """Return the schema of *database* from the first server that answers. *patience*: the total time to wait, in
    seconds. Raises ``OSError``."""
    failures = []
    servers = server_addresses(url)
    for address in servers:
        try:
            return call_server(address, "get_schema", [database], patience / len(servers))
        except OSError as error:
            failures.append(f"{address}: {_error_text(error)}")
    raise OSError("; ".join(failures))


def cluster_faults(url: str) -> Iterator[str]:
    """Yield a description of each fault of the database cluster at *url*: it has no leader, or members do not answer.
    Yield nothing for a single server."""
    servers = server_addresses(url)
    if len(servers) == 1:
        return
    silent, leads = {}, False
    for address in servers:
        try:
            (reply,) = call_server(address, "transact", ["_Server", {
                "op": "select", "table": "Database", "where": [["name", "==", NORTHBOUND]],
                "columns": ["connected", "leader"]}])
            leads = any(row["connected"] and row["leader"] for row in reply["rows"]) or leads
        except (OSError, ValueError, KeyError, TypeError) as error:
            silent[address] = _error_text(error)
    if not leads:
        answers = "all answer" if not silent else f"{_silent_members(silent)} do not answer"
        yield (f"The cluster of the northbound database has no quorum: of {', '.join(servers)} nobody leads, and "
               f"{answers}. Guests go on as they are, and no network or port changes, until more than half of the "
               "centrals run and reach each other (docs/howto/recover-ovn-central.md).")
    elif silent:
        spare = (len(servers) - 1) // 2 - len(silent)
        yield (f"Members of the cluster of the northbound database do not answer: {_silent_members(silent)}. "
               + (f"Without {spare} more the others still decide" if spare > 0 else
                  "When one more is lost, nothing of networks changes any more")
               + ": start ovn-central there, or replace the central (docs/howto/recover-ovn-central.md).")


def _silent_members(silent: dict[str, str]) -> str:
    return ", ".join(f"{address} ({why})" for address, why in silent.items())


def _error_text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
