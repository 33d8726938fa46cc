# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type floating_ip: floating IPs of the network service, with their port forwardings."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from magnetar_control.api.network import attributes
from magnetar_control.api.v1.servers.server import SERVERS
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import FloatingIp, NetworkPort
from magnetar_core.reconcile import is_uuid_key, refuse_missing

from .networking import Networking, Row, resolve_external_network, resolve_reference, visible_rows

#: Fields of a port forwarding with the same name in the service.
FORWARDING = ("protocol", "external_port", "internal_port", "description")


class FloatingIps(Networking):
    """The driver of the v1 API for floating IPs. Neutron's floating IPs have no name; here a user may set one, and
    otherwise the address is the name."""

    kind, plural, body, held = FloatingIp, "floatingips", attributes.FLOATING_IP, "port_forwardings"
    references = ("network", "port", "server", "_ports")

    def as_documents(self, caller: Caller, service_rows: Iterable[Row]) -> list[Document]:
        service_rows = list(service_rows)
        ids = sorted({row["port_id"] for row in service_rows if row["port_id"]})
        owners = {port["id"]: port["device_id"] for port in (visible_rows(caller, "ports", id=ids) if ids else ())
                  if port["device_owner"].startswith("compute:")}
        shown = super().as_documents(caller, service_rows)
        return [{**floating_ip, "server": owners.get(floating_ip["port"])} for floating_ip in shown]

    def as_document(self, row: Row) -> Document:
        return {"name": row["name"] or row["floating_ip_address"], "network": row["network_id"],
                "port": row["port_id"], "router": row["router_id"], "status": "ACTIVE" if row["port_id"] else "DOWN",
                **{name: row[name] for name in ("floating_ip_address", "fixed_ip_address")},
                "port_forwardings": [{
                    **{name: forwarding[name] for name in FORWARDING}, "port": forwarding["internal_port_id"],
                    "fixed_ip_address": forwarding["internal_ip_address"]} for forwarding in row["forwardings"]]}

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the project's floating IP with the uuid, name or address *key*; ``None`` if there is none. A floating
        IP with a name cannot be found by its address."""
        if floating_ip := super().find(caller, key):
            return floating_ip
        if is_uuid_key(key) or self.plural not in caller.cloud.services.network.resources:
            return None
        unnamed_rows = [row for row in self.project_rows(caller, visible_rows(caller, self.plural,
                                                                              floating_ip_address=[key]))
                        if not row["name"]]
        return self.only(caller, self.as_documents(caller, unnamed_rows), key)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        current = have or {"server": None, "port": None, "fixed_ip_address": None}
        want = {"fixed_ip_address": None, **want, "network": resolve_external_network(caller, "network",
                                                                                      want["network"])}
        if want.get("port_forwardings") is not None:
            forwardings = [self._forwarding(caller, want, at) for at in range(len(want["port_forwardings"]))]
            want["port_forwardings"] = sorted(forwardings, key=lambda forwarding: (forwarding["protocol"],
                                                                                   forwarding["external_port"]))
            want["_ports"] = [forwarding["port"] for forwarding in forwardings]
        if want["server"]:
            want["server"] = self._server(caller, "server", want["server"])
        if want["port"]:
            want["port"] = resolve_reference(caller, NetworkPort, "ports", ("port", want["port"]),
                                             lambda row: row["project_id"] == caller.project)
        to, by = (want[name] != current[name] for name in ("server", "port"))
        if to and by and want["server"] and want["port"]:
            raise InvalidField("port", "must be left out where server is given, and the other way round", want["port"])
        if not (to or by):
            return want
        if want["fixed_ip_address"] == current["fixed_ip_address"]:
            want["fixed_ip_address"] = None
        if to and not (by and want["port"]):
            want["port"] = None
            if want["server"] and is_uuid_key(want["server"]) and is_uuid_key(want["network"]):
                want["port"], want["fixed_ip_address"] = self._reached(
                    caller, want["network"], ("server", want["server"]), want["fixed_ip_address"])
        elif want["port"] and is_uuid_key(want["port"]):
            (port,) = visible_rows(caller, "ports", id=[want["port"]])
            want["server"] = port["device_id"] if port["device_owner"].startswith("compute:") else None
            want["fixed_ip_address"] = want["fixed_ip_address"] or _only(port)
        else:
            want["server"] = None
        return want

    def _forwarding(self, caller: Caller, want: Document, at: int) -> Document:
        """Return the port forwarding with the index *at* in the desired state *want*, in normal form and with the uuid
        of its Neutron port. Raises ``InvalidField``."""
        path, forwarding = f"port_forwardings[{at}]", want["port_forwardings"][at]
        server, port, address = forwarding.get("server"), forwarding.get("port"), forwarding.get("fixed_ip_address")
        if (server is None) == (port is None):
            raise InvalidField(path, "must have server or port, and not both", forwarding)
        if server is not None:
            port = server = self._server(caller, f"{path}.server", server)
            if is_uuid_key(server) and is_uuid_key(want["network"]):
                port, address = self._reached(caller, want["network"], (f"{path}.server", server), address)
        else:
            port = resolve_reference(caller, NetworkPort, "ports", (f"{path}.port", port),
                                     lambda row: row["project_id"] == caller.project)
            if address is None and is_uuid_key(port):
                address = _only(visible_rows(caller, "ports", id=[port])[0])
        return {"protocol": forwarding.get("protocol", "tcp"), "external_port": forwarding["external_port"],
                "internal_port": forwarding.get("internal_port", forwarding["external_port"]),
                "description": forwarding.get("description") or "", "port": port, "fixed_ip_address": address}

    def _server(self, caller: Caller, field: str, key: str) -> str:
        row = SERVERS.row(caller, key)
        if row is None:
            refuse_missing(InvalidField(field, f"there is no server {key!r} in your project"), "server", key)
        return str(row.id) if row is not None else key

    def _reached(self, caller: Caller, network: str, server: tuple[str, str], address: str | None) -> tuple[str, str]:
        """Find a port of a server that a floating IP of the external network *network* (a uuid) can be bound to: a port
        with an IPv4 address in a subnet that a router connects with *network*. Return the port's uuid and this address.
        *address*: accept only this address; ``None``: any. *server*: the field of the request that names the server,
        and the server's uuid. If there is no such port, raise ``InvalidField`` for this field."""
        inside = {subnet for router in visible_rows(caller, "routers") for subnet in router["inside"]
                  if router["gateway"] and router["gateway"]["network_id"] == network}
        for port in visible_rows(caller, "ports", device_id=[server[1]]):
            for fixed_ip in port["fixed_ips"]:
                if fixed_ip["subnet_id"] in inside and ip_address(fixed_ip["ip_address"]).version == 4 and address in (
                        None, fixed_ip["ip_address"]):
                    return port["id"], fixed_ip["ip_address"]
        raise InvalidField(server[0], "must have a port in a subnet from which a router leads to the network: give a "
                                      "router an interface there, and the network as its external_network", server[1])

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        if want.get("port_forwardings") is None:
            return None
        return [{**{name: forwarding[name] for name in FORWARDING}, "internal_port_id": forwarding["port"],
                 "internal_ip_address": forwarding["fixed_ip_address"]} for forwarding in want["port_forwardings"]]

    def values(self, want: Document, names: Iterable[str]) -> Document:
        values = super().values(want, set(names) - {"name", "network", "port", "server"})
        names = set(names)
        if "network" in names:
            values["floating_network_id"] = want["network"]
        if names & {"port", "server", "fixed_ip_address"}:
            values["port_id"] = want["port"]
            values["fixed_ip_address"] = want["fixed_ip_address"] if want["port"] else None
        return values

    def checked(self, want: Document) -> Document:
        return {**super().checked(want), "name": want["name"]}

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        return set() if have or want.get("floating_ip_address") else {"floating_ip_address"}


def _only(port: Row) -> str | None:
    """Return the IPv4 address of *port* if the port has exactly one IPv4 address, otherwise ``None``."""
    fixed = [fixed_ip["ip_address"] for fixed_ip in port["fixed_ips"] if ip_address(fixed_ip["ip_address"]).version
             == 4]
    return fixed[0] if len(fixed) == 1 else None
