# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar balance``: the few live migrations that even out the load of hosts, or free one host."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .command_parts import open_operator, print_table

if TYPE_CHECKING:

    from magnetar_control.compute.balance.balance import BalanceReport


def add_balance_command(command: Any, commands: Any) -> None:
    """Add the subcommand ``magnetar balance`` to *commands*, the subparsers of the command line. *command*: the
    function ``_add_command`` of ``cli``, which adds a subcommand."""
    balance = command(commands, "balance", run_balance,
                      "Even out the real load of hosts, or free one host, by a few live migrations. Prints the moves, "
                      "then does them. Status 1 if one fails.",
                      "magnetar balance --dry-run\n  magnetar balance --cell cell1 --limit 3\n"
                      "  magnetar balance --host kvm4 --keep-going")
    balance.add_argument("--dry-run", action="store_true", help="only print the loads and the proposed moves")
    balance.add_argument("--host", metavar="HOST", help="move the running servers of this host to other hosts")
    balance.add_argument("--cell", metavar="CELL", help="only the hosts of this cell, by name")
    balance.add_argument("--limit", type=int, metavar="N",
                         help="the most moves of this call (default: 10; with --host, as many as needed)")
    balance.add_argument("--keep-going", action="store_true", help="go on with the next move after one that failed")


def run_balance(options: argparse.Namespace) -> int:
    """Run ``magnetar balance``: print the load of hosts and the proposed migrations, then do the migrations. Return the
    exit status: 1 if one fails."""
    from magnetar_control.compute.balance import balance, balance_moves

    with open_operator(options) as caller:
        reports = balance.report_balance.function(caller, options.cell, options.host, options.limit)
        for report in reports:
            _print_report(report)
        moves = [move for report in reports for move in report.plan.moves]
        if options.dry_run or not moves:
            return 0
        results = []
        for result in balance_moves.run_moves.function(caller, moves, keep_going=options.keep_going):
            move = result.move
            print(f"{move.server.name}\t{move.source} to {move.target}\t{result.state}"
                  f"{f': {result.text}' if result.text else ''}", flush=True)
            results.append(result)
    if (error := balance_moves.failure_of_moves(results)) is not None:
        print(f"magnetar: {error.message}", file=sys.stderr)
        return 1
    return 0


def _print_report(report: BalanceReport) -> None:
    """Print two tables: the loads of a cell's hosts, and the proposed moves of servers. Print to stderr the hosts
    without a measured load and the servers that stay, with the reasons."""
    plan = report.plan
    print_table(["host", "CPU", "memory", "after the moves"], [
        [host.name, f"{host.cpu_load:.0%}", f"{host.memory_load:.0%}",
         f"{plan.after[host.name].cpu_load:.0%} {plan.after[host.name].memory_load:.0%}"]
        for host in plan.before.values()])
    if plan.moves:
        print()
        print_table(["server", "id", "from", "to", "CPUs", "MiB", "reason"], [
            [move.server.name, move.server.id, move.source, move.target, f"{move.server.cpus_used:.2f}",
             f"{move.server.memory_mb_used:.0f}", move.reason] for move in plan.moves])
    print(f"\n{report.cell.name}: {len(plan.moves)} moves", flush=True)
    for name, reason in [*report.unmeasured.items(), *plan.stays]:
        print(f"magnetar: {name}: {reason}", file=sys.stderr)
    if report.dropped:
        print(f"magnetar: {report.dropped} moves were dropped: after them, a host that may fail now could not fail any "
              "more (magnetar host room).", file=sys.stderr)
