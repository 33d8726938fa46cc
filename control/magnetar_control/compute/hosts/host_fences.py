# SPDX-License-Identifier: GPL-3.0-or-later
"""Fences of hosts: administrators request that a host is fenced or unfenced, and a conductor of its cell does it."""

from __future__ import annotations

from typing import NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts import fencing_requests, fencings, hosts
from magnetar_control.store.hosts.fencing_requests import FencingRequest
from magnetar_control.store.hosts.fencings import FencingRow
from magnetar_control.store.hosts.host_row import HostRow

from .find_host import find_named_host
from .services import RULE


class HostFenceReport(NamedTuple):
    """The fencing of a host (switching it off so that its servers can be evacuated). *fencing*: the last fencing of the
    host; ``None`` if there was none. *request*: the last request of an administrator to fence or unfence the host;
    ``None`` if there was none."""

    host: HostRow
    fencing: FencingRow | None
    request: FencingRequest | None = None


@use_case(f"{RULE}list")
def show_host_fence(caller: Caller, host: str) -> HostFenceReport:
    """Return the fencing report of a host, which is found by its name or uuid. Raises ``NotFound``."""
    row = find_named_host(caller, host)
    return HostFenceReport(row, caller.fetch(fencings.fetch_fencing_row, row.name),
                           caller.fetch(fencing_requests.fetch_fencing_request, row.name))


@use_case(f"{RULE}list")
def list_host_fences(caller: Caller) -> list[HostFenceReport]:
    """Return the fencing reports of all hosts that were ever fenced, ordered by host."""
    rows = {row.host: row for row in caller.fetch(fencings.fetch_fencing_rows)}
    return [HostFenceReport(host, rows[host.name]) for host in caller.fetch(hosts.fetch_hosts_without_reports)
            if host.name in rows]


@use_case(f"{RULE}update")
def request_host_fence(caller: Caller, host: str, *, fence: bool, confirmed: bool = False) -> str:
    """Queue a request of an administrator to fence or unfence a host, and return the request's id. *confirmed*: the
    administrator switches the host off or on by hand, so no fence agent is run. Raises ``Conflict`` while an opposite
    request is open."""
    context = caller.context
    by = f"{context.user_name or context.user_id}@{context.project_name or context.project_id}"[:200]
    with caller.cloud.store.api.write() as connection:
        return fencing_requests.begin_fencing_request(connection, host, by, fence=fence, confirmed=confirmed)


@use_case(f"{RULE}update")
def check_host_fence(caller: Caller, host: str, id: str) -> bool:
    """Return whether the fencing request *id* for *host* has been carried out. Return ``True`` also if the host was
    removed, or a later request has replaced this request. Raises the error of a failed request. If no conductor
    processes the request in time, it fails with ``FencingFailed``."""
    request = caller.fetch(fencing_requests.fetch_fencing_request, host)
    if request is None or request.id != id:  # removed with the host, or done and replaced by a later request
        return True
    if request.failure is not None:
        raise request.failure
    if request.expired:
        with caller.cloud.store.api.write() as connection:
            fencing = fencings.fetch_fencing_row(connection, host)
            if fencing is None or not fencing.busy:
                error = fencing_requests.expiry_error(request)
                fencing_requests.end_fencing_request(connection, request, error)
    return request.ended_at is not None
