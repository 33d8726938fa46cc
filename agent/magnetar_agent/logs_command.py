# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar logs``: the errors and warnings of this machine's services, as JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField

from .log_lines import LEVELS, SERVICES, LogFilter, parse_log_file, parse_since, read_journal, select_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

STDIN = "-"


def add_logs_command(add_command: Any, commands: Any) -> None:
    """Add the command ``logs`` to the subparsers *commands*. *add_command*: the function ``_command`` of ``cli``,
    which adds a subcommand."""
    command = add_command(commands, "logs", run_logs_command, "Print the errors and warnings of this machine's "
                          "services as JSON lines.",
                          "magnetar logs --since 2h\n  magnetar logs --level info --request "
                          "req-1a8c7d34-5a0f-4b1c-9d43-3a3d1f7a5d0e\n"
                          "  journalctl -D /mnt/var/log/journal -o json | magnetar logs --file -")
    command.add_argument("--service", action="append", choices=SERVICES, metavar="SERVICE",
                         help=f"only this service; may be repeated: {', '.join(SERVICES)}")
    command.add_argument("--level", choices=tuple(LEVELS), default="warning", help="lowest level (default: warning)")
    command.add_argument("--request", metavar="ID", help="only lines of this request (req-…) or global request")
    command.add_argument("--server", metavar="SERVER", help="only lines with this uuid or name of a server")
    command.add_argument("--since", metavar="TIME", help="only lines since this time (ISO 8601, of this machine's zone "
                         "if it names none), or of the last 90m, 2h or 3d")
    command.add_argument("--number", type=int, default=0, metavar="N", help="only the last N lines")
    command.add_argument("--file", metavar="FILE", help="log file to read in place of the journal: of a service's "
                         "stderr, or of `journalctl -o json`; - for the input")


def run_logs_command(options: argparse.Namespace) -> int:
    """Run ``magnetar logs``, and return the exit status: 0, also if no line is selected."""
    since = None if options.since is None else parse_since(options.since)
    if options.number < 0:
        raise InvalidField("--number", "must be 0 or more", options.number)
    if options.file is not None and options.service:
        raise InvalidField("--service", "selects units of the journal, and a file has none; leave it out",
                           options.service[0])
    lines = read_journal(options.service or SERVICES, since) if options.file is None else _read_file(options.file)
    selected = select_lines(lines, LogFilter(options.level, options.request, options.server, since), options.number)
    is_empty = True
    for line in selected:
        is_empty = False
        print(json.dumps(line, ensure_ascii=False))
    if is_empty:
        hint = "" if options.file or os.geteuid() == 0 else \
            " The journal shows all lines only to root and to members of the group systemd-journal."
        print(f"No line is selected.{hint}", file=sys.stderr)
    return 0


def _read_file(name: str) -> Iterator[dict[str, Any]]:
    """Yield the log lines of the file *name*; ``-`` is the standard input. Raises ``InvalidField`` for a file that
    cannot be read."""
    try:
        with contextlib.nullcontext(sys.stdin) if name == STDIN else Path(name).open(
                encoding="utf-8", errors="replace") as texts:
            yield from parse_log_file(texts)
    except OSError as error:
        raise InvalidField("--file", f"cannot be read: {error.strerror}", name) from None
