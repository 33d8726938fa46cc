# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a server: the server actions to request, and their order. Pure.

Each action leads to steps of the agent, which an answer shows. The agents' own planner predicts them from the last
known state of the server; a dry run asks the agent, if it can be reached (``server_dry_run``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_core import server_plan as host
from magnetar_core.actions import ACTIONS
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.local_disks import ephemeral_gib, is_blank
from magnetar_core.plan import Step
from magnetar_core.power import MISSING, OFF, PAUSED, RUNNING, SHELVED, SUSPENDED, actions_between, desired_power

#: The verbs of actions that no agent plans as a change of its server.
VERBS: Mapping[str, str] = {
    "update": "define", "attach_interface": "plug", "detach_interface": "plug", "confirmResize": "confirm",
    "migrate": "migrate", "os-migrateLive": "migrate", "reboot-hard": "start", "shelve": "shelve",
    "unshelve": "unshelve"}
#: A placeholder for a flavor of which only the change is known.
ANOTHER: Mapping[str, Any] = {"vcpus": 0}


#: Fields that the update use case sets without an action.
UPDATED_FIELDS = ("name", "description", "hostname", "access_ip_v4", "access_ip_v6", "disk_config")


class PlannedAction(NamedTuple):
    """One action in the plan of a server's change. *key*: the name of the action, such as ``resize``;
    ``server_actions`` maps it to the function that runs the action. *args*: its arguments."""

    key: str
    args: Mapping[str, Any] = {}


def agent_document(action: PlannedAction, want: Document, have: Document) -> Document | None:
    """Return the fields of the server's desired state that the conductors send to the host's agent for *action*. Return
    ``None`` for an action that changes none of these fields, or that the conductors request in another way."""
    row = ACTIONS.get(action.key)
    if row is not None and row.want:
        return dict(row.want)
    running: Document = {"power": RUNNING}
    if action.key == "resize":
        sizes = {name: want["flavor"][name] for name in ("vcpus", "ram", "swap")}
        disks = {name: max(size, want["flavor"][name]) for name, size in have["_disks"].items()}
        return {"flavor": {**sizes, **disks, **(ANOTHER if want["_assumed"] else {})},
                "guest_data": _placeholder_guest_data(want),
                **_hardware(want, have)}
    if action.key == "rebuild":
        key = {"key_name": want["key_name"]} if want["key_name"] != have["key_name"] else {}
        same = {name: want[name] for name in ("user_data", "metadata")}
        return {"image": (want["image"] or {}).get("id"), **same, **key}
    if action.key == "rescue":
        return {"rescue": {"image": action.args["image"]} if action.args["image"] else {}, **running}
    return {"rescue": None, **running} if action.key == "unrescue" else running if action.key == "reboot" else None


def _hardware(want: Document, have: Document) -> Document:
    """Return ``{"hardware": …}``, the virtual hardware that the requested flavor results in. Return an empty dict if
    the flavor does not change. Also return an empty dict if the flavor's extra specs are invalid: then another check
    refuses the resize."""
    if want.get("_specs") is None:
        return {}
    flavor = {"vcpus": want["flavor"]["vcpus"], "extra_specs": want["_specs"]}
    with contextlib.suppress(InvalidField):
        return {"hardware": requested_hardware(flavor, {"properties": have["_properties"]}).get("hardware", {})}
    return {}


def _placeholder_guest_data(want: Document) -> Document:
    """Return a placeholder for the new metadata of the guest, which depend on the flavor. Most values are empty,
    because the planner only checks whether the metadata differ from the current metadata."""
    return {"name": want["name"], "hostname": want["name"], "project_id": "", "launch_index": 0, "reservation_id": "",
            "flavor": str(want.get("_flavor")), "availability_zone": "", "keys": [], "security_groups": []}


def predict_actions(actions: Iterable[PlannedAction], want: Document,
                    have: Document) -> Iterator[tuple[PlannedAction, Document | None, list[Step]]]:
    """Yield (action, document, steps) for each of *actions*: *document* is the result of ``agent_document``, and
    *steps* are the predicted steps. The first action starts from the state *have*, each further action from the result
    of the previous one."""
    predicted, last = _planned_fields(have), ""
    for action in actions:
        wished, verb = agent_document(action, want, have), VERBS.get(action.key, "")
        if action.key == "rebuild" and not want["image"]:  # its root disk is a volume
            predicted = {**predicted, "block_device_mapping": want["block_device_mapping"]}
        if wished is None:
            yield action, None, [host.server_step(verb)] if verb not in ("", last) else []  # one step for several NICs
            predicted = {**predicted, "power": RUNNING} if action.key == "unshelve" else predicted
        else:
            observed = {**host.converged_state(predicted), "allow_reboot": True,
                        "rebuild": action.key == "rebuild" and have["rebuild"],
                        **({"drive": ""} if "guest_data" in wished else {})}  # the drive is out of date
            observed["root_bytes"] *= have["image"] is not None  # otherwise its root disk is a volume
            predicted = {**predicted, **wished}
            yield action, wished, list(host.plan_server(predicted, observed))
        last = verb


def _planned_fields(server: Document) -> Document:
    """Return the fields of *server*, a current or desired state, that influence the agent's plan. ``networks`` is
    empty, because NICs are changed by separate actions."""
    return {**{name: server[name] for name in ("name", "description", "config_drive", "power", "rescue")},
            "hardware": server.get("hardware") or {},
            "flavor": {**server["flavor"], **server.get("_disks", {})}, "networks": [],
            "block_device_mapping": list(filter(is_blank, server.get("block_device_mapping") or ()))}


def steps_of_actions(actions: Iterable[PlannedAction], want: Document, have: Document) -> list[Step]:
    """Return the predicted steps of all *actions*, which change the server from the state *have* to *want*."""
    return [step for _action, _wish, some in predict_actions(actions, want, have) for step in some]


def steps_before(keys: Sequence[str], have: Document) -> list[Step]:
    """Return the steps that past actions have probably done until the server reached the state *have*. *keys*: the
    names of these actions, such as ``resize``. The state before the actions is derived from their names, as far as
    possible."""
    first = (desired_power(ACTIONS[key].states[0], 0) for key in keys if key in ACTIONS and ACTIONS[key].want)
    initial = {**have, "rescue": {} if "unrescue" in keys else None, "rebuild": {"preserve_ephemeral": False},
               "power": next(first, have["power"]),
               "flavor": {**have["flavor"], **(ANOTHER if "resize" in keys else {})}}
    return steps_of_actions([PlannedAction(key, {"image": None}) for key in keys], {**have, "_assumed": False}, initial)


def creation_steps(want: Document) -> Iterator[Step]:
    """Yield the steps that create the server *want* and, unless it must be off, start it."""
    power = want["power"] if want["power"] == OFF else RUNNING
    yield from host.plan_server({**_planned_fields(want), "block_device_mapping": want["block_device_mapping"],
                                 "power": power,
                                 "rescue": None}, None)
    yield from (host.server_step(verb) for _key, verb in actions_between(power, want["power"]))


def removal_steps(have: Document) -> Iterator[Step]:
    """Yield the steps that remove the server *have*, and the volumes with delete_on_termination."""
    deleted_volumes = [attachment["name"] or attachment["id"] for attachment in have["volumes_attached"]
                       if attachment["delete_on_termination"]]
    observed = {"power": have["power"] if have["_host"] else MISSING, "attached": bool(have["volumes_attached"])}
    for step in host.plan_server(None, observed):
        more = f", and delete {', '.join(deleted_volumes)} with it" if deleted_volumes and step.verb == "free" else ""
        yield Step(step.verb, step.text + more)


def plan_actions(want: Document, have: Document) -> Iterator[PlannedAction]:
    """Yield the actions that change the server from the state *have* to the state *want*. *have* also contains
    permissions in the request: ``allow_reboot``, ``rebuild``. Raises ``Conflict`` for a change that is not possible in
    the server's state, such as rescued or suspended."""
    rebuild, plugs = have.get("rebuild"), _plugs(want, have)
    if have["power"] == SHELVED == want["power"]:
        _check_shelved(want, have, bool(rebuild or plugs))
    power, place = yield from _unshelved(want, have)
    yield from _plan_updates(want, have)
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
    yield from power_actions(want, have, power)
    if want.get("host") and want["host"] != place and want["power"] != SHELVED:
        yield PlannedAction("migrate", {"host": want["host"], "power": want["power"]})


def _check_shelved(want: Document, have: Document, changes: bool) -> None:
    """Raise ``Conflict`` if *want* changes a server that is shelved and stays shelved. *changes*: whether NICs change
    or a rebuild is requested."""
    if changes or any(want[name] != have[name] for name in ("flavor", "rescue", "metadata", "tags")):
        raise Conflict(f"Server {want['name']!r} is shelved. Unshelve it first (ask for power running), then change "
                       "it.")


def _unshelved(want: Document, have: Document) -> Generator[PlannedAction, None, tuple[str, str | None]]:
    """Yield the action that unshelves the server, if the server is shelved and *want* has a power state other than
    shelved. Return the power state and the host (``None``: no host) after this action. A server without a host is
    unshelved on the requested host."""
    power, place = have["power"], have["_host"]
    if power != SHELVED or want["power"] == SHELVED:
        return power, place
    wished = want.get("host") if place is None else None
    yield PlannedAction("unshelve", {"host": wished})
    return RUNNING, wished or place


def _plan_updates(want: Document, have: Document) -> Iterator[PlannedAction]:
    """Yield the actions that have no effect on the running guest: they update names, metadata, tags and security
    groups. Then yield the confirmation of a pending resize."""
    updates = {name: want.get(name) for name in UPDATED_FIELDS if name in want and want[name] != have[name]}
    if updates:
        yield PlannedAction("update", updates)
    for name in ("metadata", "tags"):
        if want[name] != have[name] and not (have.get("rebuild") and name == "metadata"):
            yield PlannedAction(name, {"value": want[name]})
    if {*want.get("_groups", ())} != {*have.get("_groups", ())}:
        yield PlannedAction("security_groups", {"want": want["_groups"], "have": have["_groups"]})
    if have["_vm_state"] == "resized":
        yield PlannedAction("confirmResize")


def _to(power: str, target: str) -> Generator[PlannedAction, None, str]:
    """Yield the actions that change the power state from *power* to *target*. Return *target*."""
    yield from (PlannedAction(key) for key, _verb in actions_between(power, target))
    return target


def _started(power: str) -> Generator[PlannedAction, None, str]:
    """Yield the action that resumes a guest with the power state *power*, if it is paused or suspended. Return the
    power state that the guest then has."""
    return (yield from _to(power, RUNNING if power in (PAUSED, SUSPENDED) else power))


def _resize(want: Document, have: Document, power: str) -> Generator[PlannedAction, None, str]:
    """Yield the actions that resize the server, including a stop if that is necessary. *power*: the power state before
    the resize. Return the power state after the resize. Raises ``Conflict`` if the server must be stopped and the
    request does not allow it."""
    if power != OFF and want["power"] != OFF and not have.get("allow_reboot"):
        raise Conflict(f"flavor: can change only while server {want['name']!r} is off, and it is {power}. Stop it "
                       "first, ask for power off in the same call, or set allow_reboot to have it stopped, changed "
                       "and started again.", fields=["flavor"])
    power = yield from _to(power, OFF if OFF in (want["power"], power) else RUNNING)
    yield PlannedAction("resize", {"flavor": want["_flavor"]})
    return power


def power_actions(want: Document, have: Document, power: str) -> Iterator[PlannedAction]:
    """Yield the actions that change the power state from *power* to the one in *want*. A server with the status error
    is rebooted if *want* requires that it runs."""
    if have["_vm_state"] == "error" and want["power"] == RUNNING and power != RUNNING:
        yield PlannedAction("reboot", {"type": "hard"})
    else:
        yield from _to(power, want["power"])


def check_disk_sizes(have: Document, want: Document) -> None:
    """Raise ``Conflict`` if the flavor in *want* has a smaller disk than the server *have*, because disks cannot
    shrink."""
    had, wanted_flavor = have["flavor"], want["flavor"]
    ephemeral = ephemeral_gib(had, have.get("block_device_mapping") or ())
    for disk_name, old, new in (("root", had["disk"], wanted_flavor["disk"]),
                                ("ephemeral", ephemeral, wanted_flavor["ephemeral"])):
        if new < old:
            raise Conflict(
                f"flavor: the {disk_name} disk of server {want['name']!r} has {old} GiB and cannot shrink to "
                           f"{new}. Choose a flavor with a disk as large, or make another server.", fields=["flavor"])


def nics_fit(wishes: list[Document], nics: list[Document]) -> tuple[list[Document], list[Document]]:
    """Match the requested NICs *wishes* with the server's *nics*, by network, port, MAC and requested address. Return
    two lists: the server's NICs that match no request, and the requested NICs that match no NIC.

    Requested NICs that name a port are matched first. Of the server's NICs, those on ports that were created by a user
    (not for the server) are matched last.
    """
    unmatched_nics = sorted(nics, key=lambda nic: not nic.get("_made", True))
    more = []
    for wish in sorted(wishes, key=lambda nic: not nic.get("_port")):
        fits = [nic for nic in unmatched_nics if nic["_id"] == wish["_id"]
                and wish.get("address") in (None, nic.get("address"))
                and wish.get("mac") in (None, nic["mac"]) and wish.get("_port") in (None, nic["_port"])]
        if fits:
            unmatched_nics.remove(fits[0])
        else:
            more.append(wish)
    return unmatched_nics, more


def _plugs(want: Document, have: Document) -> list[PlannedAction]:
    unmatched_nics, more = nics_fit(want["networks"], have["networks"])
    return [*(PlannedAction("detach_interface", {"port": nic["_port"]}) for nic in unmatched_nics),
            *(PlannedAction("attach_interface", {"wish": wish, "at": at}) for at, wish in enumerate(more))]
