# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP interface of the simulation itself: its state, and faults of its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from magnetar_agent.api.access import OPERATE
from magnetar_agent.api.routes import Json, read_json_body
from magnetar_core.errors import Forbidden, InvalidField, MagnetarError

from .host import CONDITIONS

if TYPE_CHECKING:
    from .simulation import Simulation

#: The most bytes of a request.
BODY = 1 << 22
#: Keys of a request for a condition.
KEYS = ("condition", "hosts", "share", "delay", "seconds")


class SimulationControl:
    """The HTTP API that controls a simulation: ``GET /``, ``PUT /condition`` and ``PUT /names``."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.app = Starlette(routes=[Route("/", self.show), Route("/condition", self.condition, methods=["PUT"]),
                                     Route("/names", self.names, methods=["PUT"])],
                             exception_handlers={MagnetarError: _refuse})

    async def show(self, request: Request) -> Json:
        """Return the number of simulated hosts, of hosts in each condition, and of servers."""
        _check_caller(request)
        return Json(self.simulation.summary())

    async def condition(self, request: Request) -> Json:
        """Change the condition (up, silent, slow, dead) of simulated hosts. The body has the parameters of
        ``Simulation.set_condition`` as keys, with ``hosts`` instead of *names*."""
        _check_caller(request)
        body = await _read_object(request)
        for key in body:
            if key not in KEYS:
                raise InvalidField(key, f"is not a known key; the keys are {', '.join(KEYS)}")
        if body.get("condition") not in CONDITIONS:
            raise InvalidField("condition", f"must be one of {', '.join(CONDITIONS)}", body.get("condition"))
        names = body.get("hosts")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise InvalidField("hosts", "must be a list of names", names)
        numbers = {key: _number(body, key, most) for key, most in (("share", 1), ("delay", 3600), ("seconds", 86400))
                   if body.get(key) is not None}
        changed = self.simulation.set_condition(body["condition"], names, **numbers)
        return Json({"hosts": changed, **self.simulation.summary()["conditions"]})

    async def names(self, request: Request) -> Json:
        """Rename simulated hosts. The body maps the names that they had at the start of the simulation to new names."""
        _check_caller(request)
        body = await _read_object(request)
        for name, new_name in body.items():
            if not isinstance(new_name, str) or not new_name:
                raise InvalidField(name, "must be the new name of the host", new_name)
        self.simulation.rename_hosts(body)
        return Json({"hosts": list(body)})


async def _refuse(_request: Request, error: Any) -> Json:
    return Json({"error": error.as_dict()}, error.status)


def _check_caller(request: Request) -> None:
    """Raise ``Forbidden`` unless the caller has the scope ``operate``."""
    peer = request.scope["state"]["peer"]
    if peer.scope != OPERATE:
        raise Forbidden(peer.refusal or "Only a caller with the scope operate may change the simulation.")


async def _read_object(request: Request) -> dict[str, Any]:
    body = await read_json_body(request, BODY)
    if not isinstance(body, dict):
        raise InvalidField("body", "must be an object")
    return body


def _number(body: dict[str, Any], key: str, most: float) -> float:
    value = body[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise InvalidField(key, f"must be a number from 0 to {most}", value)
    return float(value)
