# SPDX-License-Identifier: GPL-3.0-or-later
"""QoS policies of the network service, with their rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.ports.qos import KINDS
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Record
from magnetar_core.kinds import QosPolicy
from magnetar_core.reconcile import Document

from .networking import Networking, Row, of_project

#: Type of a rule to what it may say.
BODIES: Mapping[str, Record] = {"bandwidth_limit": attributes.BANDWIDTH_LIMIT_RULE,
                                "dscp_marking": attributes.DSCP_MARKING_RULE,
                                "minimum_bandwidth": attributes.MINIMUM_BANDWIDTH_RULE}
FIELDS = ("direction", "max_kbps", "max_burst_kbps", "dscp_mark", "min_kbps")
#: What a rule says where it is left out, by its type.
USUAL: Mapping[str, Document] = {"bandwidth_limit": {"direction": "egress", "max_burst_kbps": 0},
                                 "minimum_bandwidth": {"direction": "egress"}}


class QosPolicies(Networking):
    """Those of the project, and those that are shared with it. A wish says all rules, or none."""

    kind, plural, body, held = QosPolicy, "qos_policies", attributes.QOS_POLICY, "rules"

    def mine(self, caller: Caller, found: list[Row]) -> list[Row]:
        return list(filter(of_project(caller), found))

    def shown(self, row: Row) -> Document:
        return {"shared": bool(row["shared"]), "is_default": bool(row["is_default"]), "rules": _sorted(
            {"type": one["kind"], **{name: one[name] if name in KINDS[one["kind"]] else None for name in FIELDS}}
            for one in row["rules"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("rules") is None:
            return {name: value for name, value in want.items() if name != "rules"}
        rules = [_rule(f"rules[{at}]", one) for at, one in enumerate(want["rules"])]
        said: set[tuple[Any, ...]] = set()
        for at, one in enumerate(rules):
            if (key := (one["type"], one["direction"])) in said:
                raise InvalidField(f"rules[{at}]", "must be of another type or direction than the rules before it: a "
                                                   "policy has one of each", want["rules"][at])
            said.add(key)
        return {**want, "rules": _sorted(rules)}

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        if want.get("rules") is None:
            return None
        return [{"kind": one["type"], **{name: one[name] for name in KINDS[one["type"]]},
                 "direction": one["direction"] or "egress"} for one in want["rules"]]


def _rule(path: str, given: Document) -> Document:
    """A rule in its normal form. Raises ``InvalidField``."""
    said = {name: value for name, value in given.items() if name != "type" and value is not None}
    found = {**USUAL.get(given["type"], {}), **BODIES[given["type"]].check(said, path)}
    return {"type": given["type"], **{name: found.get(name) for name in FIELDS}}


def _sorted(rules: Iterable[Document]) -> list[Document]:
    return sorted(rules, key=lambda one: (one["type"], one["direction"] or ""))
