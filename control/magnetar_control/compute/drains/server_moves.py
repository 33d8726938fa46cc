# SPDX-License-Identifier: GPL-3.0-or-later
"""The move of a server in a drain of its host: the action that moves it, or the reason why it stays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from magnetar_control.compute.target import check_server_carries
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.servers.servers import server_tpm_security
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Conflict
from magnetar_core.hardware.merge import USER
from magnetar_core.power import ACTIVE, ERROR, PAUSED, RESCUED, RESIZED, SHELVED, SOFT_DELETED, STOPPED, SUSPENDED

#: Actions that take servers off their host.
LIVE, COLD, OFFLOAD = "os-migrateLive", "migrate", "shelveOffload"
#: The action by vm_state.
MOVES: Mapping[str, str] = {ACTIVE: LIVE, PAUSED: LIVE, STOPPED: COLD, SHELVED: OFFLOAD}
#: The reasons of servers that stay, by vm_state.
STATES: Mapping[str, str] = {
    SUSPENDED: "It is suspended, and its saved memory cannot be moved. Resume it, or shelve it.",
    RESCUED: "It is rescued. Unrescue it first.",
    RESIZED: "A resize or migration waits for its confirmation. Confirm it, or revert it.",
    SOFT_DELETED: "It is soft-deleted. Restore it, or delete it for good (forceDelete).",
    ERROR: "It is in error. Repair it, and reset its state, or delete it."}
#: Whose lock makes a server stay.
ADMIN_LOCK = "admin"
#: Results of moves.
CANCELLED = "Its migration was cancelled."
UNEXPLAINED = "Its migration failed; its server actions tell more."


class MoveChoice(NamedTuple):
    """The way to move a server off a drained host. *action*: the action to queue, such as a live migration; ``None`` if
    the server must stay. *reason*: why it must stay."""

    action: str | None
    reason: str = ""


def choose_move(server: ServerRow, host_volumes: Collection[str]) -> MoveChoice:
    """Return how to move *server* off its host, or why the server must stay. The server must have no running action.
    *host_volumes*: the uuids of the volumes that the host itself stores."""
    action = MOVES.get(server.vm_state)
    if server.locked_by == ADMIN_LOCK:
        lock_reason = f" ({server.locked_reason})" if server.locked_reason else ""
        return MoveChoice(None, f"An administrator has locked it{lock_reason}. Unlock it first.")
    if action is None:
        return MoveChoice(None, STATES.get(server.vm_state, f"It is in vm_state {server.vm_state}."))
    if action == OFFLOAD:
        return MoveChoice(action)
    local_volumes = [volume["volume_id"] for volume in server.volumes if volume["volume_id"] in host_volumes]
    if local_volumes:
        return MoveChoice(None, f"The host stores its volume {local_volumes[0]}, which does not move along. Detach it, "
                          "or copy it to another host.")
    if ACTIONS[action].starts and server_tpm_security(server) == USER:
        return MoveChoice(None, "Only its user may have its TPM opened (hw:tpm_secret_security). The user can migrate "
                          "it, or start it.")
    try:
        check_server_carries(server, action)
    except Conflict as error:
        return MoveChoice(None, error.message)
    return MoveChoice(action)
