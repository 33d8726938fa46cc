# SPDX-License-Identifier: GPL-3.0-or-later
"""Refusals that follow from the table of operations: for each operation, what must not work, and with which fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .bind import bind
from .compare import Difference
from .execute import UNVERSIONED, Runner, filled
from .fixtures import Blocked
from .outcome import ABSENT, BLOCKED, FAIL, NOBODY, NOT_APPLICABLE, PASS, Result, fault
from .plan import Case
from .samples import Evidence, Operation, keys, leaves
from .scenes import Scene, state
from .tolerances import REFUSED, for_administrators
from .transport import Exchange

#: Bodies of actions that have no sample and need more than null.
BODIES: dict[str, Any] = {
    "addSecurityGroup": {"name": "default"}, "removeSecurityGroup": {"name": "default"},
    "addFixedIp": {"networkId": NOBODY}, "removeFixedIp": {"address": "192.0.2.1"},
    "evacuate": {}, "os-getMKSConsole": {"type": "webmks"},
}
_GROUP = {"security_group": {"name": "conformance", "description": "conformance"}}
#: Bodies of operations that have no sample.
PLAIN: dict[str, Any] = {
    "images.metadata.create": {"metadata": {"foo": "Foo Value"}},
    "images.metadata.replace": {"metadata": {"foo": "Foo Value"}},
    "images.metadata.update": {"meta": {NOBODY: "Foo Value"}},
    "os-assisted-volume-snapshots.create": {"snapshot": {"volume_id": NOBODY, "create_info": {
        "snapshot_id": NOBODY, "type": "qcow2", "new_file": "new_file"}}},
    "os-baremetal-nodes.create": {"node": {}},
    "os-floating-ips.create": {"pool": "public"},
    "os-hosts.update": {"status": "enable"},
    "os-security-groups.create": _GROUP,
    "os-security-groups.update": _GROUP,
    "os-security-group-rules.create": {"security_group_rule": {
        "parent_group_id": NOBODY, "ip_protocol": "tcp", "from_port": 22, "to_port": 22, "cidr": "192.0.2.0/24"}},
    "os-snapshots.create": {"snapshot": {"volume_id": NOBODY, "display_name": "conformance"}},
    "os-volumes.create": {"volume": {"size": 1, "display_name": "conformance"}},
    "servers.metadata.create": {"metadata": {"foo": "Foo Value"}},
    "servers.shares.create": {"share": {"share_id": NOBODY}},
    "os-server-external-events.create": {"events": [{"name": "network-changed", "server_uuid": NOBODY}]},
}
#: Objects of requests whose keys are free.
OPEN = {"metadata", "meta", "extra_specs", "os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"}
ORDER = ("active", "stopped", "paused", "suspended", "rescued", "shelved_offloaded", "error")


class Missing(Exception):
    """The API does not know the operation, not even that it was removed."""


@dataclass(frozen=True)
class Kind:
    """A kind of refusal: to which operations it applies (or why not), and what is tried."""

    name: str
    applies: Callable[[Operation, int], str]
    attempt: Callable[[Negatives, Operation], list[Difference]]


def newest(operation: Operation, maximum: int) -> int:
    """The newest microversion of the operation that the cloud claims."""
    return min(operation.max, maximum)


class Negatives:
    """Tries refusals, with a runner's fixtures."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.cloud = runner.cloud
        self.fx = runner.fx
        self.maximum = runner.cloud.target.maximum

    def run(self, case: Case) -> Result:
        """One case; its kind and operation are in the case."""
        if case.reason:
            return Result(case, NOT_APPLICABLE, case.reason)
        operation = self.runner.evidence.operations[case.operation]
        kind = KINDS[case.extra["kind"]]
        mark = self.fx.made
        try:
            if not operation.removed and not self.runner.served(operation):
                return Result(case, ABSENT)
            found = kind.attempt(self, operation)
        except Missing:
            return Result(case, ABSENT)
        except Blocked as why:
            return Result(case, BLOCKED, str(why))
        finally:
            self.fx.release(mark)
        return Result(case, FAIL if found else PASS, differences=found)

    def ask(self, operation: Operation, body: Any = None, *, id: str = NOBODY, version: Any = None, query: str = "",
            persona: str = "admin") -> Exchange:
        """Send the operation, about a thing that is not there unless *id* is given."""
        if version is None:
            version = newest(operation, self.maximum)
        return self.cloud.noted(self.cloud.compute(
            operation.method, filled(operation, id) + query, body, version=version, persona=persona))

    def body(self, operation: Operation, version: int | None = None) -> Any:
        """A body that the operation takes at *version*, as the sample has it."""
        if operation.method in ("GET", "DELETE"):
            return None
        version = newest(operation, self.maximum) if version is None else version
        sample = self.runner.evidence.request_for(operation.like, version)
        if sample:
            return self.runner.evidence.body(sample.file)
        if operation.action:
            return {operation.action: BODIES.get(operation.action)}
        if operation.like in PLAIN:
            return copy.deepcopy(PLAIN[operation.like])
        if not operation.row.get("request"):
            return None
        raise Blocked("there is no sample of a request to begin with")

    def bound(self, operation: Operation, server: str, volume: str = NOBODY) -> Any:
        """The same with this site's things."""
        version = newest(operation, self.maximum)
        scene = Scene(self.fx, operation, version, known={"server": server, "volume": volume},
                      params={"id": server, "server_id": server})
        return bind(scene, self.body(operation))


# ---- versions

def _below(negatives: Negatives, operation: Operation) -> list[Difference]:
    answer = negatives.ask(operation, negatives.body(operation), version=operation.min - 1)
    return fault(answer, (404,))


def _above(negatives: Negatives, operation: Operation) -> list[Difference]:
    answer = negatives.ask(operation, negatives.body(operation), version=operation.max + 1)
    return fault(answer, (404,))


def _malformed(negatives: Negatives, operation: Operation) -> list[Difference]:
    return fault(negatives.ask(operation, version="2.x"), (400,), versioned=False)


def _out_of_range(negatives: Negatives, operation: Operation) -> list[Difference]:
    return fault(negatives.ask(operation, version="2.9999"), (406,), versioned=False)


def _removed(negatives: Negatives, operation: Operation) -> list[Difference]:
    wanted = 400 if operation.kind == "removed (400)" else 410
    body = None if operation.method in ("GET", "DELETE") else {operation.action: None} if operation.action else {}
    server = negatives.fx.server() if operation.action and operation.of_server else NOBODY
    answer = negatives.ask(operation, body, id=server, version=1)
    if negatives.runner.absence(answer, operation.action):
        raise Missing
    return fault(answer, (wanted,))


# ---- input

def _unknown_action(negatives: Negatives, operation: Operation) -> list[Difference]:
    return fault(negatives.ask(operation, {"magnetarUnknown": None}, id=_thing(negatives, operation)), (400,))


def _thing(negatives: Negatives, operation: Operation) -> str:
    return negatives.fx.server() if operation.of_server else NOBODY


def _extra_key(negatives: Negatives, operation: Operation) -> list[Difference]:
    body = negatives.body(operation)
    found = fault(negatives.ask(operation, {**body, "magnetar": 1}), (400,))
    for key, inner in body.items():
        if isinstance(inner, dict) and key not in OPEN and operation.id != "flavors.os-extra_specs.update":
            found += fault(negatives.ask(operation, {**body, key: {**inner, "magnetar": 1}}), (400,))
    return found


def _bad_json(negatives: Negatives, operation: Operation) -> list[Difference]:
    return fault(negatives.ask(operation, b"{"), (400,))


def _extra_query(negatives: Negatives, operation: Operation) -> list[Difference]:
    strict = operation.strict_query or 1
    body = negatives.body(operation, strict)
    found = fault(negatives.ask(operation, body, version=strict, query="?magnetar=1"), (400,))
    if strict - 1 >= operation.min:
        answer = negatives.ask(operation, body, version=strict - 1, query="?magnetar=1")
        if answer.status == 400 and "magnetar" in answer.message:
            found.append(Difference("#status", "status", "the parameter ignored before its microversion",
                                    f"400 {answer.message}"))
    return found


def _marker(negatives: Negatives, operation: Operation) -> list[Difference]:
    server = negatives.fx.server() if operation.path.startswith("/servers/") else NOBODY
    return fault(negatives.ask(operation, id=server, query=f"?marker={NOBODY}"), (400,))


# ---- states and people

def _wrong_state(negatives: Negatives, operation: Operation) -> list[Difference]:
    accepted = set(operation.states.replace(";", " ").replace(":", " ").split())
    wrong = next((one for one in ORDER if one not in accepted), None)
    if wrong is None:
        raise Blocked("every state that the runner can make is accepted")
    server = negatives.fx.server(wrong)
    return fault(negatives.ask(operation, negatives.bound(operation, server), id=server), (409,))


def _locked(negatives: Negatives, operation: Operation) -> list[Difference]:
    fx = negatives.fx
    volume = fx.volume() if "volume" in operation.path else NOBODY
    server = fx.spent(state(operation))
    body = negatives.bound(operation, server, volume)
    fx.compute("POST", f"/servers/{server}/action", {"lock": None}, what="lock")
    found = []
    if operation.role == "project member":
        found = fault(negatives.ask(operation, body, id=server, persona="member"), (409,))
    answer = negatives.ask(operation, body, id=server)
    if answer.status >= 400 and answer.status not in REFUSED.get(operation.id, ()):
        found.append(Difference("#status", "status", "success for the administrator",
                                f"{answer.status} {answer.message}"))
    fx.settle(server, 1.0)
    return found


def _other_project(negatives: Negatives, operation: Operation) -> list[Difference]:
    answer = negatives.ask(operation, negatives.body(operation), id=negatives.fx.server(), persona="other")
    return fault(answer, (404,))


def _reader(negatives: Negatives, operation: Operation) -> list[Difference]:
    return fault(_as(negatives, operation, "reader"), (403,))


def _member(negatives: Negatives, operation: Operation) -> list[Difference]:
    return fault(_as(negatives, operation, "member"), (403,))


def _as(negatives: Negatives, operation: Operation, persona: str) -> Exchange:
    server = _own(negatives, operation)
    try:
        body = negatives.bound(operation, server)
    except Blocked:
        body = negatives.body(operation)
    return negatives.ask(operation, body, id=server, persona=persona)


def _own(negatives: Negatives, operation: Operation) -> str:
    return negatives.fx.server() if operation.of_server else NOBODY


def _nobody(negatives: Negatives, operation: Operation) -> list[Difference]:
    answer = negatives.ask(operation, persona="")
    return [] if answer.status == 401 else [Difference("#status", "status", "401", str(answer.status))]


def _quota(negatives: Negatives, operation: Operation) -> list[Difference]:
    """One server more than the second project may have; its quota is made small when it is large."""
    cloud, fx = negatives.cloud, negatives.fx
    project = cloud.personas["other"].project_id
    there = fx.compute("GET", f"/os-quota-sets/{project}")["quota_set"]["instances"]
    fx.compute("PUT", f"/os-quota-sets/{project}", {"quota_set": {"instances": 1, "force": True}})
    fx.undo("quota", lambda: cloud.compute("PUT", f"/os-quota-sets/{project}", {"quota_set": {"instances": there}}))
    body = {"server": {**fx.document(networks="none"), "min_count": 2, "max_count": 2}}
    return fault(negatives.ask(operation, body, persona="other"), (403,))


def _view(negatives: Negatives, operation: Operation) -> list[Difference]:
    """What only administrators see is not in the owner's view."""
    server = negatives.fx.server()
    found = []
    for version in (1, 3, 16, 47, 75, 89, negatives.maximum):
        answer = negatives.ask(operation, id=server, version=version, persona="member")
        if answer.status != 200:
            return [Difference("#status", "status", "200", f"{answer.status} {answer.message}")]
        found += [Difference(pointer, "persona", "for administrators only", f"seen by the owner at 2.{version}")
                  for pointer in sorted(keys(answer.body)) if for_administrators(pointer, version)]
    return found


def _project(negatives: Negatives, operation: Operation) -> list[Difference]:
    """The project's id may stand in the path; links have it then; another project's is a 400."""
    cloud, own = negatives.cloud, negatives.cloud.admin.project_id
    answer = cloud.compute("GET", f"/{own}{operation.path}")
    found = []
    if answer.status != 200:
        found.append(Difference("#status", "status", "200", f"{answer.status} {answer.message}"))
    base = cloud.target.url.rstrip("/")
    for pointer, value in leaves(answer.body):
        if pointer.endswith("/href") and not str(value).startswith((f"{base}/v2.1/{own}/", f"{base}/{own}/")):
            found.append(Difference(pointer, "link", f"{base}/[v2.1/]{own}/...", str(value)))
    other = cloud.personas["other"].project_id
    return found + fault(cloud.compute("GET", f"/{other}{operation.path}"), (400,))


def _live(operation: Operation) -> str:
    return "removed from Nova: its only refusal is another case" if operation.removed else ""


def _versions(operation: Operation) -> str:
    return "outside of microversions" if operation.id in UNVERSIONED else _live(operation)


def _takes(operation: Operation) -> bool:
    return operation.method in ("POST", "PUT") and bool(operation.action or operation.row.get("request"))


def _if(test: bool, why: str) -> str:
    return "" if test else why


def _stateful(operation: Operation) -> bool:
    return operation.of_server and "task_state" not in operation.states and bool(
        operation.action or (operation.method == "POST" and "{id}" not in operation.path))


#: One action of each route that takes actions.
_ACTED = ("lock", "add_host", "addTenantAccess", "force_complete")

_PROJECT = ("project member", "project reader")
_NO = "says nothing about this operation"
KINDS: dict[str, Kind] = {kind.name: kind for kind in (
    Kind("below", lambda o, top: _versions(o) or _if(1 < o.min <= top, _NO), _below),
    Kind("above", lambda o, top: _versions(o) or _if(o.max < top, _NO), _above),
    Kind("malformed version", lambda o, top: _versions(o), _malformed),
    Kind("version out of range", lambda o, top: _versions(o), _out_of_range),
    Kind("removed", lambda o, top: _if(o.removed, _NO), _removed),
    Kind("unknown action", lambda o, top: _live(o) or _if(o.action in _ACTED, _NO), _unknown_action),
    Kind("extra key", lambda o, top: _live(o) or _if(_takes(o), _NO), _extra_key),
    Kind("bad JSON", lambda o, top: _live(o) or _if(_takes(o), _NO), _bad_json),
    Kind("extra query", lambda o, top: _live(o) or _if((o.strict_query or top + 1) <= top, _NO),
         _extra_query),
    Kind("unknown marker", lambda o, top: _live(o) or _if("marker" in (o.row.get("query") or []), _NO), _marker),
    Kind("wrong state", lambda o, top: _live(o) or _if(_stateful(o) and bool(o.states) and "any" not in o.states, _NO),
         _wrong_state),
    Kind("locked", lambda o, top: _live(o) or _if(_stateful(o) and o.blocked_by_lock, _NO), _locked),
    Kind("other project", lambda o, top: _live(o) or _if(o.of_server and o.role in _PROJECT, _NO),
         _other_project),
    Kind("reader", lambda o, top: _live(o) or _if(o.role == "project member", _NO), _reader),
    Kind("member", lambda o, top: _live(o) or _if(o.role == "admin", _NO), _member),
    Kind("nobody", lambda o, top: _live(o) or _if(o.role != "unauthenticated", _NO), _nobody),
    Kind("owner's view", lambda o, top: _if(o.id in ("servers.show", "servers.detail.list"), _NO), _view),
    Kind("project in the path", lambda o, top: _if(o.id in ("servers.list", "flavors.list", "limits.list"), _NO),
         _project),
    Kind("over quota", lambda o, top: _if(o.id == "servers.create", _NO), _quota),
)}


def plan(evidence: Evidence, maximum: int) -> Iterable[Case]:
    """A case for every operation and kind; kinds that say nothing about an operation are left out."""
    for operation in evidence.operations.values():
        for kind in KINDS.values():
            reason = kind.applies(operation, maximum)
            if reason == _NO or reason.startswith("removed from Nova"):
                continue
            yield Case(id=f"{operation.id} {kind.name}", kind="negative", area=operation.area, operation=operation.id,
                       version=newest(operation, maximum), direction="request", group=f"negative: {kind.name}",
                       reason=reason, extra={"kind": kind.name})


def describe(result: Result) -> str:
    """A result on one line, for people."""
    return f"{result.case.id}: {json.dumps([one.document() for one in result.differences])}"
