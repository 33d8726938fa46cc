# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of types of QoS rules: the supported ones, and those that OVN cannot implement (API reference, "Quality of
Service")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from magnetar_control.services.network.ports import qos
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from .attributes import DSCP_MARKS, KBPS

#: The values of the parameters of each type, for administrators.
PARAMETERS: dict[str, dict[str, Any]] = {
    "bandwidth_limit": {"max_kbps": {"start": 1, "end": KBPS}, "max_burst_kbps": {"start": 0, "end": KBPS},
                        "direction": ["ingress", "egress"]},
    "dscp_marking": {"dscp_mark": list(DSCP_MARKS)},
    "minimum_bandwidth": {"min_kbps": {"start": 1, "end": KBPS}, "direction": ["ingress", "egress"]}}
#: Further types of Neutron, and the reasons for their absence.
WITHOUT = {
    "minimum_packet_rate": "OVN measures bits per second, not packets",
    "packet_rate_limit": "OVN measures bits per second, not packets"}


def qos_rule_routes() -> list[Guarded]:
    """Return the routes that list and show the supported types of QoS rules, and routes that refuse requests for rules
    of unsupported types."""
    top = "/v2.0/qos/rule-types"
    return [guarded_route(f"GET {top}", lambda _request: {"rule_types": [{"type": kind} for kind in qos.KINDS]}),
            guarded_route(f"GET {top}/{{type}}", _type), *(route for kind in WITHOUT for route in _none_of(kind))]


def _type(request: Request) -> Document:
    kind = request.params["type"]
    if not request.context.is_admin:
        raise Forbidden("(rule:get_rule_type) is disallowed by policy: only admins may.")
    if kind not in qos.KINDS:
        raise NotFound(f"There are no QoS rules of type {kind}{': ' + WITHOUT[kind] if kind in WITHOUT else ''}.")
    parameters = [{"parameter_name": name, "parameter_type": "range" if isinstance(values, dict) else "choices",
                   "parameter_values": values} for name, values in PARAMETERS[kind].items()]
    return {"rule_type": {"type": kind, "drivers": [{"name": "ovn", "supported_parameters": parameters}]}}


def _none_of(kind: str) -> list[Guarded]:
    every, words = f"/v2.0/qos/policies/{{policy_id}}/{kind}_rules", kind.replace("_", " ")

    def refused(error: Callable[..., Exception], _request: Request) -> NoReturn:
        raise error(f"There are no QoS rules of type {words}: {WITHOUT[kind]}.", type="QosRuleNotSupported")

    made, shown = partial(refused, InvalidRequest), partial(refused, NotFound)
    return [guarded_route(f"GET {every}", lambda _request: {f"{kind}_rules": []}), guarded_route(f"POST {every}", made),
            *(guarded_route(f"{method} {every}/{{id}}", shown) for method in ("GET", "PUT", "DELETE"))]
