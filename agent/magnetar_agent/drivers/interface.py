# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type interface_attachment: adds, changes and removes one NIC of a server, which is part of
the server's document."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent import servers
from magnetar_agent.servers import resolve
from magnetar_agent.servers.nics import virtual_functions
from magnetar_core.errors import Ambiguous, Immutable, InvalidField, NotFound
from magnetar_core.fields import SHOW
from magnetar_core.kinds import InterfaceAttachment, Server
from magnetar_core.plan import Result, Step, diff_documents
from magnetar_core.reconcile import check_mode, refuse_missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_core.operations import Operation

#: Fields that name the place where a NIC is plugged in: one of them is set.
PLUGS = ("network", "bridge", "port", "physical_network")
#: Namespace of the uuids of NICs: one for each server and MAC.
NAMESPACE = uuid.UUID("c1d9f6de-5a0b-5d7c-8b8e-52540093be11")
NIC_FIELDS = (*PLUGS, "card", "vnic_type", "trusted", "max_tx_rate", "min_tx_rate", "vlan", "mac", "model", "tag",
              "address", "port_security", "allowed_addresses", "security_groups", "told")
#: Fields that change while the guest keeps the NIC.
QUIET = frozenset(("address", "port_security", "allowed_addresses", "security_groups", "max_tx_rate",
                   "min_tx_rate"))
#: Default values of a NIC that carry no information; ``resolve.USUAL`` also has those of NICs that are devices of the
#: host.
USUAL: Mapping[str, Any] = {name: resolve.USUAL[name] for name in ("port_security", "allowed_addresses")}
#: Fields that identify a NIC, the most precise first.
MARKS = ("mac", *PLUGS)


class InterfaceDriver(DocumentDriver):
    """The resource driver of NICs. A NIC has no document (JSON file with the desired state) of its own: the NIC is an
    item of ``networks`` in the document of its server."""

    def __init__(self) -> None:
        super().__init__(InterfaceAttachment)

    def ensure(self, host: LocalHost, key: str, want: Fields | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Add the NIC with the fields *want* to its server, or change the NIC if the server has it. If *want* is
        ``None``, remove the NIC *key*: ``SERVER:MAC``, ``SERVER:NETWORK``, ``SERVER:BRIDGE``, ``SERVER:PORT`` or the
        NIC's uuid. *permissions*: the caller's options; ``on_immutable`` is the policy for changes of fixed fields
        (``fail``, ``ignore`` or ``recreate``). Return the steps and differences; with *dry_run*, the steps are only
        planned."""
        if want is None:
            return self._remove(host, key, dry_run, operation)
        requested: Fields = self.kind.check(want)
        requested_nic = {name: requested[name] for name in NIC_FIELDS if name in requested}
        plugs = sum(name in requested_nic for name in PLUGS)
        if (plugs > 1 and not virtual_functions.is_forwarded(requested_nic)) or not (plugs or "mac" in requested_nic):
            raise InvalidField("network", "or bridge, port or physical_network must say where the NIC goes, and one of "
                               "them only")
        server = host.documents.standing("server", requested["server"])
        warnings: list[str] = []
        if server is None:
            with check_mode(dry_run, warnings):
                refuse_missing(InvalidField("server", "must name a server of this host", requested["server"]), "server",
                               requested["server"])
            steps = [Step("record", "record the NIC"), Step("plug", "change the NICs"), Step("define", "define")]
            return Result(steps, diff_documents({}, requested), self._interface_document(None, requested_nic, []),
                          warnings)

        def revised(document: Document) -> Fields:
            return {"networks": _with(document, requested_nic, str(permissions["on_immutable"]), warnings)}

        done = host.revise(Server, server.id, revised, dry_run, operation)
        old_nics = {nic["mac"]: nic for nic in server.want["networks"]}
        nics = (done.resource or {}).get("networks") or []
        matching_nics = _matching(nics, requested_nic) or [nic for nic in nics if nic["mac"] not in old_nics]
        shown = self._interface_document(server, matching_nics[-1], self._addresses(
            host, matching_nics[-1])) if matching_nics else None
        old = old_nics.get(matching_nics[-1]["mac"]) if matching_nics else None
        changes = diff_documents(old, {**old, **requested_nic}) if old else diff_documents(
            {}, {"server": requested["server"], **requested_nic})
        return Result(done.steps, changes if done.steps else [], shown, [*warnings, *done.warnings])

    def _remove(self, host: LocalHost, key: str, dry_run: bool, operation: Operation) -> Result:
        server, nic = self._find(host, key)
        if server is None or nic is None:
            return Result([], [], None)
        shown = self._interface_document(server, nic, self._addresses(host, nic))

        def revised(document: Document) -> Fields:
            return {"networks": [other_nic for other_nic in document.want["networks"]
                                 if other_nic["mac"] != nic["mac"]]}

        done = host.revise(Server, server.id, revised, dry_run, operation)
        return Result(done.steps, diff_documents({"server": server.name, **nic}, {}), shown, done.warnings)

    def one(self, host: LocalHost, key: str) -> Fields:
        """Return the NIC *key* (``SERVER:MAC``, ``SERVER:NETWORK``, ``SERVER:BRIDGE``, ``SERVER:PORT`` or its uuid) as
        API responses show it. Raises ``NotFound``."""
        server, nic = self._find(host, key)
        if server is None or nic is None:
            raise NotFound(f"There is no NIC {key!r} on this host. Its key is SERVER:MAC, SERVER:NETWORK, "
                           "SERVER:BRIDGE or SERVER:PORT.", kind=self.kind.noun, key=key)
        return self._interface_document(server, nic, self._addresses(host, nic))

    def every(self, host: LocalHost) -> list[Fields]:
        """Return all NICs of all servers of this host, as API responses show them."""
        look = servers.DomainsView(host, {})
        return [self._interface_document(server, nic, _of(nic, look.addresses(server.want["networks"])))
                for server in host.documents.list("server") for nic in server.want["networks"]]

    def _find(self, host: LocalHost, key: str) -> tuple[Document | None, Fields | None]:
        for server in host.documents.list("server"):
            for nic in server.want["networks"]:
                if key.lower() == nic_uuid(server.id, nic["mac"]):
                    return server, nic
        for at in [at for at, letter in enumerate(key) if letter == ":"]:
            server_document = host.documents.find("server", key[:at])
            if server_document is None:
                continue
            mark = key[at + 1:]
            nics = next((nics for name in MARKS if (nics := [n for n in server_document.want["networks"]
                                                             if n.get(name) in
                                                             (mark, mark.lower())])), [])
            if len(nics) > 1:
                macs = ", ".join(nic["mac"] for nic in nics)
                raise Ambiguous(
                    f"Server {server_document.name!r} has {len(nics)} NICs there: {macs}. Name one by its MAC.")
            return server_document, nics[0] if nics else None
        return None, None

    def _addresses(self, host: LocalHost, nic: Fields) -> list[Fields]:
        return _of(nic, servers.DomainsView(host, {}).addresses([nic]))

    def _interface_document(self, server: Document | None, nic: Fields, addresses: list[Fields]) -> Fields:
        mac = nic.get("mac", "")
        values = {**(resolve.USUAL if nic.get("physical_network") else USUAL), **nic,
                  "id": nic_uuid(server.id, mac) if server else None, "server": server.id if server else None,
                  "server_name": server.name if server else "",
                  "addresses": addresses, "model": nic.get("model", "virtio")}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}


def nic_uuid(server: str, mac: str) -> str:
    """Return the uuid of the NIC with the MAC address *mac* of the server with the uuid *server*. The uuid is computed
    from *server* and *mac* (uuid5), so the same NIC always has the same uuid."""
    return str(uuid.uuid5(NAMESPACE, f"{server}:{mac}"))


def _of(nic: Fields, addresses: dict[str, list[Fields]]) -> list[Fields]:
    return [address for nic_addresses in addresses.values() for address in nic_addresses
            if address["mac"] == nic["mac"]]


def _matching(nics: list[Fields], requested_nic: Fields) -> list[Fields]:
    """Return the items of *nics* with the same MAC as *requested_nic*. If *requested_nic* has no MAC, return the items
    that have the same network, bridge, port and physical network (all four)."""
    if "mac" in requested_nic:
        return [nic for nic in nics if nic["mac"] == requested_nic["mac"]]
    return [nic for nic in nics if all(nic.get(name) == requested_nic.get(name) for name in PLUGS)]


def _with(document: Document, requested_nic: Fields, policy: str, warnings: list[str]) -> list[Fields]:
    """Return the list of the server's NICs, with *requested_nic* added or, if the server has it already, changed.
    *policy* decides about a change that needs a new NIC: ``fail`` raises ``Immutable``; ``ignore`` changes nothing and
    appends a text to *warnings*; ``recreate`` replaces the NIC."""
    nics: list[Fields] = document.want["networks"]
    matching_nics = _matching(nics, requested_nic)
    if not matching_nics:
        if not any(name in requested_nic for name in PLUGS):
            raise InvalidField("network", "or bridge, port or physical_network must say where the new NIC goes")
        return [*nics, requested_nic]
    old = matching_nics[0]
    current = {**resolve.USUAL, **old}
    differing = [name for name in requested_nic if requested_nic[name] != current.get(name)]
    if not differing:
        return nics
    if QUIET.issuperset(differing):  # the guest keeps the NIC
        return [{**old, **requested_nic} if nic is old else nic for nic in nics]
    words = ", ".join(f"{name} cannot change from {old.get(name)!r} to {requested_nic[name]!r}" for name in differing)
    if policy == "fail":
        raise Immutable(f"The NIC {old['mac']} of server {document.name!r}: {words}. Set on_immutable to recreate (the "
                        "guest sees it go and come) or to ignore.", fields=differing)
    if policy == "ignore":
        warnings.append(f"The NIC {old['mac']} of server {document.name!r}: {words}; ignored, as on_immutable says.")
        return nics
    plugs = {} if set(PLUGS) & set(requested_nic) else {n: old[n] for n in (*PLUGS, "vlan") if n in old}
    new = {"mac": old["mac"], "model": old["model"], **plugs, **requested_nic}
    return [new if nic is old else nic for nic in nics]
