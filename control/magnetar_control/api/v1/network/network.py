# SPDX-License-Identifier: GPL-3.0-or-later
"""network: one of the network service with its first subnet. Hosts have it when a server there needs it."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.values import to_second
from magnetar_control.compute.caller import Caller
from magnetar_control.services import Page
from magnetar_core import addresses
from magnetar_core.errors import Conflict, Forbidden, InvalidField, MagnetarError
from magnetar_core.kinds import Network
from magnetar_core.operations import Operation
from magnetar_core.plan import Step
from magnetar_core.reconcile import Document, is_uuid

from .networking import policy

#: The kind's mode to the network service's type.
TYPES = {"nat": "nat", "isolated": "isolated", "bridge": "flat", "ovn": "ovn"}
MTU, LEAST_MTU = 1500, 576


def shown(network: Mapping[str, Any], subnet: Mapping[str, Any] | None, admin: bool) -> Document:
    """The service's network as the kind has it. Only admins see its type and bridge; for others it is nat."""
    type, bridge = (network["type"], network["bridge"]) if admin else ("nat", None)
    if network["by_engine"]:
        type, bridge = "ovn", None
    mtu = 0 if network["mtu"] == MTU and type != "ovn" else network["mtu"]
    found: Document = {
        "id": network["id"], "name": network["name"], "description": network.get("description") or "",
        "mode": next((mode for mode, word in TYPES.items() if word == type), "nat"),
        "bridge": bridge, "cidr": None, "dhcp": None, "dhcp_start": None,
        "dhcp_end": None, "domain": network["dns_domain"].rstrip(".") or None, "mtu": mtu, "active": True,
        "qos_policy": network["qos_policy_id"], "managed": type != "flat",
        "created_at": to_second(network["created_at"]),
        "updated_at": to_second(network["updated_at"] or network["created_at"]), "_owner": network["project_id"]}
    if subnet:
        pools = subnet["allocation_pools"]
        found.update(cidr=subnet["cidr"], dhcp=subnet["enable_dhcp"], dhcp_start=pools[0]["start"] if pools else None,
                     dhcp_end=pools[-1]["end"] if pools else None)
    return found


class CloudNetworks(CloudDriver):
    """The project's, shared ones and external ones; own ones are meant before others of the same name."""

    kind = Network
    takes_id, only_a_document = False, True
    making = (Step("make", "have hosts make it when they need it"),)
    removing = (Step("remove", "have hosts remove it"),)

    def every(self, caller: Caller) -> list[Document]:
        subnets: dict[str, Document] = {}
        for one in _listed(caller, "subnets", filters={"ip_version": ["4"]}):
            subnets.setdefault(one["network_id"], one)
        return [shown(one, subnets.get(one["id"]), caller.context.is_admin) for one in _listed(caller, "networks")
                if caller.project in (one["project_id"], *one["shared_with"]) or one["shared"] or one["external"]]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """What is left out is what the network service gives, and what follows from the addresses."""
        want = dict(policy(caller, want, have))
        if have is None and want["mode"] != "ovn":
            want.setdefault("qos_policy", None)
        want["mtu"] = 0 if want.get("mtu") == MTU and want["mode"] != "ovn" else want.get("mtu", 0)
        _check_names(want)
        if want["mode"] == "ovn":
            if have and want["mtu"] == 0:
                want["mtu"] = have["mtu"]
            if not want.get("cidr"):
                return want  # its subnets come by themselves
        if not want.get("cidr"):
            raise InvalidField("cidr", "is required: servers of a cloud get their addresses from it")
        if want.get("dhcp") is None:
            want["dhcp"] = True
        if have is None or any(want.get(name) != have.get(name) for name in ("cidr", "dhcp_start", "dhcp_end")):
            net = addresses.network(want)
            if have and want["cidr"] != have["cidr"]:  # the range of other addresses is none of these
                want.update({name: None for name in ("dhcp_start", "dhcp_end") if want[name] == have[name]})
            addresses.span(want, net)
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """The caller may have it so, within the quota, its addresses are free, and no server is on *have*."""
        if (want["mode"] not in ("nat", "ovn") or want.get("bridge")) and not caller.context.is_admin:
            raise Forbidden(f"A network of mode {want['mode']} is made by administrators of the cloud. Use mode nat.")
        if want["mtu"] and want["mtu"] < LEAST_MTU:
            raise InvalidField("mtu", f"must be 0, for the default, or at least {LEAST_MTU}", want["mtu"])
        if have and (ports := _listed(caller, "ports", limit=20, filters={"network_id": [have["id"]]})):
            users = sorted({one["device_id"] or f"port {one['id']}" for one in ports})
            raise Conflict(f"Network {have['name']!r} is in use by {', '.join(users)}. Take them off it first, then "
                           "make it anew.", users=users)
        _check_quota(caller, have)
        if want["mode"] in ("bridge", "ovn") or want.get("qos_policy"):
            caller.cloud.services.network.resources["networks"].create(caller.context, self.values(want), dry=True)
        if want["mode"] in ("bridge", "ovn"):
            return
        caller.cloud.services.network.check_range(caller.context, str(addresses.network(dict(want))))
        flat = {one["id"] for one in _listed(caller, "networks") if caller.context.is_admin and one["type"] == "flat"}
        others = [one["cidr"] for one in _listed(caller, "subnets", filters={"ip_version": ["4"]})
                  if one["network_id"] not in flat | {have["id"] if have else ""}
                  and IPv4Network(one["cidr"]).overlaps(IPv4Network(want["cidr"], strict=False))]
        if others:
            raise InvalidField("cidr", f"must not overlap with another network of the cloud ({', '.join(others)}): "
                                       "hosts route to all of them", want["cidr"])

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """The service draws the MTU of one of its own."""
        found = super().predicted(caller, want, have)
        if have is None and want["mode"] == "ovn":
            (made,) = caller.cloud.services.network.resources["networks"].create(
                caller.context, self.values(want), dry=True)
            seen = shown(made, None, False)
            empty = {name: seen[name] for name in ("bridge", "cidr", "dhcp", "dhcp_start", "dhcp_end",
                                                  "qos_policy")}
            found = {**empty, **found, "mtu": seen["mtu"]}
        return found

    def values(self, want: Document) -> Document:
        """Of a new one, in the service's names."""
        return {"name": want["name"], "description": want["description"], "type": TYPES[want["mode"]],
                **{name: want[name] for name in ("mtu", "bridge") if want.get(name)},
                **({"dns_domain": want["domain"] + "."} if want.get("domain") else {}), **_policy(want)}

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        """A network and a subnet; without the subnet no network is left."""
        resources = caller.cloud.services.network.resources
        (made,) = resources["networks"].create(caller.context, self.values(want))
        if not want.get("cidr"):
            return
        try:
            resources["subnets"].create(caller.context, {
                "network_id": made["id"], "cidr": str(IPv4Network(want["cidr"], strict=False)),
                "enable_dhcp": want["dhcp"],
                "allocation_pools": [{"start": want["dhcp_start"], "end": want["dhcp_end"]}]})
        except MagnetarError:
            resources["networks"].delete(caller.context, made["id"])
            raise

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """The description and the QoS policy; the rest is fixed."""
        self._update(caller, have, want, names)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        self._update(caller, have, want, [name for name in ("description", "qos_policy")
                                          if want.get(name) != have.get(name)], dry=True)

    def _update(self, caller: Caller, have: Document, want: Document, names: list[str], *, dry: bool = False) -> None:
        values = {"description": want["description"]} if "description" in names else {}
        values.update(_policy(want) if "qos_policy" in names else {})
        caller.cloud.services.network.resources["networks"].update(caller.context, have["id"], values, dry=dry)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources["networks"].delete(caller.context, have["id"])


def _check_names(want: Document) -> None:
    """Raises ``InvalidField`` where the bridge or the domain does not go with the mode."""
    if want["mode"] == "bridge" and not want.get("bridge"):
        raise InvalidField("bridge", "is required for mode bridge: the name of a bridge that all hosts have")
    if want["mode"] != "bridge" and want.get("bridge"):
        raise InvalidField("bridge", "belongs to mode bridge; the others have names of their own on hosts")
    if want["mode"] != "ovn" and want.get("domain"):
        raise InvalidField("domain", "is for mode ovn in a cloud", want["domain"])
    if want.get("domain"):
        want["domain"] = attributes.NETWORK.check({"dns_domain": want["domain"]}, "")["dns_domain"].rstrip(".")


def _policy(want: Document) -> Document:
    """The QoS policy in the service's form, where *want* says something; one that a dry run assumes is left out."""
    id = want.get("qos_policy")
    return {"qos_policy_id": id} if "qos_policy" in want and (id is None or is_uuid(id)) else {}


def _check_quota(caller: Caller, have: Document | None) -> None:
    """Whether the project may have another network and subnet, when *have* is gone. Raises ``Conflict``."""
    for name in ("network", "subnet"):
        room = caller.cloud.services.network.room(caller.context, name)
        if room is not None and room + (have is not None) < 1:
            raise Conflict(f"The project may have no more of the resource {name}: the quota is used up. Nothing was "
                           "changed.")


def _listed(caller: Caller, plural: str, **page: Any) -> list[Document]:
    return caller.cloud.services.network.resources[plural].list(caller.context, Page(**page))
