# SPDX-License-Identifier: GPL-3.0-or-later
"""Floating IPs of the network service, with their port forwardings."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from magnetar_control.api.network import attributes
from magnetar_control.api.v1.servers.server import SERVERS
from magnetar_control.compute.caller import Caller
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import FloatingIp, NetworkPort
from magnetar_core.reconcile import Document, is_uuid, missing

from .networking import Networking, Row, external, reference, rows

#: What of a port forwarding is called as the service calls it.
FORWARDING = ("protocol", "external_port", "internal_port", "description")


class FloatingIps(Networking):
    """Neutron's have no name: one without is called as its address is."""

    kind, plural, body, held = FloatingIp, "floatingips", attributes.FLOATING_IP, "port_forwardings"
    references = ("network", "port", "server", "_ports")

    def shown_all(self, caller: Caller, found: Iterable[Row]) -> list[Document]:
        found = list(found)
        ids = sorted({one["port_id"] for one in found if one["port_id"]})
        owners = {one["id"]: one["device_id"] for one in (rows(caller, "ports", id=ids) if ids else ())
                  if one["device_owner"].startswith("compute:")}
        shown = super().shown_all(caller, found)
        return [{**one, "server": owners.get(one["port"])} for one in shown]

    def shown(self, row: Row) -> Document:
        return {"name": row["name"] or row["floating_ip_address"], "network": row["network_id"],
                "port": row["port_id"], "router": row["router_id"], "status": "ACTIVE" if row["port_id"] else "DOWN",
                **{name: row[name] for name in ("floating_ip_address", "fixed_ip_address")},
                "port_forwardings": [{
                    **{name: one[name] for name in FORWARDING}, "port": one["internal_port_id"],
                    "fixed_ip_address": one["internal_ip_address"]} for one in row["forwardings"]]}

    def find(self, caller: Caller, key: str) -> Document | None:
        """By uuid, name or address."""
        if found := super().find(caller, key):
            return found
        if is_uuid(key) or self.plural not in caller.cloud.services.network.resources:
            return None
        there = [one for one in self.mine(caller, rows(caller, self.plural, floating_ip_address=[key]))
                 if not one["name"]]
        return self.only(caller, self.shown_all(caller, there), key)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        before = have or {"server": None, "port": None, "fixed_ip_address": None}
        want = {"fixed_ip_address": None, **want, "network": external(caller, "network", want["network"])}
        if want.get("port_forwardings") is not None:
            given = [self._forwarding(caller, want, at) for at in range(len(want["port_forwardings"]))]
            want["port_forwardings"] = sorted(given, key=lambda one: (one["protocol"], one["external_port"]))
            want["_ports"] = [one["port"] for one in given]
        if want["server"]:
            want["server"] = self._server(caller, "server", want["server"])
        if want["port"]:
            want["port"] = reference(caller, NetworkPort, "ports", ("port", want["port"]),
                                     lambda row: row["project_id"] == caller.project)
        to, by = (want[name] != before[name] for name in ("server", "port"))
        if to and by and want["server"] and want["port"]:
            raise InvalidField("port", "must be left out where server is given, and the other way round", want["port"])
        if not (to or by):
            return want
        if want["fixed_ip_address"] == before["fixed_ip_address"]:
            want["fixed_ip_address"] = None
        if to and not (by and want["port"]):
            want["port"] = None
            if want["server"] and is_uuid(want["server"]) and is_uuid(want["network"]):
                want["port"], want["fixed_ip_address"] = self._reached(
                    caller, want["network"], ("server", want["server"]), want["fixed_ip_address"])
        elif want["port"] and is_uuid(want["port"]):
            (port,) = rows(caller, "ports", id=[want["port"]])
            want["server"] = port["device_id"] if port["device_owner"].startswith("compute:") else None
            want["fixed_ip_address"] = want["fixed_ip_address"] or _only(port)
        else:
            want["server"] = None
        return want

    def _forwarding(self, caller: Caller, want: Document, at: int) -> Document:
        """A port forwarding in its normal form."""
        path, given = f"port_forwardings[{at}]", want["port_forwardings"][at]
        server, port, address = given.get("server"), given.get("port"), given.get("fixed_ip_address")
        if (server is None) == (port is None):
            raise InvalidField(path, "must have server or port, and not both", given)
        if server is not None:
            port = server = self._server(caller, f"{path}.server", server)
            if is_uuid(server) and is_uuid(want["network"]):
                port, address = self._reached(caller, want["network"], (f"{path}.server", server), address)
        else:
            port = reference(caller, NetworkPort, "ports", (f"{path}.port", port),
                             lambda row: row["project_id"] == caller.project)
            if address is None and is_uuid(port):
                address = _only(rows(caller, "ports", id=[port])[0])
        return {"protocol": given.get("protocol", "tcp"), "external_port": given["external_port"],
                "internal_port": given.get("internal_port", given["external_port"]),
                "description": given.get("description") or "", "port": port, "fixed_ip_address": address}

    def _server(self, caller: Caller, field: str, key: str) -> str:
        row = SERVERS.row(caller, key)
        if row is None:
            missing(InvalidField(field, f"there is no server {key!r} in your project"), "server", key)
        return str(row.id) if row is not None else key

    def _reached(self, caller: Caller, network: str, server: tuple[str, str], address: str | None) -> tuple[str, str]:
        """The first port of the *server*, (field, uuid), to which a router leads from the network, and its address."""
        inside = {subnet for one in rows(caller, "routers") for subnet in one["inside"]
                  if one["gateway"] and one["gateway"]["network_id"] == network}
        for port in rows(caller, "ports", device_id=[server[1]]):
            for one in port["fixed_ips"]:
                if one["subnet_id"] in inside and ip_address(one["ip_address"]).version == 4 and address in (
                        None, one["ip_address"]):
                    return port["id"], one["ip_address"]
        raise InvalidField(server[0], "must have a port in a subnet from which a router leads to the network: give a "
                                      "router an interface there, and the network as its external_network", server[1])

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        if want.get("port_forwardings") is None:
            return None
        return [{**{name: one[name] for name in FORWARDING}, "internal_port_id": one["port"],
                 "internal_ip_address": one["fixed_ip_address"]} for one in want["port_forwardings"]]

    def values(self, want: Document, names: Iterable[str]) -> Document:
        found = super().values(want, set(names) - {"name", "network", "port", "server"})
        names = set(names)
        if "network" in names:
            found["floating_network_id"] = want["network"]
        if names & {"port", "server", "fixed_ip_address"}:
            found["port_id"] = want["port"]
            found["fixed_ip_address"] = want["fixed_ip_address"] if want["port"] else None
        return found

    def checked(self, want: Document) -> Document:
        return {**super().checked(want), "name": want["name"]}

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        return set() if have or want.get("floating_ip_address") else {"floating_ip_address"}


def _only(port: Row) -> str | None:
    """The address of IPv4 of a port that has one only."""
    fixed = [one["ip_address"] for one in port["fixed_ips"] if ip_address(one["ip_address"]).version == 4]
    return fixed[0] if len(fixed) == 1 else None
