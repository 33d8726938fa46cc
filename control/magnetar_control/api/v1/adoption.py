# SPDX-License-Identifier: GPL-3.0-or-later
"""adoption: libvirt domains of hosts that other programs have defined, and the servers that they become.

The key of a domain is ``HOST:DOMAIN``, or its uuid or name if the request has the host, or no other host has such a
domain. A request that is sent again completes what an earlier one has begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.v1.servers.server_actions import delete_and_wait, wait_until_idle, why_failed
from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.adoptions import adoptions
from magnetar_control.compute.adoptions.proposals import AdoptionCandidate, AdoptionRequest, Proposal
from magnetar_control.compute.caller import Caller
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import Ambiguous, Conflict, Failed, Immutable, InvalidField, NotFound
from magnetar_core.kinds import Adoption, Server
from magnetar_core.kinds.host import ADOPTABLE, ADOPTED, HINDERED
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step, diff_documents
from magnetar_core.reconcile import checked_request, forget_step, is_uuid_key, record_step, warn_caller

from .driver import CloudDriver, lock_key


class CloudAdoptions(CloudDriver):
    """The driver of the v1 API for adoptions, which make servers of existing libvirt domains of the hosts. For
    administrators."""

    kind = Adoption

    def every(self, caller: Caller) -> list[Document]:
        return self._reports(caller, None)

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the domains of all hosts that are up, or of those that the filter ``host`` names."""
        names = filters.pop("host", None)
        return self._reports(caller, None if names is None else [names] if isinstance(names, str) else list(names))

    def _reports(self, caller: Caller, hosts: list[str] | None) -> list[Document]:
        candidates, silent = adoptions.list_candidates(caller, hosts)
        for text in silent:
            warn_caller(text)
        request = AdoptionRequest(project_id=caller.project, user_id=caller.context.user_id)
        return [adoption_document(proposal) for proposal in adoptions.propose_adoptions(caller, candidates, request)]

    def find(self, caller: Caller, key: str) -> Document | None:
        host, domain = _split_key(key)
        if host is None:
            reports = [report for report in self.every(caller) if domain in (report["id"], report["name"])]
            if len(reports) > 1:
                raise Ambiguous(f"{len(reports)} hosts have a domain {domain!r}; use HOST:DOMAIN, or a uuid.", uuids=[
                    report["id"] for report in reports])
            return reports[0] if reports else None
        try:
            candidate = adoptions.show_candidate(caller, host, domain)
        except NotFound:
            return None
        request = AdoptionRequest(project_id=caller.project, user_id=caller.context.user_id)
        return adoption_document(adoptions.propose_adoptions(caller, [candidate], request)[0])

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Adopt the domain *key* as a server, or, if *want* is ``None``, release its server: remove the server from the
        cloud, and let the domain run on. Raises ``Conflict`` with all that hinders an adoption."""
        adoptions.show_candidate.check_allowed(caller)
        host, domain = _split_key(key)
        if want is None:
            with lock_key(self.kind.noun, caller.project, key, operation):
                return self._release(caller, host, domain, dry_run, operation)
        requested = checked_request(self.kind, domain, want)
        host = host or requested.get("host")
        if host is None:
            raise InvalidField("host", "is required: name the host of the domain")
        if requested.get("host") not in (None, host):
            raise InvalidField("host", f"differs from the key {key!r} of the request", requested["host"])
        with lock_key(self.kind.noun, caller.project, f"{host}:{domain}", operation):
            candidate = adoptions.show_candidate(caller, host, domain)
            if requested.get("name", candidate.report["name"]) != candidate.report["name"]:
                raise InvalidField("name", f"differs from the domain's name {candidate.report['name']!r}, which stays",
                                   requested["name"])
            row = candidate.row if dry_run else _settled_row(caller, candidate.row, operation)
            if row is not None and servers.is_adopted_server(row) and row.launched_at and row.host == host:
                return self._unchanged(caller, candidate._replace(row=row), requested, permissions, dry_run)
            if row is not None and adoptions.is_failed_adoption(row):
                if not dry_run:
                    adoptions.remove_failed_adoption(caller, row.id)
                row = None
            return self._adopt(caller, candidate._replace(row=row), requested, dry_run, operation)

    def _adopt(self, caller: Caller, candidate: AdoptionCandidate, requested: Document, dry_run: bool,
               operation: Operation) -> Result:
        request = _adoption_request(caller, requested)
        proposal, port_requests = adoptions.prepare_adoption(caller, candidate, request)
        diff = diff_documents({"status": ADOPTABLE}, {"status": ADOPTED, "server_name": proposal.name})
        shown = adoption_document(proposal, request)
        if not dry_run:
            adoptions.begin_adoption(caller, request, proposal, port_requests)
            id = candidate.report["id"]
            owner = adoptions.owner_caller(caller, request.project_id, request.user_id)
            row = wait_until_idle(owner, id, operation)
            if row is None:
                raise Conflict(f"Server {proposal.name!r} was removed by somebody while its domain was adopted.")
            if not row.launched_at:
                adoptions.remove_failed_adoption(caller, id)
                raise Failed(f"The domain {candidate.report['name']!r} could not be adopted: {why_failed(row)} It runs "
                             "on as before.", server=id)
        return Result(_steps(proposal), diff, {**shown, "status": ADOPTED})

    def _unchanged(self, caller: Caller, candidate: AdoptionCandidate, requested: Document,
                   permissions: Mapping[str, Any], dry_run: bool) -> Result:
        """Return the result for a domain that already is a server of the cloud. If the host's agent does not manage the
        domain any more, ask the agent to adopt the domain again (not in a dry run). Raises ``Immutable`` for another
        server name, unless *permissions* has ``on_immutable=ignore``."""
        row, warnings = candidate.row, list[str]()
        assert row is not None
        if requested.get("server_name", row.name) != row.name:
            text = (f"server_name: the domain {candidate.report['name']!r} is adopted as server {row.name!r}. Rename "
                    "it with the module server.")
            if permissions.get("on_immutable") != "ignore":
                raise Immutable(text, fields=["server_name"])
            warnings.append(text)
        steps: list[Step] = []
        if candidate.report["status"] != ADOPTED:
            steps = [Step("mark_domain", "mark the domain as a server of Magnetar")]
            if not dry_run:
                adoptions.complete_adoption(caller, candidate)
        return Result(steps, [], _adopted_report(candidate, row), warnings)

    def _release(self, caller: Caller, host: str | None, domain: str, dry_run: bool, operation: Operation) -> Result:
        """Release the server of a domain, unless this is a dry run: remove the server from the cloud, and let the
        domain run on. Do nothing if the domain is not a server. Return the result with the steps."""
        row = _adopted_row(caller, host, domain)
        if row is None:
            return Result([], [], None)
        owner = adoptions.owner_caller(caller, row.project_id, row.user_id)
        steps = [Step("unmark_domain", "remove Magnetar's mark from the domain, which stays as it is"),
                 forget_step(Server, row.name)]
        shown = self.find(caller, f"{row.host}:{row.id}") if row.host else None
        if not servers.is_adopted_server(row):
            raise Conflict(f"Server {row.name!r} was made by this cloud, so it cannot be released. Delete it if it is "
                           "not needed.")
        if not dry_run:
            try:
                delete_and_wait(owner, row.id, operation, adoptions.release_server)
            except Failed:
                raise Failed(f"Server {row.name!r} could not be released: "
                             f"{why_failed(_adopted_row(caller, None, row.id) or row)}", server=row.id) from None
        return Result(steps, diff_documents({"status": ADOPTED, "server_name": row.name}, {"status": ADOPTABLE}), shown)


def _split_key(key: str) -> tuple[str | None, str]:
    """Return the host and the domain of *key*, ``HOST:DOMAIN`` or ``DOMAIN``. A uuid is returned in lower case."""
    host, colon, domain = key.partition(":")
    if not colon:
        host, domain = "", key
    if not domain or (colon and not host):
        raise InvalidField("key", "must be HOST:DOMAIN, or the uuid or name of a domain", key[:80])
    return host or None, domain.lower() if is_uuid_key(domain) else domain


def _settled_row(caller: Caller, row: ServerRow | None, operation: Operation) -> ServerRow | None:
    """If *row* is an adopted server, wait until no action runs on this server, and return its new row; ``None`` if the
    server is gone. Otherwise return *row* unchanged."""
    if row is None or not servers.is_adopted_server(row):
        return row
    owner = adoptions.owner_caller(caller, row.project_id, row.user_id)
    settled: ServerRow | None = wait_until_idle(owner, row.id, operation)
    return settled


def _adopted_row(caller: Caller, host: str | None, domain: str) -> ServerRow | None:
    """Return the row of the server with the same uuid as the domain *domain*; ``None`` if there is no such domain or
    server. *domain*: a uuid, or the name of a domain on *host*. Raises ``InvalidField`` for a name without a host, and
    ``NotFound`` for an unknown host."""
    if is_uuid_key(domain):
        located_server = servers.find_server_row(caller.cloud.store, domain)
        return located_server and located_server[1]
    if host is None:
        raise InvalidField("host", "is required to release a domain by its name; name the host, or give its uuid")
    try:
        return adoptions.show_candidate(caller, host, domain).row
    except NotFound as error:
        if error.details.get("kind") == "host":
            raise
        return None


def _adoption_request(caller: Caller, requested: Document) -> AdoptionRequest:
    """Convert *requested*, the fields of a request, to an ``AdoptionRequest``. A project name is replaced by the
    project's id. The caller's project and user are the defaults."""
    project = requested.get("project")
    return AdoptionRequest(
        project_id=caller.project if project is None else resolve_project_id(caller, project, "project"),
        user_id=requested.get("user") or caller.context.user_id, name=requested.get("server_name"),
        flavor=requested.get("flavor"), make_flavor=bool(requested.get("make_flavor")),
        networks=requested.get("networks") or {}, without_ports=bool(requested.get("without_ports")),
        addresses={mac.lower(): addresses for mac, addresses in (requested.get("addresses") or {}).items()})


def _steps(proposal: Proposal) -> list[Step]:
    """Return the steps that adopt a domain, such as the creation of ports; the answer lists them. *proposal*: the
    server that the domain becomes."""
    flavor = proposal.flavor
    return [*([Step("create_flavor", f"make the private flavor {flavor['name']}")] if flavor and proposal.makes_flavor
              else []), record_step(Server, proposal.name),
            Step("claim", f"claim CPUs, memory and disk of host {proposal.candidate.host.name}"),
            *(Step("create_port", f"make a port on network {nic.network['name']} for NIC {nic.mac}")
              for nic in proposal.nics), Step("mark_domain", "mark the domain as a server of Magnetar")]


def adoption_document(proposal: Proposal, request: AdoptionRequest | None = None) -> Document:
    """Return a description of a domain in the format of the v1 API: the agent's report, and a server. The server is
    *proposal*, the server that the domain would become; for an adopted domain, the existing server. *request*: the
    request to adopt the domain; its project and user are added to the proposed server."""
    candidate, row = proposal.candidate, proposal.candidate.row
    if row is not None and servers.is_adopted_server(row) and row.launched_at and row.host == candidate.host.name:
        return _adopted_report(candidate, row)
    report = candidate.report
    flavor = dict(proposal.flavor) if proposal.flavor else report["server"]["flavor"]
    server = {**report["server"], "name": proposal.name, "flavor": flavor, "ports": [
        {"mac": nic.mac, "network": nic.network["name"], "addresses": list(nic.addresses)} for nic in proposal.nics]}
    if request is not None:
        server.update(project_id=request.project_id, user_id=request.user_id)
    return _public_report({
        **report, "host": candidate.host.name, "server_name": proposal.name, "server": server,
        "status": HINDERED if proposal.hindrances else ADOPTABLE, "hindrances": [
            {"reason": reason, "message": message} for reason, message in proposal.hindrances]})


def _adopted_report(candidate: AdoptionCandidate, row: ServerRow) -> Document:
    """Return the description of an adopted domain in the format of the v1 API. *candidate*: the domain, as the host's
    agent reports it. *row*: its server."""
    ports = [{"mac": nic["mac"], "network": nic["network"], "addresses": [
        ip["ip_address"] for ip in nic["fixed_ips"]]} for nic in row.nics]
    server = {**candidate.report["server"], "name": row.name, "flavor": dict(row.flavor), "ports": ports,
              "project_id": row.project_id, "user_id": row.user_id}
    return _public_report({**candidate.report, "host": candidate.host.name, "server_name": row.name, "server": server,
                           "status": ADOPTED, "hindrances": []})


def _public_report(report: Document) -> Document:
    """Return the fields of *report* that answers show."""
    return {field.name: report.get(field.name) for field in Adoption.fields if "show" in field.on}
