# SPDX-License-Identifier: GPL-3.0-or-later
"""Which server actions are asked for, and in which order, so that a server is as wanted. Pure.

Each action leads to steps of the agent, which an answer shows. The agents' own planner says them, from what was last
known of the server; in a dry run the agent is asked, where it can be (``server_dry_run``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_core import server_plan as host
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import asked_of
from magnetar_core.local_disks import ephemeral_gib, is_blank
from magnetar_core.plan import Step
from magnetar_core.power import MISSING, OFF, PAUSED, RUNNING, SHELVED, SUSPENDED, actions_between, wanted
from magnetar_core.reconcile import Document

#: The verbs of actions that no agent plans as a change of its server.
VERBS: Mapping[str, str] = {
    "update": "define", "attach_interface": "plug", "detach_interface": "plug", "confirmResize": "confirm",
    "migrate": "migrate", "os-migrateLive": "migrate", "reboot-hard": "start", "shelve": "shelve",
    "unshelve": "unshelve"}
#: Laid over a flavor of which nobody knows more than that it is another.
ANOTHER: Mapping[str, Any] = {"vcpus": 0}


#: Fields that the use case of updates sets at once.
TOLD = ("name", "description", "hostname", "access_ip_v4", "access_ip_v6", "disk_config")


class PlannedAction(NamedTuple):
    """One call of a use case: a key of ``server_actions.DO`` or ``PLAIN``, and its *args*."""

    key: str
    args: Mapping[str, Any] = {}


def wish(action: PlannedAction, want: Document, have: Document) -> Document | None:
    """What the conductors send to the agent for an action: fields of its server. ``None`` for actions that change no
    field of it, or that the conductors ask for in another way."""
    row = ACTIONS.get(action.key)
    if row is not None and row.want:
        return dict(row.want)
    running: Document = {"power": RUNNING}
    if action.key == "resize":
        sizes = {name: want["flavor"][name] for name in ("vcpus", "ram", "swap")}
        disks = {name: max(size, want["flavor"][name]) for name, size in have["_disks"].items()}
        return {"flavor": {**sizes, **disks, **(ANOTHER if want["_assumed"] else {})}, "guest_data": _told_anew(want),
                **_hardware(want, have)}
    if action.key == "rebuild":
        key = {"key_name": want["key_name"]} if want["key_name"] != have["key_name"] else {}
        same = {name: want[name] for name in ("user_data", "metadata")}
        return {"image": (want["image"] or {}).get("id"), **same, **key}
    if action.key == "rescue":
        return {"rescue": {"image": action.args["image"]} if action.args["image"] else {}, **running}
    return {"rescue": None, **running} if action.key == "unrescue" else running if action.key == "reboot" else None


def _hardware(want: Document, have: Document) -> Document:
    """The hardware that another flavor brings; nothing where none is known, or where the action will be refused it."""
    if want.get("_specs") is None:
        return {}
    flavor = {"vcpus": want["flavor"]["vcpus"], "extra_specs": want["_specs"]}
    with contextlib.suppress(InvalidField):
        return {"hardware": asked_of(flavor, {"properties": have["_properties"]}).get("hardware", {})}
    return {}


def _told_anew(want: Document) -> Document:
    """What stands for that which the guest is told with another flavor: only that it differs matters."""
    return {"name": want["name"], "hostname": want["name"], "project_id": "", "launch_index": 0, "reservation_id": "",
            "flavor": str(want.get("_flavor")), "availability_zone": "", "keys": [], "security_groups": []}


def predictions(actions: Iterable[PlannedAction], want: Document,
                have: Document) -> Iterator[tuple[PlannedAction, Document | None, list[Step]]]:
    """Yield each action, its ``wish``, and its steps after those before it on a host that has the server as *have*."""
    known, last = _known(have), ""
    for action in actions:
        wished, verb = wish(action, want, have), VERBS.get(action.key, "")
        if action.key == "rebuild" and not want["image"]:  # its root disk is a volume
            known = {**known, "block_device_mapping": want["block_device_mapping"]}
        if wished is None:
            yield action, None, [host.step(verb)] if verb not in ("", last) else []  # several NICs are told once
            known = {**known, "power": RUNNING} if action.key == "unshelve" else known
        else:
            there = {**host.observed(known), "allow_reboot": True,
                     "rebuild": action.key == "rebuild" and have["rebuild"],
                     **({"drive": ""} if "guest_data" in wished else {})}  # it says what the drive did not
            there["root_bytes"] *= have["image"] is not None  # else its root disk is a volume
            known = {**known, **wished}
            yield action, wished, list(host.plan(known, there))
        last = verb


def _known(server: Document) -> Document:
    """The fields of a server that its agent's plan is about. NICs are actions of their own."""
    return {**{name: server[name] for name in ("name", "description", "config_drive", "power", "rescue")},
            "hardware": server.get("hardware") or {},
            "flavor": {**server["flavor"], **server.get("_disks", {})}, "networks": [],
            "block_device_mapping": list(filter(is_blank, server.get("block_device_mapping") or ()))}


def steps(actions: Iterable[PlannedAction], want: Document, have: Document) -> list[Step]:
    """The steps of the *actions* from *have* on."""
    return [step for _action, _wish, some in predictions(actions, want, have) for step in some]


def steps_before(keys: Sequence[str], have: Document) -> list[Step]:
    """The steps of actions that have led to *have*, as far as their *keys* say what there was before."""
    first = (wanted(ACTIONS[key].states[0], 0) for key in keys if key in ACTIONS and ACTIONS[key].want)
    before = {**have, "rescue": {} if "unrescue" in keys else None, "rebuild": {"preserve_ephemeral": False},
              "power": next(first, have["power"]),
              "flavor": {**have["flavor"], **(ANOTHER if "resize" in keys else {})}}
    return steps([PlannedAction(key, {"image": None}) for key in keys], {**have, "_assumed": False}, before)


def making(want: Document) -> Iterator[Step]:
    """The steps with which a server comes into being: it runs first, unless it is to be off."""
    power = want["power"] if want["power"] == OFF else RUNNING
    yield from host.plan({**_known(want), "block_device_mapping": want["block_device_mapping"], "power": power,
                          "rescue": None}, None)
    yield from (host.step(verb) for _key, verb in actions_between(power, want["power"]))


def removing(have: Document) -> Iterator[Step]:
    """The steps with which it goes."""
    gone = [one["name"] or one["id"] for one in have["volumes_attached"] if one["delete_on_termination"]]
    there = {"power": have["power"] if have["_host"] else MISSING, "attached": bool(have["volumes_attached"])}
    for step in host.plan(None, there):
        more = f", and delete {', '.join(gone)} with it" if gone and step.verb == "free" else ""
        yield Step(step.verb, step.text + more)


def plan(want: Document, have: Document) -> Iterator[PlannedAction]:
    """Yield the actions from *have* to *want*. *have* also says what the caller allows or asks for: ``allow_reboot``,
    ``rebuild``. Raises ``Conflict`` where there is no way that loses nothing."""
    rebuild, plugs = have.get("rebuild"), _plugs(want, have)
    if have["power"] == SHELVED == want["power"]:
        _check_shelved(want, have, bool(rebuild or plugs))
    power, place = yield from _unshelved(want, have)
    yield from _told(want, have)
    rescued = have["rescue"] is not None
    if rescued and want["rescue"] is None:
        yield PlannedAction("unrescue")
        power, rescued = RUNNING, False
    resize = want["flavor"] != have["flavor"]
    if rescued and (resize or rebuild or plugs or power != want["power"]):
        raise Conflict(f"Server {want['name']!r} is rescued. Unrescue it first, then change it.")
    if resize:
        power = yield from _resize(want, have, power)
    if rebuild:
        power = yield from _started(power)
        yield PlannedAction("rebuild")
    if plugs and power == SUSPENDED:
        raise Conflict(f"networks: cannot change while server {want['name']!r} is suspended. Start or stop it first.",
                       fields=["networks"])
    yield from plugs
    if want["rescue"] is not None and not rescued:
        power = yield from _started(power)
        yield PlannedAction("rescue", {"image": (want["rescue"] or {}).get("image")})
        power = RUNNING
    yield from powers(want, have, power)
    if want.get("host") and want["host"] != place and want["power"] != SHELVED:
        yield PlannedAction("migrate", {"host": want["host"], "power": want["power"]})


def _check_shelved(want: Document, have: Document, changes: bool) -> None:
    """Raises ``Conflict`` for what does not change while a server stays shelved."""
    if changes or any(want[name] != have[name] for name in ("flavor", "rescue", "metadata", "tags")):
        raise Conflict(f"Server {want['name']!r} is shelved. Unshelve it first (ask for power running), then change "
                       "it.")


def _unshelved(want: Document, have: Document) -> Generator[PlannedAction, None, tuple[str, str | None]]:
    """Have a shelved server run that is to be another; returns the power state then, and its host. One that is on no
    host is unshelved to the one that is wanted."""
    power, place = have["power"], have["_host"]
    if power != SHELVED or want["power"] == SHELVED:
        return power, place
    wished = want.get("host") if place is None else None
    yield PlannedAction("unshelve", {"host": wished})
    return RUNNING, wished or place


def _told(want: Document, have: Document) -> Iterator[PlannedAction]:
    """What needs no change of the guest, and a resize that waits for a word."""
    told = {name: want.get(name) for name in TOLD if name in want and want[name] != have[name]}
    if told:
        yield PlannedAction("update", told)
    for name in ("metadata", "tags"):
        if want[name] != have[name] and not (have.get("rebuild") and name == "metadata"):
            yield PlannedAction(name, {"value": want[name]})
    if {*want.get("_groups", ())} != {*have.get("_groups", ())}:
        yield PlannedAction("security_groups", {"want": want["_groups"], "have": have["_groups"]})
    if have["_vm_state"] == "resized":
        yield PlannedAction("confirmResize")


def _to(power: str, target: str) -> Generator[PlannedAction, None, str]:
    """The actions from one power state to another, which is returned."""
    yield from (PlannedAction(key) for key, _verb in actions_between(power, target))
    return target


def _started(power: str) -> Generator[PlannedAction, None, str]:
    """Have a paused or suspended guest run; returns the power state then."""
    return (yield from _to(power, RUNNING if power in (PAUSED, SUSPENDED) else power))


def _resize(want: Document, have: Document, power: str) -> Generator[PlannedAction, None, str]:
    """Another flavor; returns the power state then."""
    if power != OFF and want["power"] != OFF and not have.get("allow_reboot"):
        raise Conflict(f"flavor: can change only while server {want['name']!r} is off, and it is {power}. Stop it "
                       "first, ask for power off in the same call, or set allow_reboot to have it stopped, changed "
                       "and started again.", fields=["flavor"])
    power = yield from _to(power, OFF if OFF in (want["power"], power) else RUNNING)
    yield PlannedAction("resize", {"flavor": want["_flavor"]})
    return power


def powers(want: Document, have: Document, power: str) -> Iterator[PlannedAction]:
    """The actions from *power* to the power state that is wanted; a server in error is rebooted."""
    if have["_vm_state"] == "error" and want["power"] == RUNNING and power != RUNNING:
        yield PlannedAction("reboot", {"type": "hard"})
    else:
        yield from _to(power, want["power"])


def shrinks(have: Document, want: Document) -> None:
    """Raises ``Conflict`` for a flavor with a smaller disk than the server has: disks do not shrink."""
    had, wanted_flavor = have["flavor"], want["flavor"]
    ephemeral = ephemeral_gib(had, have.get("block_device_mapping") or ())
    for word, old, new in (("root", had["disk"], wanted_flavor["disk"]),
                           ("ephemeral", ephemeral, wanted_flavor["ephemeral"])):
        if new < old:
            raise Conflict(f"flavor: the {word} disk of server {want['name']!r} has {old} GiB and cannot shrink to "
                           f"{new}. Choose a flavor with a disk as large, or make another server.", fields=["flavor"])


def nics_fit(wishes: list[Document], nics: list[Document]) -> tuple[list[Document], list[Document]]:
    """The *nics* that no wish wants, and the *wishes* that no NIC fits. Networks are compared by which and how often,
    and by addresses that are asked for. Ports that a wish names are for that wish, and the last that another gets."""
    left = sorted(nics, key=lambda nic: not nic.get("_made", True))
    more = []
    for wish in sorted(wishes, key=lambda nic: not nic.get("_port")):
        fits = [nic for nic in left if nic["_id"] == wish["_id"] and wish.get("address") in (None, nic.get("address"))
                and wish.get("mac") in (None, nic["mac"]) and wish.get("_port") in (None, nic["_port"])]
        if fits:
            left.remove(fits[0])
        else:
            more.append(wish)
    return left, more


def _plugs(want: Document, have: Document) -> list[PlannedAction]:
    left, more = nics_fit(want["networks"], have["networks"])
    return [*(PlannedAction("detach_interface", {"port": nic["_port"]}) for nic in left),
            *(PlannedAction("attach_interface", {"wish": wish, "at": at}) for at, wish in enumerate(more))]
