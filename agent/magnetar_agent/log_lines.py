# SPDX-License-Identifier: GPL-3.0-or-later
"""The log lines of Magnetar's services, from systemd's journal or from a file, and their selection."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField, MagnetarError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: The services with a unit ``magnetar-NAME``.
SERVICES = ("agent", "api", "conductor", "serve", "metadata", "firewall", "southbound")
#: Levels of log lines, the lowest first, with the highest of syslog's priorities of each.
LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
#: How a command says on stderr why it ends.
COMPLAINT = "magnetar: "
#: Bytes of what journalctl writes to stderr that a message has at most.
MOST_COMPLAINT = 2000


class NoJournal(MagnetarError):
    """systemd's journal cannot be read on this machine."""

    code = "no-journal"


@dataclass(frozen=True)
class LogFilter:
    """A selection of log lines. *level*: the lowest level. *request*, *server*: a text that a line must contain as the
    id of a request, or as the uuid or name of a server; ``None`` for any. *since*: the earliest time."""

    level: str = "warning"
    request: str | None = None
    server: str | None = None
    since: datetime | None = None

    def accepts(self, line: dict[str, Any]) -> bool:
        """Return whether *line* is selected."""
        if LEVELS.get(str(line.get("level")), LEVELS["error"]) > LEVELS[self.level]:
            return False
        if self.since is not None and (moment := _moment(str(line.get("time")))) is not None and moment < self.since:
            return False
        if self.request is not None and self.request not in (line.get("request_id"), line.get("global_request_id")):
            return False
        return self.server is None or _names_server(line, self.server)


def _names_server(line: dict[str, Any], server: str) -> bool:
    """Return whether *line* is about the *server*: a field or the message has its uuid or name as a whole word."""
    if server in (line.get("server"), line.get("key")):
        return True
    return re.search(rf"(?<![\w-]){re.escape(server)}(?![\w-])", str(line.get("message"))) is not None


def _moment(text: str) -> datetime | None:
    """Return the time of a log line. A time without a zone is of this machine's zone, as the control plane writes it.
    Return ``None`` if *text* is no time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


def parse_since(text: str) -> datetime:
    """Return the moment that *text* names: a time such as 2026-11-30T08:00, or an age such as 90m, 2h or 3d. Raises
    ``InvalidField``."""
    if age := re.fullmatch(r"([0-9]{1,6})([smhd])", text):
        seconds = int(age[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[age[2]]
        return datetime.fromtimestamp(max(0.0, datetime.now(UTC).timestamp() - seconds), UTC)
    if (moment := _moment(text)) is None:
        raise InvalidField("--since", "must be a time such as 2026-11-30T08:00, or an age such as 90m, 2h or 3d", text)
    return moment


def select_lines(lines: Iterable[dict[str, Any]], selection: LogFilter, most: int) -> Iterable[dict[str, Any]]:
    """Return the *lines* that *selection* accepts. *most*: return only the last lines, at most this number; 0: return
    all of them, each as soon as it is read."""
    selected = (line for line in lines if selection.accepts(line))
    return deque(selected, most) if most else selected


def parse_log_file(texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the log lines of a file: of the services' stderr, or of ``journalctl --output=json``."""
    for text in texts:
        fields = _json_object(text)
        if "__REALTIME_TIMESTAMP" in fields:
            line = _journal_line(fields)
            if line is not None:
                yield line
        elif fields or text.startswith(COMPLAINT):
            yield fields or _plain_line(text.rstrip("\n"), "error")


def read_journal(services: Sequence[str], since: datetime | None) -> Iterator[dict[str, Any]]:
    """Yield the log lines of *services* in this machine's journal. Raises ``NoJournal``."""
    words = ["journalctl", "--output=json", "--no-pager", "--quiet",
             *(f"--unit=magnetar-{service}" for service in services)]
    if since is not None:
        words.append(f"--since=@{since.timestamp():.6f}")
    with tempfile.TemporaryFile() as errors:  # a pipe that is full would stop journalctl
        try:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors)  # noqa: S603 - systemd's
        except OSError:
            raise NoJournal("This machine has no journalctl. Give the log file of a service: --file FILE, or - for "
                            "the input.") from None
        with process:
            assert process.stdout
            for text in process.stdout:
                if (line := _journal_line(_json_object(text.decode(errors="replace")))) is not None:
                    yield line
        errors.seek(0)
        problem = " ".join(errors.read(MOST_COMPLAINT).decode(errors="replace").split())
    if process.returncode:
        raise NoJournal(f"The journal cannot be read ({problem or f'status {process.returncode}'}). Run it as root or "
                        "as a member of the group systemd-journal, or give a log file: --file FILE.")


def _json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in *text*; an empty one if *text* is something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _journal_line(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return the log line in an *entry* of the journal, with the unit and machine of the entry. Text that Magnetar did
    not log, such as a message of systemd about the unit, gets the time and level of the entry. Return ``None`` for an
    entry without text."""
    message = entry.get("MESSAGE")
    if isinstance(message, list):  # bytes that are no text
        message = bytes(byte for byte in message if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    if not message:
        return None
    line = _json_object(message)
    if not line:
        priority = int(entry.get("PRIORITY") or 6)
        line = _plain_line(message, "error" if message.startswith(COMPLAINT) else next(
            level for level, least in reversed(LEVELS.items()) if priority <= least))
        moment = datetime.fromtimestamp(int(entry.get("__REALTIME_TIMESTAMP") or 0) / 1e6, UTC)
        line = {"time": moment.isoformat(timespec="milliseconds"), **line}
    unit = str(entry.get("UNIT") or entry.get("_SYSTEMD_UNIT") or "")
    return {**line, "unit": unit.removesuffix(".service"), "machine": str(entry.get("_HOSTNAME") or "")}


def _plain_line(message: str, level: str) -> dict[str, Any]:
    return {"level": level, "message": message}
