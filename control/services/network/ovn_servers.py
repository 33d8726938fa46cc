# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers of OVN's northbound database, each asked for itself: one, or the members of a cluster (ovsdb(7)).

A cluster takes changes while more than half of its members reach one another, and then one of them leads.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ovs import jsonrpc, poller
from ovs.stream import Stream

NORTHBOUND = "OVN_Northbound"
#: Seconds that one server may take.
PATIENCE = 3.0


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


def schema(url: str, patience: float) -> Any:
    """The database's schema, of the first server that gives it; *patience*: seconds for all of them. Raises
    ``OSError``."""
    said = []
    servers = addresses(url)
    for address in servers:
        try:
            return ask(address, "get_schema", [NORTHBOUND], patience / len(servers))
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
