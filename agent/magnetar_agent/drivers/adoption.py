# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of adoption: domains of other programs, and the servers that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.reconcile import without_fields_of_clouds
from magnetar_agent.servers import DomainsView
from magnetar_agent.servers.adoption import candidates, hindrances, takeover
from magnetar_agent.servers.adoption.adopted import is_adopted, new_server_fields
from magnetar_agent.servers.adoption.disk_chains import ChainReader
from magnetar_core.errors import Conflict, Immutable, InvalidField, NotFound
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Adoption, Server
from magnetar_core.kinds.host import ADOPTABLE, ADOPTED, HINDERED
from magnetar_core.plan import Result, Step, diff_documents
from magnetar_core.reconcile import checked_request, forget_step, record_step

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.servers.adoption.candidates import DomainCandidate, Users
    from magnetar_core.operations import Operation

#: Fields of a server in the report.
SERVER_FIELDS = ("name", "flavor", "networks", "machine", "virt_type", "power", "resume_on_host_boot")


class AdoptionDriver(DocumentDriver):
    """The driver of adoptions, which turn existing libvirt domains into servers. Only the server is stored, not the
    adoption."""

    def __init__(self) -> None:
        super().__init__(Adoption)
        self.reader = ChainReader()

    def ensure(self, host: LocalHost, key: str, want: Fields | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Turn the libvirt domain *key* (name or uuid) into a server. If *want* is ``None``, remove this server, but
        not its domain. Return the result. Raises ``NotFound``, or ``Conflict`` with the reasons against the adoption.
        """
        if want is None:
            return self._release(host, key, dry_run, operation)
        requested = checked_request(self.kind, key, without_fields_of_clouds(self.kind, want))
        domains = host.hypervisor.domains()
        domain = _find_domain(domains, key)
        if requested.get("name", domain.name) != domain.name:
            raise InvalidField("name", f"differs from the domain's name {domain.name!r}, which stays",
                               requested["name"])
        document = host.documents.get(Server.noun, domain.uuid)
        if is_adopted(document):
            assert document is not None
            return self._unchanged(host, domain, document, requested, permissions, dry_run, operation)
        if domain.owned and not domain.adopted:
            raise Conflict(f"The domain {domain.name!r} was made by Magnetar. It is no domain to adopt.")
        return self._adopt(host, domains, domain, requested.get("server_name") or domain.name, dry_run)

    def _adopt(self, host: LocalHost, domains: Mapping[str, Domain], domain: Domain, server_name: str,
               dry_run: bool) -> Result:
        read = candidates.read_candidates(host, self.reader, [domain])
        if not read:
            raise _no_domain(domain.uuid)
        candidate = read[0]
        users = candidates.disk_users(host, domains)
        steps = [record_step(Server, server_name), Step("mark_domain", "mark the domain as a server of Magnetar")]
        before, after = {"status": ADOPTABLE}, {"status": ADOPTED, "server_name": server_name}
        if dry_run:
            takeover.check_unhindered(host, candidate, server_name, users)
            shown = self._report(host, candidate, None, [])
            shown.update(status=ADOPTED, server_name=server_name, server=_server_part(
                new_server_fields(candidate, server_name)))
            return Result(steps, diff_documents(before, after), shown)
        document = takeover.adopt_domain(host, candidate, server_name, users)
        if document is None:
            return Result([], [], self.one(host, domain.uuid))
        return Result(steps, diff_documents(before, after), self._report(host, candidate, document, []))

    def _unchanged(self, host: LocalHost, domain: Domain, document: Document, requested: Fields,
                   permissions: Mapping[str, Any], dry_run: bool, operation: Operation) -> Result:
        """Return the result for a domain that is already adopted. Completes an adoption that a failure of libvirt has
        interrupted. *document*: the stored server. *requested*: the requested fields."""
        warnings, name = list[str](), requested.get("server_name", document.name)
        if name != document.name:
            text = (f"server_name: the domain {domain.name!r} is adopted as server {document.name!r}. Rename it with "
                    "the module server.")
            if permissions.get("on_immutable") != "ignore":
                raise Immutable(text, fields=["server_name"])
            warnings.append(text)
        steps: list[Step] = []
        if document.state.get("unfinished"):
            steps = host.revise(Server, document.id, lambda _document: {}, dry_run, operation).steps
        return Result(steps, [], self.one(host, domain.uuid), warnings)

    def _release(self, host: LocalHost, key: str, dry_run: bool, operation: Operation) -> Result:
        document = _find_adopted(host, key)
        if document is None:
            server = host.documents.peek_by_key(Server.noun, key)
            foreign = any(key in (domain.name, domain.uuid) for domain in host.hypervisor.domains().values()
                          if not domain.owned)
            if server is not None and not is_adopted(server) and not foreign:
                raise takeover.made_by_agent(server.name)
            return Result([], [], None)
        shown = self._shown_adopted(host, document)
        steps = [Step("unmark_domain", "remove Magnetar's mark from the domain, which stays as it is"),
                 forget_step(Server, document.name)]
        if not dry_run:
            takeover.release_adopted(host, document.id, operation)
        return Result(steps, diff_documents({"status": ADOPTED, "server_name": document.name}, {"status": ADOPTABLE}),
                      shown)

    def one(self, host: LocalHost, key: str) -> Fields:
        """Return a report about the domain *key*: the server that it has become, or would become, or the reasons
        against an adoption. Raises ``NotFound``."""
        domains = host.hypervisor.domains()
        document = _find_adopted(host, key)
        if document is not None and document.id not in domains:
            return self._shown_adopted(host, document)
        domain = domains[document.id] if document is not None else _find_domain(domains, key)
        reports = self._reports(host, domains, [domain])
        if not reports:
            raise _no_domain(key)
        return reports[0]

    def every(self, host: LocalHost) -> list[Fields]:
        """Return a report about each domain that was defined by other programs, adopted or not, sorted by name."""
        domains = host.hypervisor.domains()
        reports = self._reports(host, domains, domains.values())
        gone = [self._shown_adopted(host, document) for document in host.documents.list(Server.noun)
                if is_adopted(document) and document.id not in domains]
        return sorted(reports + gone, key=lambda report: (report["name"], report["id"]))

    def _reports(self, host: LocalHost, domains: Mapping[str, Domain], wanted: Any) -> list[Fields]:
        foreign = [domain for domain in wanted if domain.adopted or not domain.owned]
        users, view = candidates.disk_users(host, domains), DomainsView(host, {})
        return [self._reported(host, candidate, users, view)
                for candidate in candidates.read_candidates(host, self.reader, foreign)]

    def _reported(self, host: LocalHost, candidate: DomainCandidate, users: Users, view: DomainsView) -> Fields:
        document = host.documents.get(Server.noun, candidate.domain.uuid)
        if is_adopted(document):
            return self._report(host, candidate, document, [], view)
        return self._report(host, candidate, None, hindrances.find_hindrances(
            host, candidate, candidate.domain.name, users), view)

    def _report(self, host: LocalHost, candidate: DomainCandidate, document: Document | None, found: list[Fields],
                view: DomainsView | None = None) -> Fields:
        """Return the report about a domain, as API responses show it. *document*: the stored server if the domain is
        adopted. *found*: the reasons against an adoption. *view*: reads the DHCP leases, once for several reports."""
        domain = candidate.domain
        fields = new_server_fields(candidate, domain.name if document is None else document.name)
        values = {
            "id": domain.uuid, "name": domain.name, "server_name": fields["name"], "power_state": domain.state,
            "autostart": candidate.definition.autostart, "host": host.name,
            "addresses": _leased_addresses(view or DomainsView(host, {}), fields["networks"]),
            "status": ADOPTED if document is not None else HINDERED if found else ADOPTABLE,
            "server": _server_part(fields if document is None else {**document.want, "networks": fields["networks"]}),
            "disks": [_disk_part(disk, candidate) for disk in candidate.parts.disks],
            "stays": [{"part": part, "value": value} for part, value in candidate.parts.stays],
            "hindrances": found}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}

    def _shown_adopted(self, host: LocalHost, document: Document) -> Fields:
        """Return the report about the domain of an adopted server, as API responses show it. *document*: the stored
        server, which is the only source of the report if the domain no longer exists."""
        domain = host.hypervisor.domain(document.id)
        read = candidates.read_candidates(host, self.reader, [domain]) if domain is not None else []
        if read:
            return self._report(host, read[0], document, [])
        note = document.state["adopted"]
        values = {"id": document.id, "name": note["domain"], "server_name": document.name, "status": ADOPTED,
                  "host": host.name, "addresses": {},
                  "power_state": "missing", "autostart": False, "server": _server_part(document.want),
                  "disks": [{"path": path} for path in note["disks"]], "stays": [], "hindrances": []}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}


def _leased_addresses(view: DomainsView, networks: list[Fields]) -> dict[str, list[str]]:
    """Return the addresses that libvirt has leased to the NICs *networks*, by MAC."""
    by_mac: dict[str, list[str]] = {}
    for leases in view.addresses(networks).values():
        for lease in leases:
            by_mac.setdefault(lease["mac"], []).append(lease["addr"])
    return by_mac


def _server_part(fields: Fields) -> Fields:
    return {name: fields.get(name) for name in SERVER_FIELDS}


def _disk_part(disk: Any, candidate: DomainCandidate) -> Fields:
    layers = candidate.chains[disk.device].layers
    return {"device": disk.device, "bus": disk.bus, "kind": disk.kind, "format": disk.format,
            "path": layers[0].path if layers else None, "size": layers[0].size if layers else 0,
            "readonly": disk.readonly, "shareable": disk.shareable,
            "backing": [{"path": layer.path, "format": layer.format} for layer in layers[1:]]}


def _find_domain(domains: Mapping[str, Domain], key: str) -> Domain:
    """Return the domain with the uuid or name *key*. Raises ``NotFound``. *domains*: by uuid."""
    if key.lower() in domains:
        return domains[key.lower()]
    for domain in domains.values():
        if domain.name == key:
            return domain
    raise _no_domain(key)


def _no_domain(key: str) -> NotFound:
    return NotFound(f"There is no libvirt domain {key!r} on this host. List the domains that can be adopted with the "
                    "module adopt_info.", kind=Adoption.noun, key=key)


def _find_adopted(host: LocalHost, key: str) -> Document | None:
    """Return the stored server that was adopted from the domain with the uuid or name *key*; ``None`` if there is none.
    """
    document = host.documents.get(Server.noun, key.lower())
    if document is not None:
        return document if is_adopted(document) else None
    domains = host.hypervisor.domains()
    for adopted in host.documents.peek(Server.noun):
        if is_adopted(adopted):
            domain = domains.get(adopted.id)
            if key == (domain.name if domain is not None else adopted.state["adopted"]["domain"]):
                return host.documents.get(Server.noun, adopted.id)
    return None
