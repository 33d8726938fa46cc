# SPDX-License-Identifier: GPL-3.0-or-later
"""The execution of a balance's moves, one after the other: each is an ordinary live migration, which conductors do.

Nothing is stored between moves. If the caller dies or is interrupted, the migration in progress continues, and the next
balance starts from the servers' hosts at that time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.drains.server_moves import CANCELLED, LIVE, UNEXPLAINED
from magnetar_control.compute.target import ServerTarget, changed_meanwhile, check_action_allowed, find_server_target
from magnetar_control.scheduler.balance import Move
from magnetar_control.store.servers import migrations, servers
from magnetar_core.actions import policy_rule_of_action
from magnetar_core.errors import Conflict, MagnetarError, NotFound

#: Seconds between two looks at a migration.
POLL = 0.5
#: The results of a move: done; not begun, as the server has changed since the proposal; begun, and failed.
MOVED, SKIPPED, FAILED = "moved", "skipped", "failed"


class MoveResult(NamedTuple):
    """The result of a live migration that balances the load. *state*: moved, skipped or failed. *text*: why the server
    was not moved."""

    move: Move
    state: str
    text: str = ""


@use_case(f"{policy_rule_of_action(LIVE)}:host")
def run_moves(caller: Caller, moves: Sequence[Move], *, keep_going: bool = False,
              look: Callable[[Move], None] = lambda _move: None) -> Iterator[MoveResult]:
    """Run the live migrations *moves* one after the other, and yield the result of each. Stop after the first failure,
    unless *keep_going* is set. *look*: a function that is called repeatedly with the current move. It may raise an
    error to end the waiting for the migration; the migration itself then continues."""
    for move in moves:
        result = _run_move(caller.under(f"req-{uuid.uuid4()}"), move, look)
        yield result
        if result.state == FAILED and not keep_going:
            return


def _run_move(caller: Caller, move: Move, look: Callable[[Move], None]) -> MoveResult:
    """Run one live migration, and return its result after it has ended. *look*: as in ``run_moves``."""
    try:
        target = find_server_target(caller, move.server.id)
        if target.row.host != move.source:
            return MoveResult(move, SKIPPED, f"It has left {move.source} meanwhile.")
        check_action_allowed(caller, target, LIVE)
        migration = _begin_migration(caller, target, move.target)
    except (NotFound, Conflict) as error:
        return MoveResult(move, SKIPPED, error.message)
    except servers.Moved:
        return MoveResult(move, SKIPPED, "It goes to another cell.")
    try:
        return _wait_for_migration(caller, target, move, migration, look)
    except NotFound as error:
        return MoveResult(move, SKIPPED, error.message)


def _begin_migration(caller: Caller, target: ServerTarget, host: str) -> str:
    """Queue the live migration of a server to *host* on behalf of the caller; return the migration's uuid. Raises
    ``Conflict`` when the server has changed since it was read."""
    drawn, row = str(uuid.uuid4()), target.row
    with target.database.write() as connection:
        if not servers.request_server_action(
                connection, row, LIVE, caller.request_id, caller.context.user_id or row.user_id,
                caller.project or row.project_id, {"host": host, "migration": drawn}):
            raise changed_meanwhile(target, LIVE)
        migrations.insert_migration_row(connection, row, drawn, user_id=caller.context.user_id or row.user_id,
                                        type=migrations.LIVE, status="queued")
        target.database.notify(connection, servers.ACTIONS_CHANGED)
    return drawn


def _wait_for_migration(caller: Caller, target: ServerTarget, move: Move, id: str,
                        look: Callable[[Move], None]) -> MoveResult:
    """Wait until the live migration *id* has ended, and return the result of the move. *look*: as in ``run_moves``.
    Raises ``NotFound`` when the server is deleted meanwhile."""
    while True:
        with target.database.read() as connection:
            migration = migrations.fetch_migration_row(connection, id)
        if migration is None:
            raise NotFound(f"Server {move.server.name} was removed meanwhile.", kind="server", key=move.server.id)
        if migration.status in migrations.ENDED:
            break
        look(move)
        time.sleep(POLL)
    if migration.status == "completed":
        return MoveResult(move, MOVED)
    if migration.status == "cancelled":
        return MoveResult(move, FAILED, CANCELLED)
    return MoveResult(move, FAILED, find_server_target(caller, move.server.id).row.fault_line(UNEXPLAINED))


def failure_of_moves(results: Sequence[MoveResult]) -> MagnetarError | None:
    """Return an error that lists the failed moves in *results*; ``None`` when no move failed."""
    failed = [result for result in results if result.state == FAILED]
    if not failed:
        return None
    first, done = failed[0], sum(result.state == MOVED for result in results)
    return Conflict(f"{len(failed)} of {len(results)} moves failed, and {done} were done. {first.move.server.name} "
                    f"stays on {first.move.source}: {first.text} Ask again when that is settled: the balance starts "
                    "from what is there then.")
