# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be asked of the cloud so that a server is as wanted: pure, and with the steps' words of the agents.

An ``Act`` is one call of the Compute API (``do``, ``args``) and the steps that a host takes for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from magnetar_core.errors import Conflict
from magnetar_core.plan import Step
from magnetar_core.power import OFF, PAUSED, RUNNING, STEPS, SUSPENDED, actions_between

Document = dict[str, Any]
TEXT = {
    "record": "record server", "disks": "make the disks", "drive": "write the config drive",
    "define": "define the domain",
    "grow": "grow the root disk", "grow_ephemeral": "grow the ephemeral disk", "drop_swap": "remove the swap disk",
    "start": "start", "stop": "shut down", "pause": "pause", "resume": "resume", "save": "suspend to disk",
    "destroy": "power off", "undefine": "forget the domain", "free": "detach its volumes", "erase": "remove the disks",
    "volumes": "make and attach volumes", "plug": "change the NICs", "wipe": "remove the disks",
    "rebuilt": "note that it is rebuilt", "rescue": "make the rescue disk", "unrescue": "remove the rescue disk",
    "confirm": "keep the new flavor", "migrate": "move it to another host", "forget": "forget server"}


class Act(NamedTuple):
    """One thing to ask for."""

    do: str
    verbs: tuple[str, ...] = ()
    args: Mapping[str, Any] = {}


def steps(acts: list[Act]) -> list[Step]:
    """The steps of *acts*; whatever is asked for is recorded first."""
    verbs = ["record", *(verb for act in acts for verb in act.verbs)] if acts else []
    return [Step(verb, TEXT[verb]) for verb in verbs]


def asked(keys: list[str]) -> list[Step]:
    """The steps of what a request has asked before: it is sent again, and everything is done."""
    verbs = dict(STEPS.values())
    told = {"resize": ("stop", "define", "start"), "rebuild": ("wipe", "disks", "define", "rebuilt"),
            "confirmResize": (), "rescue": ("rescue", "define", "start"), "os-migrateLive": ("migrate",),
            "migrate": ("migrate",), "unrescue": ("define", "unrescue", "start"), "reboot-hard": ("start",)}
    found = ["record", *(verb for key in keys for verb in told.get(key, (verbs[key],) if key in verbs else ()))]
    return [Step(verb, TEXT[verb]) for verb in found] if keys else []


def making(want: Document) -> list[Step]:
    """The steps with which a server comes into being."""
    verbs = ["record", *(["volumes"] if want.get("block_device_mapping") else []), "disks",
             *(["drive"] if want.get("config_drive", True) else []), "define", "start"]
    verbs += [verb for _key, verb in actions_between(RUNNING, want.get("power", RUNNING))]
    return [Step(verb, TEXT[verb]) for verb in verbs]


def removing(have: Document) -> list[Step]:
    """The steps with which it goes."""
    verbs = ["destroy"] if have["power"] in (RUNNING, PAUSED) and have["_host"] else []
    verbs += ["undefine"] if have["_host"] else []
    verbs += ["free"] if have["volumes_attached"] else []
    gone = [one["name"] or one["id"] for one in have["volumes_attached"] if one["delete_on_termination"]]
    text = {**TEXT, **({"free": f"detach its volumes, and delete {', '.join(gone)} with it"} if gone else {})}
    return [Step(verb, text[verb]) for verb in (*verbs, "erase", "forget")]


def plan(want: Document, have: Document, allow_reboot: bool, rebuild: bool) -> Iterator[Act]:
    """Yield the acts from *have* to *want*. Raises ``Conflict`` where there is no way that loses nothing."""
    told = {name: want[name] for name in ("name", "description") if want[name] != have[name]}
    if told:
        yield Act("update", ("define",), told)
    for name in ("metadata", "tags"):
        if want[name] != have[name] and not (rebuild and name == "metadata"):
            yield Act(name, (), {"value": want[name]})
    if have["_vm_state"] == "resized":
        yield Act("confirmResize", ("confirm",))
    power = have["power"]
    rescued = have["rescue"] is not None
    if rescued and want["rescue"] is None:
        yield Act("unrescue", ("stop", "define", "unrescue", "start"))
        power, rescued = RUNNING, False
    differs, plugs = resizes(want, have), _plugs(want, have)
    if rescued and (differs or rebuild or plugs or power != want["power"]):
        raise Conflict(f"Server {want['name']!r} is rescued. Unrescue it first, then change it.")
    if differs:
        if power != OFF and want["power"] != OFF and not allow_reboot:
            raise Conflict(f"flavor: can change only while server {want['name']!r} is off, and it is {power}. Stop it "
                           "first, ask for power off in the same call, or set allow_reboot to have it stopped, changed "
                           "and started again.", fields=["flavor"])
        yield from _to(power, OFF if want["power"] == OFF else RUNNING if power != OFF else OFF)
        power = OFF if want["power"] == OFF or power == OFF else RUNNING
        yield Act("resize", _resizing(want, have, power), {"flavor": want["flavor"]["id"]})
    if rebuild:
        if power in (PAUSED, SUSPENDED):
            yield from _to(power, RUNNING)
            power = RUNNING
        yield Act("rebuild", _rebuilding(want, power), {})
    yield from plugs if power != SUSPENDED else _unsuspended(want, plugs)
    if want["rescue"] is not None and not rescued:
        yield from _rescue(want, power)
        power = RUNNING
    yield from _powers(want, have, power)
    if want.get("host") and want["host"] != have["_host"]:
        yield Act("migrate", ("migrate",), {"host": want["host"], "power": want["power"]})


def _to(power: str, target: str) -> Iterator[Act]:
    for key, verb in actions_between(power, target):
        yield Act(key, (verb,))


def _powers(want: Document, have: Document, power: str) -> Iterator[Act]:
    """The way to the power state; what is in error is rebooted."""
    if have["_vm_state"] == "error" and want["power"] == RUNNING and have["_power_wanted"] and power != RUNNING:
        yield Act("reboot", ("start",), {"type": "HARD"})
    else:
        yield from _to(power, want["power"])


def resizes(want: Document, have: Document) -> bool:
    """Whether another flavor is asked for."""
    mine, its = have["flavor"], want["flavor"]
    return any(mine.get(name) != its.get(name) for name in ("name", "vcpus", "ram", "disk", "ephemeral", "swap")
               if name in its)


def shrinks(have: Document, want: Document) -> None:
    """Raises ``Conflict`` for a flavor whose root disk is smaller: disks do not shrink."""
    old, new = have["flavor"]["disk"], want["flavor"]["disk"]
    if new < old:
        raise Conflict(f"flavor: the root disk of server {want['name']!r} has {old} GiB and cannot shrink to {new}. "
                       "Choose a flavor with a disk as large, or make another server.", fields=["flavor"])


def _resizing(want: Document, have: Document, power: str) -> tuple[str, ...]:
    old, new = have["flavor"], want["flavor"]
    verbs = ["stop"] if power != OFF else []
    verbs += ["drop_swap"] if new["swap"] != old["swap"] and old["swap"] else []
    swapped = new["swap"] != old["swap"] and new["swap"]
    verbs += ["disks"] if swapped or (new["ephemeral"] and not old["ephemeral"]) else []
    verbs += ["grow"] if new["disk"] > old["disk"] else []
    verbs += ["grow_ephemeral"] if new["ephemeral"] > old["ephemeral"] > 0 else []
    return (*verbs, "define", *(("start",) if power != OFF else ()))


def _rebuilding(want: Document, power: str) -> tuple[str, ...]:
    return (*(("stop",) if power != OFF else ()), "wipe", "disks", *(("drive",) if want["config_drive"] else ()),
            "define", "rebuilt", *(("start",) if power != OFF else ()))


def _plugs(want: Document, have: Document) -> list[Act]:
    """Networks are compared by which and how often, and by addresses that are asked for."""
    left = list(have["networks"])
    more = []
    for wish in want["networks"]:
        fits = [nic for nic in left if nic["_id"] == wish["_id"] and wish.get("address") in (None, nic.get("address"))
                and wish.get("mac") in (None, nic["mac"])]
        if fits:
            left.remove(fits[0])
        else:
            more.append(wish)
    found = [Act("detach_interface", (), {"port": nic["_port"]}) for nic in left]
    found += [Act("attach_interface", (), {"wish": wish, "at": at}) for at, wish in enumerate(more)]
    return [act._replace(verbs=("plug",)) if not at else act for at, act in enumerate(found)]


def _unsuspended(want: Document, plugs: list[Act]) -> Iterator[Act]:
    if plugs:
        raise Conflict(f"networks: cannot change while server {want['name']!r} is suspended. Start or stop it first.",
                       fields=["networks"])
    yield from ()


def _rescue(want: Document, power: str) -> Iterator[Act]:
    if power in (PAUSED, SUSPENDED):
        yield from _to(power, RUNNING)
        power = RUNNING
    yield Act("rescue", (*(("stop",) if power == RUNNING else ()), "rescue", "define", "start"),
              {"image": (want["rescue"] or {}).get("image")})
