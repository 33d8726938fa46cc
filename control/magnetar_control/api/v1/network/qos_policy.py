# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type qos_policy: QoS policies of the network service, with their rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.ports.qos import KINDS
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Record
from magnetar_core.kinds import QosPolicy

from .networking import Networking, Row, usable_by_project

#: Type of a rule to its allowed fields.
BODIES: Mapping[str, Record] = {"bandwidth_limit": attributes.BANDWIDTH_LIMIT_RULE,
                                "dscp_marking": attributes.DSCP_MARKING_RULE,
                                "minimum_bandwidth": attributes.MINIMUM_BANDWIDTH_RULE}
FIELDS = ("direction", "max_kbps", "max_burst_kbps", "dscp_mark", "min_kbps")
#: Defaults of a rule, by its type.
USUAL: Mapping[str, Document] = {"bandwidth_limit": {"direction": "egress", "max_burst_kbps": 0},
                                 "minimum_bandwidth": {"direction": "egress"}}


class QosPolicies(Networking):
    """The driver of the v1 API for QoS policies that belong to the caller's project or are shared with it. The field
    ``rules`` of a request replaces all rules of the policy; without this field, the rules stay unchanged."""

    kind, plural, body, held = QosPolicy, "qos_policies", attributes.QOS_POLICY, "rules"

    def project_rows(self, caller: Caller, service_rows: list[Row]) -> list[Row]:
        return list(filter(usable_by_project(caller), service_rows))

    def as_document(self, row: Row) -> Document:
        return {"shared": bool(row["shared"]), "is_default": bool(row["is_default"]), "rules": _sorted(
            {"type": rule["kind"], **{name: rule[name] if name in KINDS[rule["kind"]] else None for name in FIELDS}}
            for rule in row["rules"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("rules") is None:
            return {name: value for name, value in want.items() if name != "rules"}
        rules = [_rule(f"rules[{at}]", rule) for at, rule in enumerate(want["rules"])]
        keys: set[tuple[Any, ...]] = set()
        for at, rule in enumerate(rules):
            if (key := (rule["type"], rule["direction"])) in keys:
                raise InvalidField(f"rules[{at}]", "must be of another type or direction than the rules before it: a "
                                                   "policy has one of each", want["rules"][at])
            keys.add(key)
        return {**want, "rules": _sorted(rules)}

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        if want.get("rules") is None:
            return None
        return [{"kind": rule["type"], **{name: rule[name] for name in KINDS[rule["type"]]},
                 "direction": rule["direction"] or "egress"} for rule in want["rules"]]


def _rule(path: str, rule: Document) -> Document:
    """Return the QoS rule *rule* of a request in normal form. *path*: its position in the request, for errors. Raises
    ``InvalidField``."""
    values = {name: value for name, value in rule.items() if name != "type" and value is not None}
    checked = {**USUAL.get(rule["type"], {}), **BODIES[rule["type"]].check(values, path)}
    return {"type": rule["type"], **{name: checked.get(name) for name in FIELDS}}


def _sorted(rules: Iterable[Document]) -> list[Document]:
    return sorted(rules, key=lambda rule: (rule["type"], rule["direction"] or ""))
