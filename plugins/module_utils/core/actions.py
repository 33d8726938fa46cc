# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be asked of a server, and when: the table that guards, queue, status words and tests read.

Sources: the Compute API reference (server actions), Nova's states; ``vm_state`` says what a server is, ``task_state``
what is being done to it.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

ANY = ("*",)
#: vm_state words.
ACTIVE, BUILDING, PAUSED, SUSPENDED, STOPPED, RESCUED, RESIZED, SOFT_DELETED, DELETED, ERROR, SHELVED, OFFLOADED = (
    "active", "building", "paused", "suspended", "stopped", "rescued", "resized", "soft-delete", "deleted", "error",
    "shelved", "shelved_offloaded")


class Action(NamedTuple):
    """*states*: vm_states in which it may be asked for. *task*: the task_state meanwhile. *after*: the vm_state when it
    has succeeded (``None``: as it was). *locked*: whether a lock keeps it from others than admins. *busy*: whether it
    may be asked for while something else is done. *want*: what the agent's server is then asked to be. *label*: what
    os-instance-actions calls it. *event*: the name of its event. *kind*: which limit of the host it counts against.
    *placed*: whether a server that never got a host is refused (Nova's "is not ready"). *rule*: who may, below
    ``os_compute_api:``. *plain*: it has no arguments, so the API only writes it down for the conductors."""

    states: tuple[str, ...]
    task: Optional[str]
    after: Optional[str] = None
    locked: bool = True
    busy: bool = False
    want: Optional[Mapping[str, Any]] = None
    label: str = ""
    event: str = ""
    kind: str = "act"
    placed: bool = True
    rule: str = ""
    plain: bool = False


def _power(states: str, task: str, after: str, power: str, label: str, rule: str) -> Action:
    return Action(tuple(states.split()), task, after, want={"power": power}, label=label,
                  event="compute_%s_instance" % label, rule=rule, plain=True)


ACTIONS: dict[str, Action] = {
    "create": Action((BUILDING,), "scheduling", ACTIVE, locked=False, busy=True, label="create",
                     event="compute__do_build_and_run_instance", kind="build", placed=False, rule="servers:create"),
    "delete": Action(ANY, "deleting", DELETED, busy=True, label="delete", event="compute_terminate_instance",
                     placed=False, rule="servers:delete"),
    "forceDelete": Action(ANY, "deleting", DELETED, busy=True, label="delete", event="compute_terminate_instance",
                          placed=False, rule="os-deferred-delete:force"),
    "os-start": _power("stopped", "powering-on", ACTIVE, "running", "start", "servers:start"),
    "os-stop": _power("active error", "powering-off", STOPPED, "off", "stop", "servers:stop"),
    "pause": _power("active", "pausing", PAUSED, "paused", "pause", "os-pause-server:pause"),
    "unpause": _power("paused", "unpausing", ACTIVE, "running", "unpause", "os-pause-server:unpause"),
    "suspend": _power("active", "suspending", SUSPENDED, "suspended", "suspend", "os-suspend-server:suspend"),
    "resume": _power("suspended", "resuming", ACTIVE, "running", "resume", "os-suspend-server:resume"),
    "reboot-soft": Action((ACTIVE,), "rebooting", ACTIVE, label="reboot", event="compute_reboot_instance",
                          rule="servers:reboot"),
    "reboot-hard": Action((ACTIVE, STOPPED, PAUSED, SUSPENDED, ERROR), "rebooting_hard", ACTIVE, label="reboot",
                          event="compute_reboot_instance", rule="servers:reboot"),
    "rebuild": Action((ACTIVE, STOPPED, ERROR), "rebuilding", None, label="rebuild",
                      event="compute_rebuild_instance", kind="build", rule="servers:rebuild"),
    "rescue": Action((ACTIVE, STOPPED, ERROR), "rescuing", RESCUED, label="rescue", event="compute_rescue_instance",
                     rule="os-rescue"),
    "unrescue": Action((RESCUED,), "unrescuing", ACTIVE, label="unrescue", event="compute_unrescue_instance",
                       rule="os-unrescue", plain=True),
    "resize": Action((ACTIVE, STOPPED), "resize_prep", RESIZED, label="resize", event="compute_prep_resize",
                     kind="build", rule="servers:resize"),
    "migrate": Action((ACTIVE, STOPPED), "resize_prep", RESIZED, label="migrate", event="compute_prep_resize",
                      kind="build", rule="os-migrate-server:migrate"),
    "confirmResize": Action((RESIZED,), None, None, label="confirmResize", event="compute_confirm_resize",
                            rule="servers:confirm_resize", plain=True),
    "revertResize": Action((RESIZED,), "resize_reverting", None, label="revertResize", event="compute_revert_resize",
                           rule="servers:revert_resize", plain=True),
    "os-migrateLive": Action((ACTIVE, PAUSED), "migrating", None, label="live-migration",
                             event="compute_live_migration", kind="live", rule="os-migrate-server:migrate_live"),
    "createImage": Action((ACTIVE, STOPPED, PAUSED, SUSPENDED), "image_snapshot", None, locked=False,
                          label="createImage", event="compute_snapshot_instance", rule="servers:create_image"),
    "changePassword": Action((ACTIVE,), "updating_password", None, label="changePassword",
                             event="compute_set_admin_password", rule="os-admin-password"),
    "trigger_crash_dump": Action((ACTIVE, PAUSED, RESCUED, RESIZED, ERROR), None, None, label="trigger_crash_dump",
                                 event="compute_trigger_crash_dump", rule="servers:trigger_crash_dump", plain=True),
    "attach_volume": Action((ACTIVE, PAUSED, STOPPED, RESIZED, SOFT_DELETED, SHELVED, OFFLOADED), None, None,
                            busy=True, label="attach_volume", event="compute_attach_volume",
                            rule="os-volumes-attachments:create"),
    "detach_volume": Action((ACTIVE, PAUSED, STOPPED, RESIZED, SOFT_DELETED, SHELVED, OFFLOADED), None, None,
                            busy=True, label="detach_volume", event="compute_detach_volume",
                            rule="os-volumes-attachments:delete"),
    "attach_interface": Action((ACTIVE, PAUSED, STOPPED), None, None, busy=True, label="attach_interface",
                               event="compute_attach_interface", rule="os-attach-interfaces:create"),
    "detach_interface": Action((ACTIVE, PAUSED, STOPPED), None, None, busy=True, label="detach_interface",
                               event="compute_detach_interface", rule="os-attach-interfaces:delete"),
    "live_migration_cancel": Action(ANY, None, None, busy=True, label="live_migration_cancel",
                                    rule="servers:migrations:delete"),
    "live_migration_force_complete": Action(ANY, None, None, busy=True, label="live_migration_force_complete",
                                            rule="servers:migrations:force_complete"),
    # Done by the API at once; they appear among the instance actions only where Nova shows them.
    "lock": Action(ANY, None, None, locked=False, busy=True, label="lock", placed=False, rule="os-lock-server:lock"),
    "unlock": Action(ANY, None, None, locked=False, busy=True, label="unlock", placed=False,
                     rule="os-lock-server:unlock"),
    "os-resetState": Action(ANY, None, None, locked=False, busy=True, placed=False,
                            rule="os-admin-actions:reset_state"),
    "metadata": Action((ACTIVE, PAUSED, SUSPENDED, STOPPED), None, None, busy=True, placed=False),
    "tags": Action((ACTIVE, PAUSED, SUSPENDED, STOPPED), None, None, locked=False, busy=True, placed=False),
    "update": Action(ANY, None, None, locked=False, busy=True, placed=False, rule="servers:update"),
    "console": Action((ACTIVE, PAUSED, RESCUED, RESIZED, ERROR, STOPPED, SUSPENDED), None, None, locked=False,
                      busy=True, rule="os-console-output"),
}


def rule_of(key: str) -> str:
    """The policy rule of an action."""
    return "os_compute_api:" + ACTIONS[key].rule


#: (vm_state, task_state) to the status word; the vm_state alone when its task has no word of its own.
_TASK_STATUS = {
    ACTIVE: {"rebooting": "REBOOT", "reboot_pending": "REBOOT", "reboot_started": "REBOOT",
             "rebooting_hard": "HARD_REBOOT", "updating_password": "PASSWORD", "rebuilding": "REBUILD",
             "rebuild_spawning": "REBUILD", "migrating": "MIGRATING", "resize_prep": "RESIZE",
             "resize_migrating": "RESIZE", "resize_migrated": "RESIZE", "resize_finish": "RESIZE"},
    STOPPED: {"rebuilding": "REBUILD", "rebuild_spawning": "REBUILD", "resize_prep": "RESIZE",
              "resize_migrating": "RESIZE", "resize_migrated": "RESIZE", "resize_finish": "RESIZE"},
    RESIZED: {"resize_reverting": "REVERT_RESIZE"},
    PAUSED: {"migrating": "MIGRATING"},
    ERROR: {"rebuilding": "REBUILD", "rebuild_spawning": "REBUILD"},
}
STATUSES = {ACTIVE: "ACTIVE", BUILDING: "BUILD", STOPPED: "SHUTOFF", RESIZED: "VERIFY_RESIZE", PAUSED: "PAUSED",
            SUSPENDED: "SUSPENDED", RESCUED: "RESCUE", ERROR: "ERROR", DELETED: "DELETED",
            SOFT_DELETED: "SOFT_DELETED", SHELVED: "SHELVED", OFFLOADED: "SHELVED_OFFLOADED"}
#: Numbers of Nova's power states.
POWER = {"pending": 0, "running": 1, "paused": 3, "off": 4, "crashed": 6, "suspended": 7, "missing": 0}


def status(vm_state: str, task_state: Optional[str]) -> str:
    """Nova's status word."""
    if task_state:
        word = _TASK_STATUS.get(vm_state, {}).get(task_state)
        if word:
            return word
    return STATUSES.get(vm_state, "UNKNOWN")


def states_of(word: str) -> list[tuple[str, Optional[tuple[str, ...]]]]:
    """The (vm_state, task_states) that a status word stands for; task_states ``None``: all that have no other word.
    Empty when there is no such word."""
    found: list[tuple[str, Optional[tuple[str, ...]]]] = [
        (vm_state, tuple(task for task, name in tasks.items() if name == word))
        for vm_state, tasks in _TASK_STATUS.items() if word in tasks.values()]
    return found + [(vm_state, None) for vm_state, name in STATUSES.items() if name == word]


def with_word(vm_state: str) -> tuple[str, ...]:
    """The task_states that give a vm_state another word."""
    return tuple(_TASK_STATUS.get(vm_state, {}))
