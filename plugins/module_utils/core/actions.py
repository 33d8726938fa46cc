# SPDX-License-Identifier: GPL-3.0-or-later
"""The server actions: a table with the preconditions and effects of each action. The API, the queue of actions and
tests read it. Source: the server actions of the Compute API reference. ``power.py`` has the states of a server.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

from .power import (
    ACTIVE,
    BUILDING,
    DELETED,
    ERROR,
    HARD_REBOOT,
    OFF,
    OFFLOADED,
    PAUSED,
    POWERS,
    REBUILD,
    RESCUED,
    RESIZED,
    RUNNING,
    SHELVED,
    SNAPSHOT,
    SOFT_DELETED,
    SOFT_REBOOT,
    STOPPED,
    SUSPENDED,
)

ANY = ("*",)
#: Possible owners of the secret of a server's TPM.
ANY_TPM = ("user", "host", "deployment")


class Action(NamedTuple):
    """The declaration of an action on a server, such as reboot: when the action is allowed, and its effects.

    * *states*: the vm_states in which the action is allowed. *task*: the server's task_state during the action.
      *steps*: later task_states during the action, in order. *after*: the vm_state after success (``None``: unchanged).
    * *locked*: the action is refused on a locked server, except for admins. *busy*: the action is allowed on a server
      with a task_state. *exclusive*: the action is refused while another exclusive action of the server is queued or
      running, even without a task_state. *over*: the task_states of other actions that this action interrupts. A queued
      action is then dropped, a running one is cancelled.
    * *want*: the fields that the action sets in the desired state of the server. *kind*: the name of the limit
      (concurrent actions per host) that applies to the action. *placed*: the action is refused on a server that never
      had a host (Nova's "is not ready"). *plain*: the action has no arguments, so the API only queues the action for
      the conductors.
    * *rule*: the policy rule, without the prefix ``os_compute_api:``. *label*, *event*: the names of the action and of
      its event in os-instance-actions. *notification*: the name of the versioned notifications, without the prefix
      ``instance.``; empty for none.
    * *bare*: the action is refused on a server with shares. *tpm*: the values of ``tpm_secret_security`` with which a
      server with a TPM allows the action. *starts*: the action starts the guest. Other users are refused if only the
      server's user can open the TPM. *carries*: the action saves or moves the state of a running guest, and is refused
      if host devices hold a part of this state. *copies*: the action creates an image of the root disk, which other
      users may read.
    """

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
    exclusive: bool = False
    over: tuple[str, ...] = ()
    bare: bool = False
    tpm: tuple[str, ...] = ANY_TPM
    starts: bool = False
    carries: bool = False
    copies: bool = False
    notification: str = ""
    steps: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the task_states that a server can have during the action; empty if the action sets none."""
        return (self.task, *self.steps) if self.task else ()

    def during(self, task: Optional[str]) -> bool:
        """Return whether the action is allowed on a server with the task_state *task* (``None``: the server has none).
        """
        return self.busy or task is None or task in self.over

    def overtakes(self) -> list[str]:
        """Return the keys (in ``ACTIONS``) of the actions that this action interrupts: a queued one is dropped, a
        running one is cancelled.
        """
        return [key for key, action in ACTIONS.items() if action.task in self.over]


def _power(states: tuple[str, ...], task: str, power: str, label: str, rule: str, notification: str = "",
           **more: Any) -> Action:
    return Action(states, task, POWERS[power].vm_state, want={"power": power}, label=label,
                  event=f"compute_{label}_instance", rule=rule, plain=True, notification=notification or label, **more)


#: Notifications of single events of an action, in place of the action's own. They start in this order with the
#: event, and end in reverse order with it.
STEPS: Mapping[str, tuple[str, ...]] = {
    "compute_prep_resize": ("resize_prep",), "compute_resize_instance": ("resize",),
    "compute_finish_resize": ("resize_finish",), "compute_finish_revert_resize": (),
    "compute_shelve_offload_instance": ("shelve_offload",),
    "compute_check_can_live_migrate_destination": ("live_migration_pre",), "compute_live_migration": (),
    "compute_post_live_migration_at_destination": ("live_migration_post", "live_migration_post_dest")}


ACTIONS: dict[str, Action] = {
    "create": Action((BUILDING,), "scheduling", ACTIVE, locked=False, busy=True, label="create",
                     event="compute__do_build_and_run_instance", kind="build", placed=False, rule="servers:create",
                     notification="create"),
    "delete": Action(ANY, "deleting", DELETED, busy=True, label="delete", event="compute_terminate_instance",
                     placed=False, rule="servers:delete", notification="delete"),
    "forceDelete": Action(ANY, "deleting", DELETED, busy=True, label="delete", event="compute_terminate_instance",
                          placed=False, rule="os-deferred-delete:force", notification="delete"),
    # The action of a DELETE where ``reclaim_instance_interval`` lets servers be restored.
    "softDelete": Action(ANY, "soft-deleting", SOFT_DELETED, busy=True, label="delete",
                         event="compute_soft_delete_instance", placed=False, rule="servers:delete",
                         notification="soft_delete"),
    "restore": Action((SOFT_DELETED,), "restoring", ACTIVE, label="restore", event="compute_restore_instance",
                      rule="os-deferred-delete:restore", starts=True, notification="restore"),
    "os-start": _power((STOPPED,), "powering-on", RUNNING, "start", "servers:start", notification="power_on",
                       starts=True),
    "os-stop": _power((ACTIVE, ERROR), "powering-off", OFF, "stop", "servers:stop", notification="power_off"),
    "pause": _power((ACTIVE,), "pausing", PAUSED, "pause", "os-pause-server:pause"),
    "unpause": _power((PAUSED,), "unpausing", RUNNING, "unpause", "os-pause-server:unpause"),
    "suspend": _power((ACTIVE,), "suspending", SUSPENDED, "suspend", "os-suspend-server:suspend",
                      bare=True, carries=True),
    "resume": _power((SUSPENDED,), "resuming", RUNNING, "resume", "os-suspend-server:resume", starts=True),
    "reboot-soft": Action((ACTIVE,), SOFT_REBOOT[0], ACTIVE, label="reboot", event="compute_reboot_instance",
                          rule="servers:reboot", starts=True, notification="reboot", steps=SOFT_REBOOT[1:]),
    "reboot-hard": Action((ACTIVE, STOPPED, PAUSED, SUSPENDED, ERROR), HARD_REBOOT[0], ACTIVE, label="reboot",
                          event="compute_reboot_instance", rule="servers:reboot", over=(
                              *SOFT_REBOOT, *HARD_REBOOT, "pausing", "unpausing", "suspending", "resuming"),
                          starts=True, notification="reboot", steps=HARD_REBOOT[1:]),
    "rebuild": Action((ACTIVE, STOPPED, ERROR), REBUILD[0], None, label="rebuild",
                      event="compute_rebuild_instance", kind="build", rule="servers:rebuild", bare=True,
                      starts=True, notification="rebuild", steps=REBUILD[1:]),
    "evacuate": Action((ACTIVE, STOPPED, ERROR), REBUILD[0], None, locked=False, busy=True, label="evacuate",
                       event="rebuild_server", kind="build", rule="os-evacuate", exclusive=True, bare=True, tpm=(),
                       notification="rebuild", steps=REBUILD[1:]),
    "rescue": Action((ACTIVE, STOPPED, ERROR), "rescuing", RESCUED, label="rescue", event="compute_rescue_instance",
                     rule="os-rescue", tpm=(), notification="rescue"),
    "unrescue": Action((RESCUED,), "unrescuing", ACTIVE, label="unrescue", event="compute_unrescue_instance",
                       rule="os-unrescue", plain=True, notification="unrescue"),
    "resize": Action((ACTIVE, STOPPED), "resize_prep", RESIZED, label="resize", event="compute_prep_resize",
                     kind="build", rule="servers:resize", bare=True, starts=True, notification="resize"),
    "migrate": Action((ACTIVE, STOPPED), "resize_prep", RESIZED, label="migrate", event="compute_prep_resize",
                      kind="build", rule="os-migrate-server:migrate", bare=True, starts=True, notification="resize"),
    "confirmResize": Action((RESIZED,), None, None, label="confirmResize", event="compute_confirm_resize",
                            rule="servers:confirm_resize", plain=True, exclusive=True, notification="resize_confirm"),
    "revertResize": Action((RESIZED,), "resize_reverting", None, label="revertResize", event="compute_revert_resize",
                           rule="servers:revert_resize", plain=True, exclusive=True, starts=True,
                           notification="resize_revert"),
    "os-migrateLive": Action((ACTIVE, PAUSED), "migrating", None, label="live-migration",
                             event="compute_live_migration", kind="live", rule="os-migrate-server:migrate_live",
                             bare=True, tpm=("host",), carries=True,
                             notification="live_migration_rollback"),
    "createImage": Action((ACTIVE, STOPPED, PAUSED, SUSPENDED), SNAPSHOT[0], None, locked=False,
                          label="createImage", event="compute_snapshot_instance", rule="servers:create_image",
                          copies=True, notification="snapshot", steps=SNAPSHOT[1:]),
    "createBackup": Action((ACTIVE, STOPPED, PAUSED, SUSPENDED), "image_backup", None, locked=False,
                           label="createBackup", event="compute_backup_instance", rule="os-create-backup",
                           copies=True, notification="snapshot"),
    "changePassword": Action((ACTIVE,), "updating_password", None, label="changePassword",
                             event="compute_set_admin_password", rule="os-admin-password"),
    "shelve": Action((ACTIVE, STOPPED, PAUSED, SUSPENDED), "shelving", None, label="shelve",
                     event="compute_shelve_instance", rule="os-shelve:shelve", bare=True, tpm=(),
                     notification="shelve"),
    "shelveOffload": Action((SHELVED,), "shelving_offloading", OFFLOADED, label="shelveOffload",
                            event="compute_shelve_offload_instance", rule="os-shelve:shelve_offload", plain=True,
                            notification="shelve_offload"),
    "unshelve": Action((SHELVED, OFFLOADED), "unshelving", ACTIVE, label="unshelve",
                       event="compute_unshelve_instance", kind="build", rule="os-shelve:unshelve",
                       notification="unshelve"),
    "trigger_crash_dump": Action((ACTIVE, PAUSED, RESCUED, RESIZED, ERROR), None, None, label="trigger_crash_dump",
                                 event="compute_trigger_crash_dump", rule="servers:trigger_crash_dump", plain=True,
                                 notification="trigger_crash_dump"),
    "attach_volume": Action((ACTIVE, PAUSED, STOPPED, RESIZED, SOFT_DELETED, SHELVED, OFFLOADED), None, None,
                            busy=True, label="attach_volume", event="compute_attach_volume",
                            rule="os-volumes-attachments:create", notification="volume_attach"),
    "detach_volume": Action((ACTIVE, PAUSED, STOPPED, RESIZED, SOFT_DELETED, SHELVED, OFFLOADED), None, None,
                            busy=True, label="detach_volume", event="compute_detach_volume",
                            rule="os-volumes-attachments:delete", notification="volume_detach"),
    "swap_volume": Action((ACTIVE, PAUSED, RESIZED), None, None, label="swap_volume", event="compute_swap_volume",
                          rule="os-volumes-attachments:swap", notification="volume_swap"),
    "attach_interface": Action((ACTIVE, PAUSED, STOPPED), None, None, label="attach_interface",
                               event="compute_attach_interface", rule="os-attach-interfaces:create",
                               notification="interface_attach"),
    "detach_interface": Action((ACTIVE, PAUSED, STOPPED), None, None, label="detach_interface",
                               event="compute_detach_interface", rule="os-attach-interfaces:delete",
                               notification="interface_detach"),
    "attach_share": Action((STOPPED,), None, None, label="attach_share", event="compute_allow_share",
                           rule="os-server-shares:create", notification="share_attach"),
    "detach_share": Action((STOPPED, ERROR), None, None, label="detach_share", event="compute_deny_share",
                           rule="os-server-shares:delete", notification="share_detach"),
    "live_migration_cancel": Action(ANY, None, None, busy=True, label="live_migration_cancel",
                                    rule="servers:migrations:delete", notification="live_migration_abort"),
    "live_migration_force_complete": Action(ANY, None, None, busy=True, label="live_migration_force_complete",
                                            rule="servers:migrations:force_complete",
                                            notification="live_migration_force_complete"),
    # The API performs these immediately; they are instance actions only where Nova shows them.
    "lock": Action(ANY, None, None, locked=False, busy=True, label="lock", placed=False, rule="os-lock-server:lock",
                   notification="lock"),
    "unlock": Action(ANY, None, None, locked=False, busy=True, label="unlock", placed=False,
                     rule="os-lock-server:unlock", notification="unlock"),
    "os-resetState": Action(ANY, None, None, locked=False, busy=True, placed=False,
                            rule="os-admin-actions:reset_state"),
    "addFixedIp": Action(ANY, None, None, busy=True, placed=False, rule="os-multinic:add"),
    "removeFixedIp": Action(ANY, None, None, busy=True, placed=False, rule="os-multinic:remove"),
    "injectNetworkInfo": Action(ANY, None, None, busy=True, label="injectNetworkInfo", placed=False,
                                rule="os-admin-actions:inject_network_info"),
    "metadata": Action((ACTIVE, PAUSED, SUSPENDED, STOPPED), None, None, busy=True, placed=False),
    "tags": Action((ACTIVE, PAUSED, SUSPENDED, STOPPED), None, None, locked=False, busy=True, placed=False),
    "update": Action(ANY, None, None, locked=False, busy=True, placed=False, rule="servers:update"),
    "console": Action((ACTIVE, PAUSED, RESCUED, RESIZED, ERROR, STOPPED, SUSPENDED), None, None, locked=False,
                      busy=True, rule="os-console-output"),
    "remote_console": Action((ACTIVE, PAUSED, RESCUED, RESIZED, ERROR), None, None, locked=False, busy=True,
                             rule="os-remote-consoles"),
}


def policy_rule_of_action(key: str) -> str:
    """Return the name of the policy rule for the action *key* (of ``ACTIONS``), with the prefix ``os_compute_api:``."""
    return "os_compute_api:" + ACTIONS[key].rule
