# SPDX-License-Identifier: GPL-3.0-or-later
"""Proposals: the server of a cloud that a libvirt domain would become, and what hinders its adoption.

Nothing is changed here. A proposal of a list needs no queries of its own: ``read_offers`` reads what all of them need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import HostView
from magnetar_control.documents import FlavorOfServer, PortRequest
from magnetar_control.services import Context, Page
from magnetar_control.services.network.ports.nics import host_name
from magnetar_control.store.accounts import flavors
from magnetar_control.store.accounts.flavors import FlavorRow
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, NotFound

#: A limit above any number of flavors.
ALL = 2**31 - 1
MEMBER, ADMIN = frozenset(("member", "reader")), frozenset(("admin", "member", "reader"))
Hindrance = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class AdoptionRequest:
    """A request to adopt a libvirt domain: a domain that another program has defined becomes a server of the cloud.
    *project_id*, *user_id*: the owner of the server. *name*: the server's name (default: the domain's name). *flavor*:
    name or id of the server's flavor (default: a flavor of the domain's size). *make_flavor*: create a flavor of the
    domain's size if the project has none. *networks*: the cloud's network (name or id) for each bridge or libvirt
    network of the domain. *addresses*: fixed IPs of NICs, by MAC (default: the DHCP leases on the host).
    *without_ports*: the server gets no ports."""

    project_id: str
    user_id: str
    name: str | None = None
    flavor: str | None = None
    make_flavor: bool = False
    networks: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    without_ports: bool = False


class AdoptionCandidate(NamedTuple):
    """A libvirt domain that may be adopted. *host*: the domain's host. *report*: the description of the domain by the
    host's agent. *row*: the row of the cloud's server with the domain's uuid; ``None`` if there is no such server."""

    host: HostView
    report: Document
    row: ServerRow | None


class Offers(NamedTuple):
    """The flavors and networks that a project may use. The networks include the fields that only administrators see."""

    flavors: Sequence[FlavorRow]
    networks: Documents


class ProposedNic(NamedTuple):
    """A NIC of a libvirt domain, with the network and the addresses of the port that an adoption would give to this
    NIC."""

    mac: str
    network: Document
    addresses: Sequence[str]


class Proposal(NamedTuple):
    """The server that a domain would become by an adoption. *flavor*: ``None`` if no flavor is suitable.
    *makes_flavor*: the flavor does not exist yet, and the adoption creates it. *hindrances*: the reasons against the
    adoption, as (reason, message); empty if the domain can be adopted."""

    candidate: AdoptionCandidate
    name: str
    flavor: FlavorOfServer | None
    makes_flavor: bool
    nics: Sequence[ProposedNic]
    hindrances: Sequence[Hindrance]


def owner_context(request: AdoptionRequest, roles: frozenset[str] = ADMIN) -> Context:
    """Return a context with the user and the project of *request*, which will own the adopted server, and with *roles*
    (default: those of an administrator)."""
    return Context(request.user_id, request.project_id, roles)


def read_offers(caller: Caller, request: AdoptionRequest) -> Offers:
    """Return the flavors and networks that the project of *request* may use."""
    flavor_rows = caller.fetch(flavors.fetch_flavor_rows, ALL, "flavorid", descending=False,
                               project=request.project_id, public=True, least_ram=None, least_disk=None, name=None,
                               marker=None)
    resources = caller.cloud.services.network.resources["networks"]
    ids = [network["id"] for network in resources.list(owner_context(request, MEMBER))]
    networks = resources.list(owner_context(request), Page(filters={"id": ids})) if ids else []
    return Offers(flavor_rows or [], networks)


def propose_server(candidate: AdoptionCandidate, request: AdoptionRequest, offers: Offers) -> Proposal:
    """Return the server that the domain *candidate* would become if it were adopted as *request* demands, with the
    reasons against the adoption. *offers*: the flavors and networks that the project may use. The network service is
    not asked: ``check_ports`` does that."""
    report, hindrances = candidate.report, list(_of_host(candidate))
    name = request.name or report["name"]
    flavor, makes, missing = _choose_flavor(report["server"]["flavor"], request, offers.flavors)
    proposed_nics, unknown = _choose_networks(report, request, offers.networks)
    return Proposal(candidate, name, flavor, makes, proposed_nics, [*hindrances, *missing, *unknown])


def _of_host(candidate: AdoptionCandidate) -> Iterator[Hindrance]:
    report, row = candidate.report, candidate.row
    for hindrance in report["hindrances"]:
        yield hindrance["reason"], hindrance["message"]
    if row is not None and not servers.is_adopted_server(row):
        yield "name", (f"Its uuid belongs to server {row.name!r} of this cloud. Define the domain with another uuid, "
                       "or delete that server.")
    elif row is not None and row.host not in (None, candidate.host.name):
        yield "host", (f"It is a server of this cloud on host {row.host} already. Release it first (state released), "
                       "then adopt it here.")


def _choose_flavor(size: Document, request: AdoptionRequest, rows: Sequence[FlavorRow]) -> tuple[
        FlavorOfServer | None, bool, list[Hindrance]]:
    """Return (flavor for a domain of *size*, whether this flavor must be created, reasons against the adoption). The
    flavor is ``None`` if none is suitable. *size*: the domain's vcpus, ram, disk, ephemeral and swap. *rows*: the
    flavors that the project may use."""
    if request.flavor is not None:
        named = [row for row in rows if request.flavor in (row.id, row.name)]
        if not named:
            return None, False, [("flavor", f"flavor: project {request.project_id} may use no flavor "
                                  f"{request.flavor!r}.")]
        row = named[0]
        if row.vcpus < size["vcpus"] or row.ram < size["ram"]:
            return None, False, [("flavor", f"flavor: {row.name} has {row.vcpus} CPUs and {row.ram} MiB, and the "
                                  f"domain has {size['vcpus']} CPUs and {size['ram']} MiB. Name one that is as large.")]
        return flavor_of_row(row), False, []
    equal = [row for row in rows if all(getattr(row, name) == size[name] for name in (
        "vcpus", "ram", "disk", "ephemeral", "swap")) and not row.extra_specs]
    if equal:
        return flavor_of_row(min(equal, key=lambda row: not row.is_public)), False, []
    if request.make_flavor:
        name = "adopted-{vcpus}-{ram}-{disk}".format(**size)
        return {"id": name, "name": name, "vcpus": size["vcpus"], "ram": size["ram"], "disk": size["disk"],
                "ephemeral": size["ephemeral"], "swap": size["swap"], "extra_specs": {}}, True, []
    return None, False, [("flavor", "No flavor that the project may use has {vcpus} CPUs, {ram} MiB of memory and "
                          "{disk} GiB of disk. Name a larger one with flavor, or have one made with "
                          "make_flavor.".format(**size))]


def flavor_of_row(row: FlavorRow) -> FlavorOfServer:
    """Return the flavor *row* as the fields that a server's row stores."""
    return {"id": row.id, "name": row.name, "vcpus": row.vcpus, "ram": row.ram, "disk": row.disk,
            "ephemeral": row.ephemeral, "swap": row.swap, "extra_specs": row.extra_specs}


def _choose_networks(report: Document, request: AdoptionRequest, networks: Documents) -> tuple[
        list[ProposedNic], list[Hindrance]]:
    """Return two lists: the NICs of a domain with the cloud's network for each, and the reasons against the adoption.
    *report*: the domain, as its host's agent reports it. *networks*: the networks that the project may use."""
    proposed: list[ProposedNic] = []
    hindrances: list[Hindrance] = []
    if request.without_ports:
        return proposed, hindrances
    for nic in report["server"]["networks"]:
        where, kind = (nic["bridge"], "bridge") if nic.get("bridge") else (nic["network"], "libvirt network")
        wish = request.networks.get(where)
        fitting = [network for network in networks if (
            wish in (network["id"], network["name"]) if wish else where in (network.get("bridge"), host_name(
                network["id"])))]
        if len(fitting) == 1:
            leased = (report.get("addresses") or {}).get(nic["mac"]) or ()
            proposed.append(ProposedNic(nic["mac"], fitting[0], request.addresses.get(nic["mac"], leased)))
        elif wish:
            hindrances.append(("network", f"networks: project {request.project_id} may use "
                               f"{len(fitting) or 'no'} networks {wish!r}. Name one by its id."))
        else:
            hindrances.append(("network", f"NIC {nic['mac']} is on the {kind} {where}, which is no network of this "
                               f"cloud that the project may use. Name one for it (networks: {{{where}: NETWORK}}), or "
                               "adopt the domain without_ports."))
    return proposed, hindrances


def check_ports(caller: Caller, request: AdoptionRequest, proposal: Proposal) -> tuple[list[PortRequest],
                                                                                      list[Hindrance]]:
    """Check the NICs of *proposal* with the network service. Return two lists: the requests for their ports, and the
    reasons against the adoption."""
    port_requests: list[PortRequest] = []
    hindrances: list[Hindrance] = []
    network = caller.cloud.services.network
    for nic in proposal.nics:
        try:
            plain = [{"uuid": nic.network["id"], "fixed_ip": address} for address in nic.addresses] or [
                {"uuid": nic.network["id"]}]
            (first, *_others) = network.check_requested(owner_context(request), plain, external=True)
        except (InvalidRequest, Conflict, Forbidden, NotFound) as error:
            hindrances.append(("network", f"NIC {nic.mac}: {error.message} Give its addresses (addresses: {{{nic.mac}: "
                               "[ADDRESS]}}), name another network, or adopt the domain without_ports."))
            continue
        if first.get("by_engine"):
            hindrances.append(("network", f"NIC {nic.mac}: network {nic.network['name']} is connected by OVN, which "
                               "does not reach a NIC that libvirt has connected. Name another network, or adopt the "
                               "domain without_ports."))
            continue
        port_requests.append({**first, "mac": nic.mac, "addresses": [str(ip_address(address))
                                                                     for address in nic.addresses]})
    return port_requests, [*hindrances, *_taken_macs(caller, request, proposal)]


def _taken_macs(caller: Caller, request: AdoptionRequest, proposal: Proposal) -> Iterator[Hindrance]:
    macs = [nic.mac for nic in proposal.nics]
    if macs:
        for port in caller.cloud.services.network.resources["ports"].list(
                owner_context(request), Page(filters={"mac_address": macs})):
            yield "mac", (f"The MAC address {port['mac_address']} belongs to port {port['id']} of this cloud. Delete "
                          "that port, or change the MAC address of the domain's NIC.")
