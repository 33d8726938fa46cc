# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server can be: the one table of power states, vm_states and status words, and the ways between power states.

A *power state* says what the guest does; ``power`` is the one that is wanted, ``power_state`` the one that is seen.
``vm_state`` says what Nova's users have a server as, ``task_state`` what is being done to it. The status word of the
Compute API follows from these two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

#: vm_states. ``PAUSED`` and ``SUSPENDED`` are words for power states too; of servers of a cloud ``SHELVED`` is as well.
ACTIVE, BUILDING, PAUSED, SUSPENDED, STOPPED, RESCUED, RESIZED, SOFT_DELETED, DELETED, ERROR, SHELVED, OFFLOADED = (
    "active", "building", "paused", "suspended", "stopped", "rescued", "resized", "soft-delete", "deleted", "error",
    "shelved", "shelved_offloaded")
#: The other power states. ``CRASHED``: QEMU died or the guest panicked. ``MISSING``: the host has no domain.
RUNNING, OFF, CRASHED, MISSING = "running", "off", "crashed", "missing"
#: Power states that may be wanted of a server.
WANTED = (RUNNING, OFF, PAUSED, SUSPENDED)
#: Power states in which a QEMU process has the guest. ``SUSPENDED`` means saved to disk.
LIVE = (RUNNING, PAUSED)


class Power(NamedTuple):
    """A power state. *number*: what Nova calls it. *vm_state*: what a server becomes whose guest is found like this
    while nothing is done to it; ``None``: that says nothing."""

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
    """A vm_state. *status*: its status word. *powers*: the power states that go with it, the wanted one first; empty:
    any. *tasks*: task_states with a status word of their own, and that word."""

    status: str
    powers: tuple[str, ...] = ()
    tasks: Mapping[str, str] = {}


#: task_states of actions that tell how far they are, in that order.
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

#: One step between power states: the server action, and the verb of the agent that does it.
STEPS: Mapping[tuple[str, str], tuple[str, str]] = {
    (RUNNING, OFF): ("os-stop", "stop"),
    (OFF, RUNNING): ("os-start", "start"),
    (RUNNING, PAUSED): ("pause", "pause"),
    (PAUSED, RUNNING): ("unpause", "resume"),
    (RUNNING, SUSPENDED): ("suspend", "save"),
    (SUSPENDED, RUNNING): ("resume", "start"),
}
#: What an agent does with one verb where the Compute API needs two actions.
DIRECT: Mapping[tuple[str, str], str] = {
    (OFF, PAUSED): "start_paused",
    (PAUSED, SUSPENDED): "save",
    (SUSPENDED, PAUSED): "start_paused",
}


def actions_between(have: str, want: str) -> tuple[tuple[str, str], ...]:
    """The way from one power state of ``WANTED`` (in a cloud also ``SHELVED``) to another by server actions: (key, verb
    of the agent, or of the cloud) of each."""
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
    """The way from one power state of ``WANTED`` to another by an agent's verbs."""
    if (have, want) in DIRECT:
        return (DIRECT[have, want],)
    return tuple(verb for _key, verb in actions_between(have, want))


def number(power: str) -> int:
    """Nova's number of a power state; 0 (NOSTATE) for words that Nova has none for."""
    return POWERS[power].number if power in POWERS else 0


def of_number(number: int) -> str:
    """The power state with Nova's *number*; ``MISSING`` for numbers that stand for none."""
    return next((word for word, power in POWERS.items() if power.number == number), MISSING)


def wanted(vm_state: str, number: int) -> str:
    """The power state that is wanted of a server with this vm_state and Nova's *number* of its power state; ``SHELVED``
    of one that is shelved."""
    if vm_state in (SHELVED, OFFLOADED):
        return SHELVED
    powers = VM_STATES[vm_state].powers if vm_state in VM_STATES else ()
    found = powers[0] if powers else of_number(number)
    return found if found in WANTED else OFF


def status(vm_state: str, task_state: Optional[str] = None) -> str:
    """The status word of a server."""
    row = VM_STATES.get(vm_state)
    if row is None:
        return "UNKNOWN"
    return row.tasks.get(task_state or "", row.status)


def states_of(word: str) -> list[tuple[str, Optional[tuple[str, ...]]]]:
    """The (vm_state, task_states) that a status word stands for; task_states ``None``: all that have no other word.
    Empty when there is no such word."""
    found: list[tuple[str, Optional[tuple[str, ...]]]] = [
        (vm_state, tuple(task for task, name in row.tasks.items() if name == word))
        for vm_state, row in VM_STATES.items() if word in row.tasks.values()]
    return found + [(vm_state, None) for vm_state, row in VM_STATES.items() if row.status == word]


def with_word(vm_state: str) -> tuple[str, ...]:
    """The task_states that give a vm_state another status word."""
    return tuple(VM_STATES[vm_state].tasks) if vm_state in VM_STATES else ()
