# SPDX-License-Identifier: GPL-3.0-or-later
"""Floating IPs of the network service."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import FloatingIp, NetworkPort
from magnetar_core.reconcile import Document, is_uuid, missing

from .networking import Networking, Row, external, reference, rows
from .server import SERVERS


class FloatingIps(Networking):
    """Neutron's have no name: one without is called as its address is."""

    kind, plural, body, references = FloatingIp, "floatingips", attributes.FLOATING_IP, ("network", "port", "server")

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
                **{name: row[name] for name in ("floating_ip_address", "fixed_ip_address")}}

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
        if want["server"]:
            want["server"] = self._server(caller, want["server"])
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
                self._reach(caller, want)
        elif want["port"] and is_uuid(want["port"]):
            (port,) = rows(caller, "ports", id=[want["port"]])
            want["server"] = port["device_id"] if port["device_owner"].startswith("compute:") else None
            fixed = [one["ip_address"] for one in port["fixed_ips"] if ip_address(one["ip_address"]).version == 4]
            want["fixed_ip_address"] = want["fixed_ip_address"] or (fixed[0] if len(fixed) == 1 else None)
        else:
            want["server"] = None
        return want

    def _server(self, caller: Caller, key: str) -> str:
        row = SERVERS.row(caller, key)
        if row is None:
            missing(InvalidField("server", f"there is no server {key!r} in your project"), "server", key)
        return str(row.id) if row is not None else key

    def _reach(self, caller: Caller, want: Document) -> None:
        """Choose the first port of the server to which a router leads from the network, and its address."""
        inside = {subnet for one in rows(caller, "routers") for subnet in one["inside"]
                  if one["gateway"] and one["gateway"]["network_id"] == want["network"]}
        for port in rows(caller, "ports", device_id=[want["server"]]):
            for one in port["fixed_ips"]:
                if one["subnet_id"] in inside and ip_address(one["ip_address"]).version == 4 and want[
                        "fixed_ip_address"] in (None, one["ip_address"]):
                    want.update(port=port["id"], fixed_ip_address=one["ip_address"])
                    return
        raise InvalidField("server", "must have a port in a subnet from which a router leads to the network: give a "
                                     "router an interface there, and the network as its external_network",
                           want["server"])

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
