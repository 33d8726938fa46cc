# SPDX-License-Identifier: GPL-3.0-or-later
"""balance: the load of the hosts of each cell, and the moves that even it out, for administrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.compute.balance.balance import MOVES, BalanceReport, report_balance
from magnetar_control.compute.balance.balance_moves import MoveResult, failure_of_moves, run_moves
from magnetar_control.compute.caller import Caller
from magnetar_control.scheduler.balance import Move
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.kinds import Balance
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step

from .driver import CloudChange, CloudDriver

BALANCED, UNBALANCED = "balanced", "unbalanced"


class Balances(CloudDriver):
    """The driver of the v1 API for balances: how the load of a cell is distributed over its hosts, and the live
    migrations that would even out the load. Each cell has one balance."""

    kind = Balance
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the balances for GET /v1/balance. The filter *name* selects one cell; the filter *free_host* names a
        host, and asks for the moves that leave no server on it. Raises ``NotFound``."""
        name, host = filters.pop("name", None), filters.pop("free_host", None)
        return [_balance(report) for report in report_balance(caller, name, host)]

    def find(self, caller: Caller, key: str) -> Document | None:
        try:
            return self.filtered(caller, {"name": key})[0]
        except NotFound:
            return None

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check. *key*: the cell's name or uuid. Raises ``InvalidField``."""
        return self.kind.check({"name": key, **want})

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Override ``CloudDriver.ensure``: refuse to remove a balance. A dry run does not take the lock of the key, so
        that it does not wait for other requests."""
        if want is None:
            report_balance.check_allowed(caller)
            raise InvalidField("kind", "balance is reported and made, and cannot be removed")
        if not dry_run:
            return super().ensure(caller, key, want, permissions, dry_run, operation)
        return CloudChange(self, caller, self.given(key, want), permissions, dry_run, operation).run(
            self.find(caller, key))

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with two added keys: ``_moves`` (the servers to migrate) and ``state``, the
        predicted state of the cell's balance: ``balanced`` if these migrations even out the load of the cell's hosts,
        otherwise the present state in *have*. Raises ``NotFound`` for an unknown host, or if *have* is ``None``, which
        means that there is no such cell."""
        if have is None:
            raise NotFound(f"There is no cell {want.get('name')!r}. GET /v1/cell shows the cells.", kind=self.kind.noun)
        host, limit = want.get("free_host"), want.get("max_moves")
        (report,) = report_balance(caller, have["name"], host, limit)
        moves = report.plan.moves
        evened = not host and moves and len(moves) < (limit or MOVES)
        return {**want, "name": have["name"], "state": BALANCED if evened else have["state"], "_moves": moves}

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """Yield one step for each server that the request moves."""
        for move in (want or {}).get("_moves", ()):
            yield Step("move", f"move server {move.server.name} from {move.source} to {move.target}",
                       server=move.server.id)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return *have* with the predicted ``state``, and with the planned migrations as ``moves``, for a dry run. Both
        come from *want*, as ``complete`` returns it."""
        return {**(have or {}), "state": want["state"], "moves": [_shown_move(move) for move in want["_moves"]]}

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Move the servers one after another, and stop after the first failure unless ``keep_going`` is in *want*. If
        the operation is cancelled, the current migration continues, but no further migration begins. Raises
        ``Conflict`` if a migration fails."""
        moves = want["_moves"]
        results: list[MoveResult] = []

        def advance(_move: Move | None = None) -> None:
            operation.advance(len(results), len(moves), "servers", "moving servers")

        with operation.waiting():
            for result in run_moves(caller, moves, keep_going=bool(want.get("keep_going")), look=advance):
                results.append(result)
                advance()
        if (error := failure_of_moves(results)) is not None:
            raise error


def _balance(report: BalanceReport) -> Document:
    """Return the balance of a cell in the format of the v1 API."""
    plan = report.plan
    return {"id": report.cell.id, "name": report.cell.name, "state": UNBALANCED if plan.moves else BALANCED,
            "free_host": None, "max_moves": None, "keep_going": False,
            "hosts": [{"name": host.name, "cpus": host.cpus, "cpus_used": round(host.cpus_used, 2),
                       "memory_mb": host.memory_mb, "memory_mb_used": host.memory_mb_used, "load": round(host.load, 3)}
                      for host in plan.before.values()],
            "moves": [_shown_move(move) for move in plan.moves],
            "stays": [stay._asdict() for stay in plan.stays],
            "unmeasured": [{"name": name, "reason": reason} for name, reason in sorted(report.unmeasured.items())],
            "dropped": report.dropped}


def _shown_move(move: Move) -> Document:
    return {"id": move.server.id, "name": move.server.name, "source": move.source, "target": move.target,
            "cpus_used": round(move.server.cpus_used, 2), "memory_mb_used": move.server.memory_mb_used,
            "reason": move.reason}
