# SPDX-License-Identifier: GPL-3.0-or-later
"""Which server actions are asked for, and in which order, so that a server is as wanted. Pure.

Each action leads to steps of the agent, which an answer shows. In a dry run the agent is asked for them, where it can
be (``server_dry_run``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_core.errors import Conflict
from magnetar_core.plan import Step
from magnetar_core.power import LIVE, OFF, PAUSED, RUNNING, STEPS, SUSPENDED, actions_between
from magnetar_core.reconcile import Document
from magnetar_core.server_steps import TEXT, step

#: The verbs of the agent that an action of a server that runs leads to, as far as its key says them.
VERBS: Mapping[str, Sequence[str]] = {
    "update": ("define",), "confirmResize": ("confirm",), "resize": ("stop", "define", "start"),
    "rebuild": ("stop", "wipe", "disks", "drive", "define", "rebuilt", "start"),
    "rescue": ("stop", "rescue", "define", "start"), "unrescue": ("stop", "define", "unrescue", "start"),
    "migrate": ("migrate",), "os-migrateLive": ("migrate",), "reboot": ("start",), "reboot-hard": ("start",),
    **{key: (verb,) for key, verb in STEPS.values()}}


class PlannedAction(NamedTuple):
    """One call of a use case: a key of ``server_actions.DO`` or ``PLAIN``, its *args*, and the verbs of the agent that
    it leads to where these are not those of ``VERBS``."""

    key: str
    args: Mapping[str, Any] = {}
    verbs: Sequence[str] | None = None


def steps(actions: Sequence[PlannedAction]) -> list[Step]:
    return [step(verb) for action in actions
            for verb in (VERBS.get(action.key, ()) if action.verbs is None else action.verbs)]


def making(want: Document) -> Iterator[Step]:
    """The steps with which a server comes into being."""
    verbs = [*(["volumes"] if want.get("block_device_mapping") else []), "disks",
             *(["drive"] if want.get("config_drive", True) else []), "define"]
    power = want.get("power", RUNNING)
    yield from map(step, verbs if power == OFF else [*verbs, "start"])
    yield from (step(verb) for _key, verb in actions_between(OFF if power == OFF else RUNNING, power))


def removing(have: Document) -> Iterator[Step]:
    """The steps with which it goes."""
    verbs = ["destroy"] if have["power"] in LIVE and have["_host"] else []
    yield from map(step, [*verbs, *(["undefine"] if have["_host"] else [])])
    gone = [one["name"] or one["id"] for one in have["volumes_attached"] if one["delete_on_termination"]]
    if have["volumes_attached"]:
        yield Step("free", TEXT["free"] + (f", and delete {', '.join(gone)} with it" if gone else ""))
    yield step("erase")


def plan(want: Document, have: Document) -> Iterator[PlannedAction]:
    """Yield the actions from *have* to *want*. *have* also says what the caller allows or asks for: ``allow_reboot``,
    ``rebuild``. Raises ``Conflict`` where there is no way that loses nothing."""
    rebuild, plugs = have.get("rebuild"), _plugs(want, have)
    yield from _told(want, have)
    power, rescued = have["power"], have["rescue"] is not None
    if rescued and want["rescue"] is None:
        yield PlannedAction("unrescue")
        power, rescued = RUNNING, False
    resize = resizes(want, have)
    if rescued and (resize or rebuild or plugs or power != want["power"]):
        raise Conflict(f"Server {want['name']!r} is rescued. Unrescue it first, then change it.")
    if resize:
        power = yield from _resize(want, have, power)
    if rebuild:
        power = yield from _started(power)
        yield PlannedAction("rebuild", verbs=[verb for verb in VERBS["rebuild"] if (
            want["config_drive"] if verb == "drive" else power != OFF or verb not in ("stop", "start"))])
    if plugs and power == SUSPENDED:
        raise Conflict(f"networks: cannot change while server {want['name']!r} is suspended. Start or stop it first.",
                       fields=["networks"])
    yield from plugs
    if want["rescue"] is not None and not rescued:
        power = yield from _started(power)
        yield PlannedAction("rescue", {"image": (want["rescue"] or {}).get("image")},
                            VERBS["rescue"][0 if power == RUNNING else 1:])
        power = RUNNING
    yield from powers(want, have, power)
    if want.get("host") and want["host"] != have["_host"]:
        yield PlannedAction("migrate", {"host": want["host"], "power": want["power"]})


def _told(want: Document, have: Document) -> Iterator[PlannedAction]:
    """What needs no change of the guest, and a resize that waits for a word."""
    told = {name: want[name] for name in ("name", "description") if want[name] != have[name]}
    if told:
        yield PlannedAction("update", told)
    for name in ("metadata", "tags"):
        if want[name] != have[name] and not (have.get("rebuild") and name == "metadata"):
            yield PlannedAction(name, {"value": want[name]})
    if have["_vm_state"] == "resized":
        yield PlannedAction("confirmResize")


def _to(power: str, target: str) -> Iterator[PlannedAction]:
    """The actions from one power state to another."""
    yield from (PlannedAction(key) for key, _verb in actions_between(power, target))


def _started(power: str) -> Generator[PlannedAction, None, str]:
    """Have a paused or suspended guest run; returns the power state then."""
    if power not in (PAUSED, SUSPENDED):
        return power
    yield from _to(power, RUNNING)
    return RUNNING


def _resize(want: Document, have: Document, power: str) -> Generator[PlannedAction, None, str]:
    """Another flavor; returns the power state then."""
    if power != OFF and want["power"] != OFF and not have.get("allow_reboot"):
        raise Conflict(f"flavor: can change only while server {want['name']!r} is off, and it is {power}. Stop it "
                       "first, ask for power off in the same call, or set allow_reboot to have it stopped, changed "
                       "and started again.", fields=["flavor"])
    target = OFF if OFF in (want["power"], power) else RUNNING
    yield from _to(power, target)
    yield PlannedAction("resize", {"flavor": want["_flavor"]}, _resizing(want, have, target))
    return target


def powers(want: Document, have: Document, power: str) -> Iterator[PlannedAction]:
    """The actions from *power* to the power state that is wanted; a server in error is rebooted."""
    if have["_vm_state"] == "error" and want["power"] == RUNNING and power != RUNNING:
        yield PlannedAction("reboot", {"type": "hard"})
    else:
        yield from _to(power, want["power"])


def resizes(want: Document, have: Document) -> bool:
    """Whether another flavor is asked for."""
    mine, its = have["flavor"], want["flavor"]
    return any(mine.get(name) != its.get(name) for name in ("name", "vcpus", "ram", "disk", "ephemeral", "swap")
               if name in its)


def shrinks(have: Document, want: Document) -> None:
    """Raises ``Conflict`` for a flavor with a smaller disk than the server has: disks do not shrink."""
    for name, word in (("disk", "root"), ("ephemeral", "ephemeral")):
        old, new = have["flavor"][name], want["flavor"][name]
        if new < old:
            raise Conflict(f"flavor: the {word} disk of server {want['name']!r} has {old} GiB and cannot shrink to "
                           f"{new}. Choose a flavor with a disk as large, or make another server.", fields=["flavor"])


def _resizing(want: Document, have: Document, power: str) -> tuple[str, ...]:
    old, new = have["flavor"], want["flavor"]
    verbs = ["stop"] if power != OFF else []
    verbs += ["drop_swap"] if new["swap"] != old["swap"] and old["swap"] else []
    swapped = new["swap"] != old["swap"] and new["swap"]
    verbs += ["disks"] if swapped or (new["ephemeral"] and not old["ephemeral"]) else []
    verbs += ["grow"] if new["disk"] > old["disk"] else []
    verbs += ["grow_ephemeral"] if new["ephemeral"] > old["ephemeral"] > 0 else []
    return (*verbs, "define", *(("start",) if power != OFF else ()))


def nics_fit(wishes: list[Document], nics: list[Document]) -> tuple[list[Document], list[Document]]:
    """The *nics* that no wish wants, and the *wishes* that no NIC fits. Networks are compared by which and how often,
    and by addresses that are asked for."""
    left = list(nics)
    more = []
    for wish in wishes:
        fits = [nic for nic in left if nic["_id"] == wish["_id"] and wish.get("address") in (None, nic.get("address"))
                and wish.get("mac") in (None, nic["mac"])]
        if fits:
            left.remove(fits[0])
        else:
            more.append(wish)
    return left, more


def _plugs(want: Document, have: Document) -> list[PlannedAction]:
    left, more = nics_fit(want["networks"], have["networks"])
    found = [*(("detach_interface", {"port": nic["_port"]}) for nic in left),
             *(("attach_interface", {"wish": wish, "at": at}) for at, wish in enumerate(more))]
    return [PlannedAction(key, args, () if at else ("plug",)) for at, (key, args) in enumerate(found)]
