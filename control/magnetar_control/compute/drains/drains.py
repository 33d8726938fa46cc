# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains: all servers of a host are moved to other hosts, and the host gets no new ones until it is enabled again.

A use case only writes the request; the conductors of the host's cell do the work (``conductor.periodic.host_drains``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.hosts.find_host import find_named_host
from magnetar_control.compute.hosts.services import DISABLED, ENABLED, RULE, set_host_columns
from magnetar_control.scheduler.choose import NoValidHost, choose_hosts
from magnetar_control.scheduler.current_hosts import read_current_hosts
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request_spec import devices_of, spec_of_server
from magnetar_control.store.hosts import drains, hosts
from magnetar_control.store.hosts.drains import DRAINED, ENDING, MOVED, STAYS, DrainedServer, DrainRow
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import Conflict, Unavailable

from .server_moves import COLD, LIVE, OFFLOAD, choose_move

#: The state of a server on the host that has no result yet.
WAITING = "waiting"
#: The words for the actions that move servers.
WORDS: Mapping[str | None, str] = {LIVE: "live", COLD: "cold", OFFLOAD: "offload", "confirmResize": "cold"}
#: The reason of a disabled compute service when the caller names none.
REASON = "drained"


class ServerOfDrain(NamedTuple):
    """A server on a host that is being drained (all of its servers are moved to other hosts). *state*: waiting, moving,
    moved or stays. *how*: live, cold or offload; "" if unknown. *to*: the server's new host. *reason*: why the server
    stays."""

    id: str
    name: str
    state: str
    how: str = ""
    to: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DrainReport:
    """The progress of draining a host, that is, of moving all of its servers to other hosts. *drain*: the drain's row;
    ``None`` when the host is not drained. *volumes*: the number of volumes that are stored on the host itself."""

    host: HostRow
    drain: DrainRow | None
    servers: Sequence[ServerOfDrain]
    volumes: int

    def in_state(self, state: str) -> list[ServerOfDrain]:
        """Return the servers whose state in the drain is *state*: waiting, moving, moved or stays."""
        return [server for server in self.servers if server.state == state]


@use_case(f"{RULE}update")
def start_drain(caller: Caller, host: str, reason: str | None = None) -> None:
    """Disable the compute service of a host for *reason*, and request that conductors move all servers of the host to
    other hosts. If the host is already being drained, retry the servers that could not be moved. Raises ``NotFound``.
    """
    set_host_columns(caller, host, DISABLED, reason or REASON, None, partial(
        drains.begin_drain_row, host=host, reason=reason or REASON, request_id=caller.request_id,
        user_id=caller.context.user_id or None, project_id=caller.context.project_id or None))


@use_case(f"{RULE}update")
def end_drain(caller: Caller, host: str) -> None:
    """Enable the compute service of a host, and start no further moves of its servers. Moves in progress continue, and
    servers that were moved are not moved back. Raises ``NotFound``."""
    set_host_columns(caller, host, ENABLED, None, None)


@use_case(f"{RULE}list")
def show_drain(caller: Caller, host: str) -> DrainReport:
    """Return the progress of draining *host* (name or uuid). Raises ``NotFound``, and ``Unavailable`` when its cell
    does not answer."""
    row = find_named_host(caller, host)
    return _report(caller, row, caller.fetch(drains.fetch_drain_row, row.name))


@use_case(f"{RULE}list")
def list_drains(caller: Caller) -> list[DrainReport]:
    """Return the progress of all drained hosts (hosts whose servers are moved to other hosts), ordered by host."""
    rows = caller.fetch(drains.fetch_drain_rows)
    return [_report(caller, host, rows[host.name]) for host in caller.fetch(hosts.fetch_hosts_without_reports)
            if host.name in rows]


@use_case(f"{RULE}list")
def plan_drain(caller: Caller, host: str) -> list[ServerOfDrain]:
    """Return the predicted result of draining *host* for each server that is still on the host: moving (in progress),
    moved (with the host that the scheduler would choose now), or stays. Nothing is changed. Raises ``NotFound``,
    ``Unavailable``."""
    row = find_named_host(caller, host)
    here, results = _read_servers(caller, row)
    volumes = caller.cloud.services.volume
    host_volumes = volumes.stored_on(row.name)
    volume_hosts = volumes.homes.hosts_for_moves({id: server.volumes for id, server in here.items()})
    states = read_current_hosts(caller.cloud.store, caller.cloud.settings) if here else None
    planned = []
    for server in sorted(here.values(), key=lambda server: -int(server.flavor["ram"])):
        result = results.get(server.id)
        if result is not None and result.state == drains.MOVING:
            planned.append(_shown_result(result))
            continue
        choice = choose_move(server, host_volumes)
        if choice.action is None or states is None:
            planned.append(ServerOfDrain(server.id, server.name, STAYS, reason=choice.reason))
        else:
            planned.append(_predicted_move(caller, states, row, server, choice.action,
                                           volume_hosts[server.id]))
    return planned


def _predicted_move(caller: Caller, states: HostStates, host: HostRow, server: ServerRow, key: str,
                    volume_hosts: frozenset[str] | None) -> ServerOfDrain:
    """Return the predicted result of moving *server* off *host* with the action *key* (live migration, cold migration
    or offload). *states*: the scheduler's data of all hosts in memory; the server is added to its predicted host there,
    so that the next prediction takes it into account. *volume_hosts*: the hosts that can reach the server's volumes;
    ``None``: all hosts."""
    how, cloud = WORDS[key], caller.cloud
    if key == OFFLOAD:
        return ServerOfDrain(server.id, server.name, MOVED, how)
    spec = spec_of_server(cloud.store.api, cloud.services.volume, caller.context, server, host=None,
                          ignored=frozenset({host.name}), cell_id=host.cell_id,
                          volume_hosts=volume_hosts,
                          has_devices={host.name: devices_of(server.flavor, server.nics)})
    try:
        candidate = choose_hosts(states, spec)[0]
    except NoValidHost as error:
        return ServerOfDrain(server.id, server.name, STAYS, how, reason=f"{error.message} {error.explanation}".rstrip())
    states.used(candidate.host, spec.amounts, spec.flavor_name, spec.numa, spec.devices)
    return ServerOfDrain(server.id, server.name, MOVED, how, candidate.host)


def _read_servers(caller: Caller, host: HostRow) -> tuple[dict[str, ServerRow], dict[str, DrainedServer]]:
    """Return two mappings by server uuid: the servers on a host, and the saved results of the host's drain. Raises
    ``Unavailable``."""
    try:
        with caller.cloud.store.cell(host.cell_id).read() as connection:
            return (servers.fetch_host_servers(connection, host.name),
                    drains.fetch_drained_servers(connection, host.name))
    except DBAPIError:
        raise Unavailable(f"The database of the cell of host {host.name} does not answer. Try again when it does.",
                          headers={"Retry-After": "10"}) from None


def _report(caller: Caller, host: HostRow, drain: DrainRow | None) -> DrainReport:
    here, results = _read_servers(caller, host)
    shown = {} if drain is None else {id: _shown_result(result) for id, result in results.items()}
    for id, server in here.items():
        old = drain is not None and id in results and results[id].round < drain.round and results[id].state == STAYS
        if id not in shown or old:
            shown[id] = ServerOfDrain(id, server.name, WAITING)
    volumes = len(caller.cloud.services.volume.stored_on(host.name))
    return DrainReport(host, drain, sorted(shown.values(), key=lambda server: (server.name, server.id)), volumes)


def _shown_result(result: DrainedServer) -> ServerOfDrain:
    return ServerOfDrain(result.server_id, result.name, result.state, WORDS.get(result.action, ""), result.target,
                         result.message)


def check_progress(report: DrainReport, begun: int) -> bool:
    """Return whether the drain in *report* is complete. *begun*: the number of the drain request whose completion the
    caller waits for; each new request to drain the same host gets the next number. Raises ``Conflict`` when the drain
    was ended before it was complete, or when the host does not answer."""
    drain, name = report.drain, report.host.name
    if drain is None or drain.state == ENDING:
        raise Conflict(f"The drain of host {name} was ended meanwhile: its compute service was enabled.")
    if drain.message:
        raise Conflict(f"Host {name}: {drain.message} The drain continues when the agent answers.")
    return drain.round >= begun and drain.state == DRAINED


def progress_text(report: DrainReport) -> str:
    """Return the progress of the drain in *report* as one line of text."""
    counts = {state: len(report.in_state(state)) for state in (MOVED, drains.MOVING, WAITING, STAYS)}
    return f"{report.host.name}: " + ", ".join(f"{count} {state}" for state, count in counts.items())
