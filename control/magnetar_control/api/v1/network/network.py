# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type network: a network of the network service with its first subnet. A host creates the
network when a server on the host needs it."""

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
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidField, MagnetarError
from magnetar_core.kinds import Network
from magnetar_core.operations import Operation
from magnetar_core.plan import Step
from magnetar_core.reconcile import is_uuid_key

from .networking import resolve_qos_policy

#: The mode of the kind to the network type of the service.
TYPES = {"nat": "nat", "isolated": "isolated", "bridge": "flat", "ovn": "ovn"}
MTU, LEAST_MTU = 1500, 576
#: Provider network types of the kind to those of the service, and the fields of physical networks to its columns.
PROVIDER_TYPES = {"geneve": "ovn", "flat": "flat", "vlan": "vlan"}
PROVIDER = {"provider_physical_network": "bridge", "provider_segmentation_id": "segment"}


def render_network(network: Mapping[str, Any], subnet: Mapping[str, Any] | None, admin: bool) -> Document:
    """Return *network* and its first *subnet*, rows of the network service, as a network in the format of the v1 API.
    *admin*: whether the caller is an administrator. Other callers do not see the bridge, and see only the modes nat and
    ovn."""
    type, bridge = (network["type"], network["bridge"]) if admin else ("nat", None)
    provider: Document = dict.fromkeys(("provider_network_type", *PROVIDER))
    if network["by_engine"]:
        if admin:
            provider = {"provider_network_type": "geneve" if type == "ovn" else type,
                        **{name: network[column] for name, column in PROVIDER.items()}}
        type, bridge = "ovn", None
    mtu = 0 if network["mtu"] == MTU and type != "ovn" else network["mtu"]
    document: Document = {
        "id": network["id"], "name": network["name"], "description": network.get("description") or "",
        "mode": next((mode for mode, service_type in TYPES.items() if service_type == type), "nat"),
        "bridge": bridge, "cidr": None, "dhcp": None, "dhcp_start": None,
        "dhcp_end": None, "domain": network["dns_domain"].rstrip(".") or None, "mtu": mtu, "active": True,
        "qos_policy": network["qos_policy_id"], "managed": type != "flat", "shared": bool(network["shared"]),
        "external": bool(network["external"]), **provider,
        "created_at": to_second(network["created_at"]),
        "updated_at": to_second(network["updated_at"] or network["created_at"]), "_owner": network["project_id"]}
    if subnet:
        pools = subnet["allocation_pools"]
        document.update(cidr=subnet["cidr"], dhcp=subnet["enable_dhcp"],
                        dhcp_start=pools[0]["start"] if pools else None, dhcp_end=pools[-1]["end"] if pools else None)
    return document


class CloudNetworks(CloudDriver):
    """The driver of the v1 API for networks of the caller's project, shared networks and external networks. If several
    networks have the same name, the name refers to the one of the caller's project."""

    kind = Network
    takes_id, only_a_document = False, True
    making = (Step("make", "have hosts make it when they need it"),)
    removing = (Step("remove", "have hosts remove it"),)

    def every(self, caller: Caller) -> list[Document]:
        subnets: dict[str, Document] = {}
        for subnet in _listed(caller, "subnets", filters={"ip_version": ["4"]}):
            subnets.setdefault(subnet["network_id"], subnet)
        return [render_network(network, subnets.get(network["id"]), caller.context.is_admin)
                for network in _listed(caller, "networks")
                if caller.project in (network["project_id"], *network["shared_with"]) or network["shared"]
                or network["external"]]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with absent fields filled in: the defaults of the network service, and a DHCP
        range that is derived from the CIDR. Raises ``InvalidField``."""
        want = dict(resolve_qos_policy(caller, want, have))
        if have is None and want["mode"] != "ovn":
            want.setdefault("qos_policy", None)
        want["mtu"] = 0 if want.get("mtu") == MTU and want["mode"] != "ovn" else want.get("mtu", 0)
        _check_names(want)
        _check_provider(caller, want, have)
        if want["mode"] == "ovn":
            if have and want["mtu"] == 0:
                want["mtu"] = have["mtu"]
            if not want.get("cidr"):
                return want  # its subnets are resources of their own
        if not want.get("cidr"):
            raise InvalidField("cidr", "is required: servers of a cloud get their addresses from it")
        if want.get("dhcp") is None:
            want["dhcp"] = True
        if have is None or any(want.get(name) != have.get(name) for name in ("cidr", "dhcp_start", "dhcp_end")):
            net = addresses.normalize_cidr(want)
            if have and want["cidr"] != have["cidr"]:  # the range of the old addresses is not valid for the new ones
                want.update({name: None for name in ("dhcp_start", "dhcp_end") if want[name] == have[name]})
            addresses.fill_dhcp_range(want, net)
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the caller may create the network *want*: permission, quota, and no overlap with the addresses of
        other networks. *have*: the network that *want* replaces, which must have no ports; ``None`` if there is none.
        """
        if (want["mode"] not in ("nat", "ovn") or want.get("bridge")) and not caller.context.is_admin:
            raise Forbidden(f"A network of mode {want['mode']} is made by administrators of the cloud. Use mode nat.")
        if want["mtu"] and want["mtu"] < LEAST_MTU:
            raise InvalidField("mtu", f"must be 0, for the default, or at least {LEAST_MTU}", want["mtu"])
        if have and (ports := _listed(caller, "ports", limit=20, filters={"network_id": [have["id"]]})):
            users = sorted({port["device_id"] or f"port {port['id']}" for port in ports})
            raise Conflict(f"Network {have['name']!r} is in use by {', '.join(users)}. Take them off it first, then "
                           "create it again.", users=users)
        _check_quota(caller, have)
        if want["mode"] in ("bridge", "ovn") or want.get("qos_policy"):
            caller.cloud.services.network.resources["networks"].create(caller.context, self.values(want), dry=True)
        if want["mode"] in ("bridge", "ovn"):
            return
        caller.cloud.services.network.check_range(caller.context, str(addresses.normalize_cidr(dict(want))))
        flat = {network["id"] for network in _listed(caller, "networks") if caller.context.is_admin
                and network["type"] == "flat"}
        overlapping = [subnet["cidr"] for subnet in _listed(caller, "subnets", filters={"ip_version": ["4"]})
                       if subnet["network_id"] not in flat | {have["id"] if have else ""}
                       and IPv4Network(subnet["cidr"]).overlaps(IPv4Network(want["cidr"], strict=False))]
        if overlapping:
            raise InvalidField("cidr",
                               f"must not overlap with another network of the cloud ({', '.join(overlapping)}): "
                                       "hosts route to all of them", want["cidr"])

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the network after the change, for a dry run. The MTU of a new ``ovn`` network comes from a dry run of
        the network service."""
        resource = super().predicted(caller, want, have)
        if have is None and want["mode"] == "ovn":
            (made,) = caller.cloud.services.network.resources["networks"].create(
                caller.context, self.values(want), dry=True)
            predicted_network = render_network(made, None, False)
            empty = {name: predicted_network[name] for name in ("bridge", "cidr", "dhcp", "dhcp_start", "dhcp_end",
                                                  "qos_policy")}
            resource = {**empty, **resource, "mtu": predicted_network["mtu"]}
        return resource

    def values(self, want: Document) -> Document:
        """Return the fields of the new network *want* as columns of the network service."""
        type = PROVIDER_TYPES[want["provider_network_type"]] if want.get("provider_network_type") else TYPES[
            want["mode"]]
        return {"name": want["name"], "description": want["description"], "type": type,
                **{name: True for name in ("shared", "external") if want.get(name)},
                **{column: want[name] for name, column in PROVIDER.items() if want.get(name)},
                **{name: want[name] for name in ("mtu", "bridge") if want.get(name)},
                **({"dns_domain": want["domain"] + "."} if want.get("domain") else {}), **_policy(want)}

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        """Create a network, and a subnet with its CIDR. If the subnet cannot be created, remove the network."""
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
        """Update those of the fields ``description``, ``qos_policy``, ``shared`` and ``external`` of the network that
        *names* contains. No other field can change."""
        self._update(caller, have, want, names)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        self._update(caller, have, want, [name for name in ("description", "qos_policy", "shared", "external")
                                          if want.get(name) != have.get(name)], dry=True)

    def _update(self, caller: Caller, have: Document, want: Document, names: list[str], *, dry: bool = False) -> None:
        values = {"description": want["description"]} if "description" in names else {}
        values.update(_policy(want) if "qos_policy" in names else {})
        values.update((name, want[name]) for name in ("shared", "external") if name in names)
        caller.cloud.services.network.resources["networks"].update(caller.context, have["id"], values, dry=dry)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources["networks"].delete(caller.context, have["id"])


def _check_names(want: Document) -> None:
    """Check that the mode of the network *want* allows its ``bridge`` and its ``domain``. Raises ``InvalidField``."""
    if want["mode"] == "bridge" and not want.get("bridge"):
        raise InvalidField("bridge", "is required for mode bridge: the name of a bridge that all hosts have")
    if want["mode"] != "bridge" and want.get("bridge"):
        raise InvalidField("bridge", "belongs to mode bridge; the others have names of their own on hosts")
    if want["mode"] != "ovn" and want.get("domain"):
        raise InvalidField("domain", "is for mode ovn in a cloud", want["domain"])
    if want.get("domain"):
        want["domain"] = attributes.NETWORK.check({"dns_domain": want["domain"]}, "")["dns_domain"].rstrip(".")


def _check_provider(caller: Caller, want: Document, have: Document | None) -> None:
    """Fill in the missing fields of the network *want* that only administrators may change. Such a field gets its value
    in *have*, the present network; for a new network (``None``), its default. Raises ``Forbidden`` if the caller is not
    an administrator and requests another value. Raises ``InvalidField`` for provider fields in a mode other than ovn.
    """
    provider = ("provider_network_type", *PROVIDER)
    usual = have or {"shared": False, "external": False,
                     **dict.fromkeys(provider), "provider_network_type": "geneve" if want["mode"] == "ovn" else None}
    for name in ("shared", "external", *provider):
        if want.get(name) is None:
            want[name] = usual[name]
        if want[name] != usual[name] and not caller.is_admin:
            raise Forbidden(f"Only administrators of the cloud set {name} of a network.")
    if want["mode"] != "ovn" and any(want[name] is not None for name in provider):
        raise InvalidField("provider_network_type", "and what belongs to it is for mode ovn; mode bridge has a bridge")
    if not caller.is_admin:
        want["provider_network_type"] = None  # as it is shown


def _policy(want: Document) -> Document:
    """Return ``{"qos_policy_id": uuid}`` for the field ``qos_policy`` of *want*. Return an empty dict if *want* does
    not have this field. Also return an empty dict if the field contains a name: this happens in a dry run that assumes
    that an earlier Ansible task creates the policy."""
    id = want.get("qos_policy")
    return {"qos_policy_id": id} if "qos_policy" in want and (id is None or is_uuid_key(id)) else {}


def _check_quota(caller: Caller, have: Document | None) -> None:
    """Check that the quota allows another network and another subnet. *have*: the network that is replaced by the new
    one; this network and its subnet do not count. ``None``: no network is replaced. Raises ``Conflict``."""
    for name in ("network", "subnet"):
        room = caller.cloud.services.network.room(caller.context, name)
        if room is not None and room + (have is not None) < 1:
            raise Conflict(f"The project may have no more of the resource {name}: the quota is used up. Nothing was "
                           "changed.")


def _listed(caller: Caller, plural: str, **page: Any) -> list[Document]:
    return caller.cloud.services.network.resources[plural].list(caller.context, Page(**page))
