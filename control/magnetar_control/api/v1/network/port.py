# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of the network service."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar_control.api.network import attributes
from magnetar_control.compute.attachments import interfaces
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.subnets.ipam import by_itself
from magnetar_core.kinds import NetworkPort, SecurityGroup, Subnet
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document

from .networking import NOTHING, Networking, Row, policy, reference, rows, usable


class Ports(Networking):
    kind, plural, body = NetworkPort, "ports", attributes.PORT
    references = ("network", "security_groups", "qos_policy", "_subnets")

    def shown(self, row: Row) -> Document:
        return {"network": row["network_id"], "security_groups": sorted(row["security_groups"]),
                "fixed_ips": [{"subnet": one["subnet_id"], "ip_address": one["ip_address"]}
                              for one in row["fixed_ips"]], "allowed_address_pairs": row["pairs"],
                "qos_policy": row["qos_policy_id"],
                **{name: row[name] for name in ("mac_address", "port_security_enabled", "admin_state_up", "dns_name",
                                                "vnic_type", "status", "device_id", "device_owner")}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = policy(caller, {**want, "network": usable(caller, "network", want["network"])}, have)
        if want.get("dns_name"):
            want["dns_name"] = self.body.changes({"dns_name": want["dns_name"]}, "")["dns_name"]
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
        for ours, name in (("network", "network_id"), ("qos_policy", "qos_policy_id"),
                           ("vnic_type", "binding:vnic_type")):
            if ours in found:
                found[name] = found.pop(ours)
        if found.get("fixed_ips") is not None:
            found["fixed_ips"] = [{{"subnet": "subnet_id"}.get(name, name): value for name, value in one.items()}
                                  for one in found["fixed_ips"]]
        return found

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """A server that has it loses its NIC."""
        interfaces.delete_port(caller, str(have["id"]))
