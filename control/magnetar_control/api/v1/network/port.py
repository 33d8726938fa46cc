# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type port: ports of the network service."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar_control.api.network import attributes
from magnetar_control.compute.attachments import interfaces
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.subnets.ipam import by_itself
from magnetar_core.document import Document
from magnetar_core.kinds import NetworkPort, SecurityGroup, Subnet
from magnetar_core.operations import Operation

from .networking import NOTHING, Networking, Row, resolve_network, resolve_qos_policy, resolve_reference, visible_rows


class Ports(Networking):
    kind, plural, body = NetworkPort, "ports", attributes.PORT
    references = ("network", "security_groups", "qos_policy", "_subnets")

    def as_document(self, row: Row) -> Document:
        return {"network": row["network_id"], "security_groups": sorted(row["security_groups"]),
                "fixed_ips": [{"subnet": fixed_ip["subnet_id"], "ip_address": fixed_ip["ip_address"]}
                              for fixed_ip in row["fixed_ips"]], "allowed_address_pairs": row["pairs"],
                "qos_policy": row["qos_policy_id"],
                **{name: row[name] for name in ("mac_address", "port_security_enabled", "admin_state_up", "dns_name",
                                                "vnic_type", "status", "device_id", "device_owner")}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = resolve_qos_policy(caller, {**want, "network": resolve_network(caller, "network", want["network"])},
                                  have)
        if want.get("dns_name"):
            want["dns_name"] = self.body.changes({"dns_name": want["dns_name"]}, "")["dns_name"]
        if want.get("security_groups") is not None:
            want["security_groups"] = sorted({resolve_reference(
                caller, SecurityGroup, "security_groups", (f"security_groups[{at}]", group),
                lambda row: row["project_id"] == caller.project)
                for at, group in enumerate(want["security_groups"])})
        if want.get("fixed_ips") is not None:
            want["fixed_ips"] = self._addresses(caller, want, have)
            want["_subnets"] = [fixed_ip["subnet"] for fixed_ip in want["fixed_ips"] if fixed_ip.get("subnet")]
        plain = self.body.check({"allowed_address_pairs": want["allowed_address_pairs"], "network_id": NOTHING}, "")
        return {**want, "allowed_address_pairs": plain["allowed_address_pairs"]}

    def _addresses(self, caller: Caller, want: Document, have: Document | None) -> list[Document]:
        """Return the fixed IPs in the desired state *want*, with uuids of subnets in place of names. If a desired fixed
        IP matches one of the port's current fixed IPs (in *have*), return the current one, which has both subnet and
        address."""
        unmatched, addresses = list(have["fixed_ips"] if have else ()), []
        for at, fixed_ip in enumerate(want["fixed_ips"]):
            wish = dict(fixed_ip)
            if wish.get("subnet"):
                wish["subnet"] = resolve_reference(caller, Subnet, "subnets",
                                                   (f"fixed_ips[{at}].subnet", wish["subnet"]),
                                                   lambda row: row["network_id"] == want["network"])
            has = next((each for each in unmatched if all(each[name] == value for name, value in wish.items())), None)
            if has is not None:
                unmatched.remove(has)
            addresses.append(has or wish)
        if have and unmatched:  # the service always gives the port an address of these subnets
            unmatched = [fixed_ip for fixed_ip in unmatched if not any(
                map(by_itself, visible_rows(caller, "subnets", id=[fixed_ip["subnet"]])))]
        same = have is not None and not unmatched and all(fixed_ip in have["fixed_ips"] for fixed_ip in addresses)
        return list(have["fixed_ips"]) if have and same else addresses

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        wishes = want.get("fixed_ips")
        addresses_known = wishes is not None and all(wish.get("ip_address") for wish in wishes)
        return ({"fixed_ips"} if not addresses_known else set()) | ({"mac_address"} if not want.get("mac_address")
                                                                    else set())

    def values(self, want: Document, names: Iterable[str]) -> Document:
        values = super().values(want, (name for name in names if name != "_subnets"))
        for ours, name in (("network", "network_id"), ("qos_policy", "qos_policy_id"),
                           ("vnic_type", "binding:vnic_type")):
            if ours in values:
                values[name] = values.pop(ours)
        if values.get("fixed_ips") is not None:
            values["fixed_ips"] = [{{"subnet": "subnet_id"}.get(name, name): value for name, value in fixed_ip.items()}
                                   for fixed_ip in values["fixed_ips"]]
        return values

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Delete the port. If a server uses it, the server loses this NIC."""
        interfaces.delete_port(caller, str(have["id"]))
