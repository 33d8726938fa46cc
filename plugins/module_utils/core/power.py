# SPDX-License-Identifier: GPL-3.0-or-later
"""The states of a server: the one table of power states, vm_states and status words, and the steps between power
states.

A *power state* describes the guest: ``power`` is the desired one, ``power_state`` the observed one. ``vm_state`` is the
state that Nova's users see, ``task_state`` the current work on the server. The status word of the Compute API follows
from these two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

#: vm_states. ``PAUSED`` and ``SUSPENDED`` are power states too; ``SHELVED`` is one for servers of a cloud.
ACTIVE, BUILDING, PAUSED, SUSPENDED, STOPPED, RESCUED, RESIZED, SOFT_DELETED, DELETED, ERROR, SHELVED, OFFLOADED = (
    "active", "building", "paused", "suspended", "stopped", "rescued", "resized", "soft-delete", "deleted", "error",
    "shelved", "shelved_offloaded")
#: The other power states. ``CRASHED``: QEMU died or the guest panicked. ``MISSING``: the host has no domain.
RUNNING, OFF, CRASHED, MISSING = "running", "off", "crashed", "missing"
#: Power states that may be desired.
WANTED = (RUNNING, OFF, PAUSED, SUSPENDED)
#: Power states with a QEMU process. ``SUSPENDED`` means saved to disk.
LIVE = (RUNNING, PAUSED)


class Power(NamedTuple):
    """A power state. *number*: its number in Nova. *vm_state*: the vm_state that a server gets if its guest has this
    power state and no action is running; ``None``: the vm_state is not changed.
    """

    number: int
    vm_state: Optional[str]


POWERS: Mapping[str, Power] = {
    RUNNING: Power(1, ACTIVE),
    PAUSED: Power(3, PAUSED),
    OFF: Power(4, STOPPED),
    CRASHED: Power(6, STOPPED),
    SUSPENDED: Power(7, SUSPENDED),
    MISSING: Power(0, None),
}


class VmState(NamedTuple):
    """A vm_state. *status*: the server status in the Compute API. *powers*: the power states that match the vm_state,
    the desired one first; empty: any. *tasks*: ``{task_state: server status}``, for task_states during which the server
    has another status than *status*.
    """

    status: str
    powers: tuple[str, ...] = ()
    tasks: Mapping[str, str] = {}


#: task_states of actions that report their progress, in order.
SOFT_REBOOT = ("rebooting", "reboot_pending", "reboot_started")
HARD_REBOOT = ("rebooting_hard", "reboot_pending_hard", "reboot_started_hard")
REBUILD = ("rebuilding", "rebuild_block_device_mapping", "rebuild_spawning")
SNAPSHOT = ("image_snapshot_pending", "image_snapshot", "image_pending_upload", "image_uploading")
_REBUILD = dict.fromkeys(REBUILD, "REBUILD")
_RESIZE = {"resize_prep": "RESIZE", "resize_migrating": "RESIZE", "resize_migrated": "RESIZE",
           "resize_finish": "RESIZE"}
_MIGRATE = {"migrating": "MIGRATING"}
_REBOOT = {**dict.fromkeys(SOFT_REBOOT, "REBOOT"), **dict.fromkeys(HARD_REBOOT, "HARD_REBOOT")}

VM_STATES: Mapping[str, VmState] = {
    ACTIVE: VmState("ACTIVE", (RUNNING,), {**_REBOOT, "updating_password": "PASSWORD", **_REBUILD, **_MIGRATE,
                                           **_RESIZE}),
    BUILDING: VmState("BUILD"),
    STOPPED: VmState("SHUTOFF", (OFF, CRASHED), {**_REBUILD, **_RESIZE}),
    RESIZED: VmState("VERIFY_RESIZE", (), {"resize_reverting": "REVERT_RESIZE"}),
    PAUSED: VmState("PAUSED", (PAUSED,), _MIGRATE),
    SUSPENDED: VmState("SUSPENDED", (SUSPENDED,)),
    RESCUED: VmState("RESCUE", (RUNNING,)),
    ERROR: VmState("ERROR", (), _REBUILD),
    DELETED: VmState("DELETED"),
    SOFT_DELETED: VmState("SOFT_DELETED", (OFF, CRASHED)),
    SHELVED: VmState("SHELVED", (OFF, CRASHED)),
    OFFLOADED: VmState("SHELVED_OFFLOADED"),
}

#: Pairs of power states that one action connects, to the server action and the agent's verb.
STEPS: Mapping[tuple[str, str], tuple[str, str]] = {
    (RUNNING, OFF): ("os-stop", "stop"),
    (OFF, RUNNING): ("os-start", "start"),
    (RUNNING, PAUSED): ("pause", "pause"),
    (PAUSED, RUNNING): ("unpause", "resume"),
    (RUNNING, SUSPENDED): ("suspend", "save"),
    (SUSPENDED, RUNNING): ("resume", "start"),
}
#: Steps that an agent does with one verb where the Compute API needs two actions.
DIRECT: Mapping[tuple[str, str], str] = {
    (OFF, PAUSED): "start_paused",
    (PAUSED, SUSPENDED): "save",
    (SUSPENDED, PAUSED): "start_paused",
}


def actions_between(have: str, want: str) -> tuple[tuple[str, str], ...]:
    """Return the server actions that change the power state from *have* to *want*, as pairs of action key (such as
    os-stop) and the name of the agent's operation (such as stop). Both power states are from ``WANTED``, the power
    states that a user can request; for a server of a cloud, also ``SHELVED``.
    """
    if have == want:
        return ()
    if want == SHELVED:
        return (("shelve", "shelve"),)
    if have == SHELVED:
        return (("unshelve", "unshelve"), *actions_between(RUNNING, want))
    if RUNNING in (have, want):
        return (STEPS[have, want],)
    return STEPS[have, RUNNING], STEPS[RUNNING, want]


def verbs_between(have: str, want: str) -> tuple[str, ...]:
    """Return the names of the agent's operations (such as stop) that change the power state from *have* to *want*. Both
    power states must be in ``WANTED``, the power states that a user can request.
    """
    if (have, want) in DIRECT:
        return (DIRECT[have, want],)
    return tuple(verb for _key, verb in actions_between(have, want))


def power_number(power: str) -> int:
    """Return Nova's number of the power state *power*; 0 (NOSTATE) if Nova has no such power state."""
    return POWERS[power].number if power in POWERS else 0


def power_of_number(number: int) -> str:
    """Return the power state that has this *number* in Nova; ``MISSING`` for an unknown number."""
    return next((power_state for power_state, power in POWERS.items() if power.number == number), MISSING)


def desired_power(vm_state: str, number: int) -> str:
    """Return the power state that a server with this *vm_state* should have: ``SHELVED`` for a shelved server. If the
    *vm_state* permits every power state, return the one with Nova's *number*, the present power state. Return ``OFF``
    instead of a power state that is not in ``WANTED``, the power states that a user can request.
    """
    if vm_state in (SHELVED, OFFLOADED):
        return SHELVED
    powers = VM_STATES[vm_state].powers if vm_state in VM_STATES else ()
    power = powers[0] if powers else power_of_number(number)
    return power if power in WANTED else OFF


def status_word(vm_state: str, task_state: Optional[str] = None) -> str:
    """Return the server status in the Compute API (such as SHUTOFF) for a vm_state and task_state; ``UNKNOWN`` for an
    unknown vm_state.
    """
    row = VM_STATES.get(vm_state)
    if row is None:
        return "UNKNOWN"
    return row.tasks.get(task_state or "", row.status)


def states_of_status(status: str) -> list[tuple[str, Optional[tuple[str, ...]]]]:
    """Return the pairs (vm_state, task_states) with which servers have this *status* in the Compute API. ``None``
    instead of task_states stands for no task_state, and for all task_states that do not change the status. The list is
    empty for an unknown status.
    """
    states: list[tuple[str, Optional[tuple[str, ...]]]] = [
        (vm_state, tuple(task for task, name in row.tasks.items() if name == status))
        for vm_state, row in VM_STATES.items() if status in row.tasks.values()]
    return states + [(vm_state, None) for vm_state, row in VM_STATES.items() if row.status == status]


def tasks_with_status(vm_state: str) -> tuple[str, ...]:
    """Return the task_states that change the server status of this *vm_state*; empty for an unknown vm_state."""
    return tuple(VM_STATES[vm_state].tasks) if vm_state in VM_STATES else ()
