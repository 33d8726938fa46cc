# SPDX-License-Identifier: GPL-3.0-or-later
"""subnet, port, router, floating_ip and security_group: those of the network service.

What is asked is checked as Neutron's bodies are (``api/network/attributes.py``). A dry run asks the service for the
same, in a transaction of which nothing stays, and so predicts what it would say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import orjson

from magnetar_control.api.network import attributes
from magnetar_control.api.network.resources import as_named
from magnetar_control.compute.caller import Caller
from magnetar_control.services import Page
from magnetar_control.services.network.ipam import by_itself
from magnetar_control.services.network.security_groups import ICMP
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.fields import Kind, Record
from magnetar_core.kinds import FloatingIp, Network, NetworkPort, NetworkRouter, SecurityGroup, Subnet
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document, is_uuid, missing

from .driver import CloudDriver
from .server import SERVERS
from .server_view import stamp

#: A row of the network service.
Row = Mapping[str, Any]
RULE = ("direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix")
#: A uuid that nothing has, for checks of the rest.
NOTHING = str(uuid.UUID(int=0))
NO_ENGINE = "This cloud has no engine of networks (setting ovn_northbound), and so no {0}."


def rows(caller: Caller, plural: str, **filters: Sequence[Any]) -> list[Row]:
    """Those of the service that the caller may see. Raises ``Conflict`` where it has none of these."""
    store = caller.cloud.services.network.resources.get(plural)
    if store is None:
        raise Conflict(NO_ENGINE.format(plural))
    return list(store.list(caller.context, Page(filters=filters)))


def named(caller: Caller, plural: str, key: str) -> list[Row]:
    """Those with the uuid or name *key*."""
    found = rows(caller, plural, id=[key.lower()]) if is_uuid(key) else []
    return found or rows(caller, plural, name=[key])


def reference(caller: Caller, kind: type[Kind], plural: str, given: tuple[str, str], usable: Any) -> str:
    """The uuid of what *given*, (field, name or uuid), means among the *usable* rows; as it is where a dry run may
    assume it. The project's own are meant before others. Raises ``InvalidField``."""
    field, key = given
    found = [one for one in named(caller, plural, key) if usable(one)]
    found = [one for one in found if one["project_id"] == caller.project] or found
    if len(found) > 1:
        raise InvalidField(field, f"is the name of {len(found)} {plural}; use a uuid of " + ", ".join(
            sorted(one["id"] for one in found)), key)
    if not found:
        missing(InvalidField(field, f"there is no {kind.noun} {key!r} in this cloud that you may use"), kind.noun, key)
    return str(found[0]["id"]) if found else key


def _usable(caller: Caller, field: str, key: str) -> str:
    """A network that ports may be on."""
    return reference(caller, Network, "networks", (field, key),
                     lambda one: one["shared"] or one["project_id"] == caller.project)


def _external(caller: Caller, field: str, key: str) -> str:
    return reference(caller, Network, "networks", (field, key), lambda one: one["external"])


class Networking(CloudDriver):
    """What the kinds have in common. *plural*: the service's name of them; *body*: of what the service is asked;
    *references*: fields that are uuids then."""

    plural = ""
    body: Record
    references: tuple[str, ...] = ()
    takes_id, only_a_document = False, True

    # What there is
    def every(self, caller: Caller) -> list[Document]:
        """Those of the project; none where the service has none of these."""
        if self.plural not in caller.cloud.services.network.resources:
            return []
        return self.shown_all(caller, self.mine(caller, rows(caller, self.plural)))

    def mine(self, caller: Caller, found: list[Row]) -> list[Row]:
        """Those that are the project's: an administrator is in one, too."""
        return [one for one in found if one["project_id"] == caller.project]

    def find(self, caller: Caller, key: str) -> Document | None:
        if self.plural not in caller.cloud.services.network.resources:
            return None
        found = self.mine(caller, named(caller, self.plural, key))
        return self.only(caller, self.shown_all(caller, found), key)

    def shown_all(self, caller: Caller, found: Iterable[Row]) -> list[Document]:
        return [{"id": one["id"], "name": one["name"], "description": one["description"] or "",
                 "created_at": stamp(one["created_at"]), "updated_at": stamp(one["updated_at"] or one["created_at"]),
                 "_owner": one["project_id"], **self.shown(one)} for one in found]

    def shown(self, row: Row) -> Document:
        """The fields of the kind that are its own."""
        raise NotImplementedError

    # What is wanted
    def values(self, want: Document, names: Iterable[str]) -> Document:
        """Of *want* the fields *names*, as Neutron has them."""
        return {name: want[name] for name in names if name in want}

    def assumed(self, want: Document) -> bool:
        """Whether it names what is not there, and a dry run assumes."""
        given = [want.get(name) for name in self.references]
        words = [one for each in given for one in (each if isinstance(each, list) else [each])]
        return any(not is_uuid(one) for one in words if one)

    def checked(self, want: Document) -> Document:
        """*want* of a new one, in the service's names. Raises ``InvalidField``."""
        settable = [field.name for field in self.kind.settable() if field.name != "id"]
        return as_named(self.body.check(self.values(want, settable), ""))

    def differing(self, want: Document, have: Document) -> Document:
        """What of *want* is otherwise than in *have*, in the service's names. Raises ``InvalidField``."""
        names = [field.name for field in self.kind.settable()
                 if field.name in want and want[field.name] != have.get(field.name)]
        return as_named(self.body.changes(self.values(want, names), ""))

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        """Have the service make it."""
        (made,) = caller.cloud.services.network.resources[self.plural].create(
            caller.context, self.checked(want), dry=dry)
        return made

    def update(self, caller: Caller, want: Document, have: Document, dry: bool) -> Row:
        """Have the service change it."""
        return caller.cloud.services.network.resources[self.plural].update(
            caller.context, str(have["id"]), self.differing(want, have), dry=dry)

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if self.plural not in caller.cloud.services.network.resources:
            raise Conflict(NO_ENGINE.format(self.plural))
        if have is not None:
            caller.cloud.services.network.resources[self.plural].delete(caller.context, str(have["id"]), dry=True)
        elif not self.assumed(want):
            self.create(caller, want, dry=True)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        if not self.assumed(want):
            self.update(caller, want, have, dry=True)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        anew = have is not None and any(want.get(field.name) != have.get(field.name) for field in self.kind.settable()
                                        if field.fixed and field.name != "id")
        if self.assumed(want) or anew:
            return super().predicted(caller, want, have)
        row = self.update(caller, want, have, True) if have else self.create(caller, want, True)
        (found,) = self.shown_all(caller, [row])
        unknown = self.drawn(want, have) | (set() if have else {"id"})
        return {name: value for name, value in found.items() if name not in unknown}

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        """Fields of which nobody knows the value before it is done."""
        return set()

    # What is done
    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        if self.plural not in caller.cloud.services.network.resources:
            raise Conflict(NO_ENGINE.format(self.plural))
        return str(self.create(caller, want, dry=False)["id"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self.update(caller, want, have, dry=False)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources[self.plural].delete(caller.context, str(have["id"]))


class Subnets(Networking):
    """Those of the project, and of networks that all use."""

    kind, plural, body, references = Subnet, "subnets", attributes.SUBNET, ("network",)
    own = ("cidr", "gateway_ip", "enable_dhcp", "allocation_pools", "dns_nameservers", "host_routes",
           "ipv6_address_mode", "ipv6_ra_mode")

    def mine(self, caller: Caller, found: list[Row]) -> list[Row]:
        shared = {one["id"] for one in rows(caller, "networks", shared=[True])} if found else set()
        return [one for one in found if one["project_id"] == caller.project or one["network_id"] in shared]

    def shown(self, row: Row) -> Document:
        return {"network": row["network_id"], **{name: row[name] for name in self.own}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = {**want, "network": _usable(caller, "network", want["network"])}
        plain = self.body.check({**self.values(want, self.own), "network_id": NOTHING}, "")
        return {**want, **{name: value for name, value in plain.items() if name in want}}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        found = super().values(want, names)
        return {{"network": "network_id"}.get(name, name): value for name, value in found.items()}


class Ports(Networking):
    kind, plural, body, references = NetworkPort, "ports", attributes.PORT, ("network", "security_groups", "_subnets")

    def shown(self, row: Row) -> Document:
        return {"network": row["network_id"], "security_groups": sorted(row["security_groups"]),
                "fixed_ips": [{"subnet": one["subnet_id"], "ip_address": one["ip_address"]}
                              for one in row["fixed_ips"]], "allowed_address_pairs": row["pairs"],
                **{name: row[name] for name in ("mac_address", "port_security_enabled", "admin_state_up", "status",
                                                "device_id", "device_owner")}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = {**want, "network": _usable(caller, "network", want["network"])}
        if want.get("security_groups") is not None:
            want["security_groups"] = sorted({reference(
                caller, SecurityGroup, "security_groups", (f"security_groups[{at}]", one),
                lambda row: row["project_id"] == caller.project)
                for at, one in enumerate(want["security_groups"])})
        if want.get("fixed_ips") is not None:
            want["fixed_ips"] = self._addresses(caller, want, have)
            want["_subnets"] = [one["subnet"] for one in want["fixed_ips"] if one.get("subnet")]
        plain = self.body.check({"allowed_address_pairs": want["allowed_address_pairs"], "network_id": NOTHING}, "")
        return {**want, "allowed_address_pairs": plain["allowed_address_pairs"]}

    def _addresses(self, caller: Caller, want: Document, have: Document | None) -> list[Document]:
        """Each with the uuid of its subnet; those that the port has as they are."""
        left, found = list(have["fixed_ips"] if have else ()), []
        for at, one in enumerate(want["fixed_ips"]):
            wish = dict(one)
            if wish.get("subnet"):
                wish["subnet"] = reference(caller, Subnet, "subnets", (f"fixed_ips[{at}].subnet", wish["subnet"]),
                                           lambda row: row["network_id"] == want["network"])
            has = next((each for each in left if all(each[name] == value for name, value in wish.items())), None)
            if has is not None:
                left.remove(has)
            found.append(has or wish)
        if have and left:  # of these subnets it has addresses whatever is asked
            left = [one for one in left if not any(map(by_itself, rows(caller, "subnets", id=[one["subnet"]])))]
        same = have is not None and not left and all(one in have["fixed_ips"] for one in found)
        return list(have["fixed_ips"]) if have and same else found

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        wishes = want.get("fixed_ips")
        known = wishes is not None and all(one.get("ip_address") for one in wishes)
        return ({"fixed_ips"} if not known else set()) | ({"mac_address"} if not want.get("mac_address") else set())

    def values(self, want: Document, names: Iterable[str]) -> Document:
        found = super().values(want, (name for name in names if name != "_subnets"))
        if "network" in found:
            found["network_id"] = found.pop("network")
        if found.get("fixed_ips") is not None:
            found["fixed_ips"] = [{{"subnet": "subnet_id"}.get(name, name): value for name, value in one.items()}
                                  for one in found["fixed_ips"]]
        return found


class Routers(Networking):
    kind, plural, body, references = NetworkRouter, "routers", attributes.ROUTER, ("external_network", "interfaces")

    def shown(self, row: Row) -> Document:
        gateway = row["gateway"] or {}
        return {"external_network": gateway.get("network_id"), "enable_snat": row["enable_snat"],
                "external_addresses": [one["ip_address"] for one in gateway.get("external_fixed_ips", ())],
                "interfaces": sorted(row["inside"]), "routes": row["routes"], "status": "ACTIVE",
                "admin_state_up": row["admin_state_up"]}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = dict(want)
        if want.get("external_network"):
            want["external_network"] = _external(caller, "external_network", want["external_network"])
        elif not want["enable_snat"]:
            if have is None or have["enable_snat"]:
                raise InvalidField("enable_snat", "is for a router with an external_network", False)
            want["enable_snat"] = True  # with the network it goes
        want["interfaces"] = sorted({
            reference(caller, Subnet, "subnets", (f"interfaces[{at}]", one), lambda _row: True)
            for at, one in enumerate(want["interfaces"])})
        return {**want, "routes": self.body.check({"routes": want["routes"]}, "")["routes"]}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        names = set(names)
        found = super().values(want, names - {"external_network", "enable_snat", "interfaces"})
        if names & {"external_network", "enable_snat"}:
            found["external_gateway_info"] = {"network_id": want["external_network"], "enable_snat": want[
                "enable_snat"]} if want["external_network"] else None
        return found

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        same = (have or {}).get("external_network") == want["external_network"]
        return set() if same else {"external_addresses"}

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        found: Row = self._store(caller).put(caller.context, None, self.checked(want), want["interfaces"], dry)
        return found

    def update(self, caller: Caller, want: Document, have: Document, dry: bool) -> Row:
        inside = None if want["interfaces"] == have["interfaces"] else want["interfaces"]
        found: Row = self._store(caller).put(caller.context, have["id"], self.differing(want, have), inside, dry)
        return found

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Its interfaces go before."""
        self._store(caller).put(caller.context, have["id"], {"routes": []}, [])
        super().remove(caller, have, operation)

    def _store(self, caller: Caller) -> Any:
        return caller.cloud.services.network.resources[self.plural]


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
        want = {"fixed_ip_address": None, **want, "network": _external(caller, "network", want["network"])}
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


class SecurityGroups(Networking):
    """With their rules, all of which a wish says, or none."""

    kind, plural, body = SecurityGroup, "security_groups", attributes.SECURITY_GROUP

    def shown(self, row: Row) -> Document:
        return {"stateful": row["stateful"], "rules": _sorted(
            {**{name: one[name] for name in RULE}, "remote_group": one["remote_group_id"],
             "description": one["description"] or ""} for one in row["rules"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("rules") is None:
            return {name: value for name, value in want.items() if name != "rules"}
        return {**want, "rules": _sorted(self._rule(caller, want, have, at)
                                         for at in range(len(want["rules"])))}

    def _rule(self, caller: Caller, want: Document, have: Document | None, at: int) -> Document:
        """One rule in its normal form. A group may name itself, also before it is there."""
        path = f"rules[{at}]"
        rule = {"direction": "ingress", "ethertype": "IPv4", **want["rules"][at]}
        group = rule.pop("remote_group", None)
        if have is None and group is not None and group == want["name"]:
            pass
        elif group is not None:
            group = reference(caller, SecurityGroup, "security_groups", (f"{path}.remote_group", group),
                              lambda row: row["project_id"] == caller.project)
        found = attributes.SECURITY_GROUP_RULE.check({**rule, "security_group_id": NOTHING}, path)
        least, most = found.get("port_range_min"), found.get("port_range_max")
        if most is None and found.get("protocol") not in ICMP:
            most = least
        return {**{name: found.get(name) for name in RULE}, "port_range_max": most, "remote_group": group,
                "description": found.get("description") or ""}

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """The rules of a new one that name itself have its name."""
        found = super().predicted(caller, want, have)
        return found if have or want.get("rules") is None else {**found, "rules": want["rules"]}

    def assumed(self, want: Document) -> bool:
        return any(one["remote_group"] not in (None, want["name"]) and not is_uuid(one["remote_group"])
                   for one in want.get("rules") or ())

    def values(self, want: Document, names: Iterable[str]) -> Document:
        return super().values(want, set(names) - {"rules"})

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        id = str(uuid.uuid4())
        return self._put(caller, None, {**self.checked(want), "id": id}, _asked(want, id), dry)

    def update(self, caller: Caller, want: Document, have: Document, dry: bool) -> Row:
        rules = None if want.get("rules") == have["rules"] else _asked(want, str(have["id"]))
        return self._put(caller, str(have["id"]), self.differing(want, have), rules, dry)

    def _put(self, caller: Caller, id: str | None, values: Document, rules: list[Document] | None, dry: bool) -> Row:
        store: Any = caller.cloud.services.network.resources[self.plural]
        found: Row = store.put(caller.context, id, values, rules, dry)
        return found


def _asked(want: Document, id: str) -> list[Document] | None:
    """The rules as the service takes them; *id*: of the group, which may be named by a rule before it is there."""
    if want.get("rules") is None:
        return None
    return [{**{name: one[name] for name in RULE}, "description": one["description"],
             "remote_group_id": id if one["remote_group"] == want["name"] else one["remote_group"]}
            for one in want["rules"]]


def _sorted(rules: Iterable[Document]) -> list[Document]:
    """Each once, in an order that follows from what they say."""
    return [orjson.loads(text) for text in sorted({orjson.dumps(one) for one in rules})]


NETWORKING = (Subnets(), Ports(), Routers(), FloatingIps(), SecurityGroups())
