# SPDX-License-Identifier: GPL-3.0-or-later
"""Adoptions: libvirt domains of hosts become servers of the cloud, and are released. For administrators.

An adopted server has the uuid of its domain. Its row is written first, with a ``create`` action; the conductors claim
its host, allocate its ports and have the agent adopt the domain. So an adoption that was interrupted is completed.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import orjson

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.cloud import HostView
from magnetar_control.compute.flavors import flavor_access, flavors
from magnetar_control.compute.flavors.hardware import stored_volume_image
from magnetar_control.compute.hosts.find_host import unknown_host_error
from magnetar_control.compute.servers import server_create
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.server_actions import agent_of_host
from magnetar_control.compute.servers.server_create import NewServers, Prepared, RequestedDestination
from magnetar_control.compute.target import ServerTarget
from magnetar_control.documents import FlavorOfServer, PortRequest
from magnetar_control.store.accounts.flavors import fetch_flavor_row
from magnetar_control.store.engine.database import advisory_lock, utc_now
from magnetar_control.store.servers import deleted_servers, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Documents
from magnetar_core.errors import Conflict, MagnetarError, Unavailable
from magnetar_core.kinds import Adoption
from magnetar_core.power import ERROR, OFF

from .proposals import (
    AdoptionCandidate,
    AdoptionRequest,
    Proposal,
    check_ports,
    owner_context,
    propose_server,
    read_offers,
)

#: The policy rule of all these use cases.
RULE = "magnetar:servers:adopt"
#: Hosts that are asked at the same time.
MOST_PARALLEL = 8


def owner_caller(caller: Caller, project_id: str, user_id: str) -> Caller:
    """Return a caller for the owner of an adopted server, with the permissions of an administrator. Call this only
    after the policy allowed the adoption to *caller*."""
    return Caller(caller.cloud, owner_context(AdoptionRequest(project_id=project_id, user_id=user_id)),
                  caller.request_id)


@use_case(RULE)
def show_candidate(caller: Caller, host: str, domain: str) -> AdoptionCandidate:
    """Return the domain (name or uuid) of the host *host*. Raises ``NotFound``, ``Unavailable``."""
    view = _find_host_view(caller, host)
    with agent_of_host(caller, view) as client:
        report = client.get(Adoption.noun, domain)
    located_server = servers.find_server_row(caller.cloud.store, report["id"])
    return AdoptionCandidate(view, report, located_server and located_server[1])


@use_case(RULE)
def list_candidates(caller: Caller, hosts: Iterable[str] | None = None) -> tuple[list[AdoptionCandidate], list[str]]:
    """Return two lists for *hosts* (``None``: all hosts that are up): the libvirt domains that other programs have
    defined on these hosts, and an error text for each host that did not answer."""
    views = ([host for host in caller.cloud.hosts.all().values() if host.up] if hosts is None else
             [_find_host_view(caller, host) for host in hosts])
    with ThreadPoolExecutor(MOST_PARALLEL) as pool:
        answers = list(pool.map(partial(_host_reports, caller), views))
    reports = [(view, report) for view, answer in zip(views, answers, strict=True) if not isinstance(answer, str)
               for report in answer]
    ids = [report["id"] for _view, report in reports]
    rows = servers.find_server_rows(caller.cloud.store, ids) if ids else {}
    candidates = [AdoptionCandidate(view, report, rows[report["id"]][1] if report["id"] in rows else None)
                  for view, report in reports]
    return candidates, [answer for answer in answers if isinstance(answer, str)]


def _host_reports(caller: Caller, host: HostView) -> Documents | str:
    try:
        with agent_of_host(caller, host) as client:
            return list(client.list(Adoption.noun))
    except MagnetarError as error:
        return f"Host {host.name} does not list its domains: {error.message}"


def _find_host_view(caller: Caller, name: str) -> HostView:
    host = caller.cloud.hosts.get(name)
    if host is None:
        raise unknown_host_error(name)
    return host


@use_case(RULE)
def propose_adoptions(caller: Caller, candidates: Iterable[AdoptionCandidate],
                      request: AdoptionRequest) -> list[Proposal]:
    """Return the server that each of *candidates* would become if it were adopted as *request* demands. Nothing is
    changed."""
    offers = read_offers(caller, request)
    return [propose_server(candidate, request, offers) for candidate in candidates]


@use_case(RULE)
def prepare_adoption(caller: Caller, candidate: AdoptionCandidate, request: AdoptionRequest) -> tuple[Proposal,
                                                                                             list[PortRequest]]:
    """Return the server that *candidate* would become if it were adopted as *request* demands, and the requests for the
    server's ports. All checks are made first. Raises ``Conflict`` with all reasons against the adoption, and
    ``Forbidden`` when a quota would be exceeded."""
    (proposal,) = propose_adoptions(caller, [candidate], request)
    port_requests, further = check_ports(caller, request, proposal)
    hindrances = [*proposal.hindrances, *further]
    if not candidate.host.up:
        hindrances.append(("host", f"Host {candidate.host.name} is down."))
    if candidate.row is None and _was_deleted(caller, candidate.report["id"]):
        hindrances.append(("name", "Its uuid belonged to a server that was deleted. Remove deleted servers (magnetar "
                           "db purge), or define the domain with another uuid."))
    if hindrances:
        reasons = " ".join(message for _reason, message in hindrances)
        raise Conflict(f"The domain {candidate.report['name']!r} cannot be adopted. {reasons}", hindrances=[
            {"reason": reason, "message": message} for reason, message in hindrances])
    owner = owner_caller(caller, request.project_id, request.user_id)
    assert proposal.flavor is not None
    quotas.check_port_quota(owner, len(port_requests), 1, 1)
    quotas.check_server_quota(owner, proposal.flavor, 1, 1)
    return proposal, port_requests


def _was_deleted(caller: Caller, id: str) -> bool:
    try:
        server_create.check_unused_uuid(caller, id)
    except Conflict:
        return servers.find_server_row(caller.cloud.store, id, deleted=True) is not None
    return False


@use_case(RULE)
def begin_adoption(caller: Caller, request: AdoptionRequest, proposal: Proposal,
                   port_requests: list[PortRequest]) -> None:
    """Insert the row of the server that the domain of *proposal* becomes, and queue the action that adopts the domain.
    Do nothing if the cloud already has a server with the domain's uuid, because another request has begun the adoption.
    """
    owner, store = owner_caller(caller, request.project_id, request.user_id), caller.cloud.store
    flavor = _existing_flavor(caller, request, proposal)
    bounds, report = quotas.binding_limits(owner), proposal.candidate.report
    row = _new_row(owner, proposal, flavor, port_requests)
    with store.cell0.write() as connection:
        advisory_lock(connection, Adoption.noun, report["id"])
        if servers.find_server_row(store, report["id"]):
            return
        quotas.check_server_quota(owner, flavor, 1, 1, bounds, connection)
        servers.insert_server_rows(connection, [row], caller.request_id)
        store.cell0.notify(connection, servers.ACTIONS_CHANGED)


def _existing_flavor(caller: Caller, request: AdoptionRequest, proposal: Proposal) -> FlavorOfServer:
    """Return the flavor of *proposal*. If it does not exist yet, create it as a private flavor, and give the project of
    *request* access to it."""
    flavor = proposal.flavor
    assert flavor is not None
    if not proposal.makes_flavor:
        return flavor
    if caller.fetch(fetch_flavor_row, flavor["id"], everything=True) is None:
        sizes = {name: flavor[name] for name in ("vcpus", "ram", "disk")}
        flavors.create_flavor(caller, flavor["name"], id=flavor["id"], is_public=False, **sizes)
    if caller.fetch(fetch_flavor_row, flavor["id"], request.project_id) is None:
        flavor_access.create_flavor_access(caller, flavor["id"], request.project_id)
    return flavor


def _new_row(owner: Caller, proposal: Proposal, flavor: FlavorOfServer,
             port_requests: list[PortRequest]) -> dict[str, object]:
    """Return the row of the server that the domain of *proposal* becomes. The row names the domain's host, so that the
    scheduler chooses no other host, and contains *port_requests*, the requests for ports of the domain's NICs."""
    host, report = proposal.candidate.host.name, proposal.candidate.report
    image = stored_volume_image({})
    groups = owner.cloud.services.network.groups(owner.context, ["default"])
    new_server = NewServers(name=proposal.name, flavor_id=flavor["id"], id=report["id"],
                        off=report["server"]["power"] == OFF)
    prepared = Prepared(new_server, flavor, None, image, RequestedDestination(None, host, None, past_filters=True),
                        None, [],
                        port_requests, groups, None, None, "MANUAL")
    (row,) = server_create.new_server_rows(owner, prepared, 1)
    adopted = {"domain": report["name"], "disks": [disk["path"] for disk in report["disks"] if disk["path"]],
               "adopted_at": utc_now()[:19] + "Z"}
    return {**row, "request": servers.json_text({**orjson.loads(row["request"]), "adopted": adopted})}


@use_case(RULE)
def remove_failed_adoption(caller: Caller, id: str) -> bool:
    """Remove the row of the server *id*, whose adoption has failed and was undone, and return whether this was done.
    Do nothing if the server was adopted, or if an action of it is queued or runs."""
    located_server = servers.find_server_row(caller.cloud.store, id)
    if located_server is None or not is_failed_adoption(located_server[1]):
        return False
    database = located_server[0]
    deleted_servers.remove_mappings(caller.cloud.store, [id])
    with database.write() as connection:
        row = servers.fetch_server_row(connection, id, lock=True)
        if row is None or not is_failed_adoption(row):
            return False
        deleted_servers.remove_server_rows(connection, [id])
    return True


def is_failed_adoption(row: ServerRow) -> bool:
    """Return whether the adoption of the server has failed, and nothing of it is left but the row."""
    return (servers.is_adopted_server(row) and not row.launched_at and row.vm_state == ERROR and row.task_state is None
            and row.host is None)


@use_case(RULE)
def complete_adoption(caller: Caller, candidate: AdoptionCandidate) -> None:
    """Have the host's agent adopt the domain of *candidate* again. The cloud has a server for this domain already, but
    the agent does not manage the domain any more, because another program or the command ``magnetar adopt --release``
    on the host has released it. Raises ``Conflict`` with the reasons against the adoption."""
    assert candidate.row is not None
    with agent_of_host(caller, candidate.host) as client:
        client.ensure(Adoption.noun, candidate.row.id, {
            "server_name": candidate.row.hostname or candidate.row.name}, request_id=caller.request_id)


@use_case(RULE)
def release_server(caller: Caller, target: ServerTarget) -> None:
    """Queue the release of a server that was adopted (made from an existing libvirt domain): its domain continues to
    run, and the server is removed from the cloud. Raises ``Conflict`` for a server that was not adopted,
    ``Unavailable`` if its host is down."""
    if not servers.is_adopted_server(target.row):
        raise Conflict(f"Server {target.row.name!r} was made by this cloud, so it cannot be released: nothing else has "
                       "its definition. Delete it if it is not needed.")
    host = caller.cloud.hosts.get(target.row.host)
    if host is not None and not host.up:
        raise Unavailable(f"Host {host.name} of server {target.row.name!r} is down, so it is not released there. Wait "
                          "until it is up.")
    compute.queue_deletion(caller, target, release=True)
