# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of ``POST /v1/server/KEY/guest``: programs and files in a guest, through its guest agent.

No lock of the server is held meanwhile, so a guest that does not answer delays nothing else. Each call is one question,
or the few that a piece of a file needs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_core.errors import (
    Conflict,
    GuestRefused,
    GuestSilent,
    HypervisorDown,
    HypervisorError,
    MagnetarError,
    NoGuestAgent,
    NotFound,
)
from magnetar_core.http.guest_commands import INPUT, PIECE, printable_guest_text

from .guest_agent import GuestAgents, bytes_of_answer, invalid_guest_answer, number_of_answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: Folder of the state with the keys of started programs.
FOLDER = "guest_runs"
#: The most bytes of output that an answer has: libvirt passes on messages of 4 MiB.
OUTPUT = 3 * 2**20
#: The commands that other commands here need.
NEEDED = ("guest-exec", "guest-exec-status", "guest-file-open", "guest-file-close", "guest-file-read",
          "guest-file-write", "guest-file-seek", "guest-file-flush")
#: Programs that are started before the oldest keys are removed again.
TRIM_EACH = 50


class GuestCommands:
    """API calls that run programs and read or write files inside the guests of one *host*, through the QEMU guest
    agent."""

    def __init__(self, host: LocalHost) -> None:
        self.host, self.agents = host, GuestAgents(host)
        self.runs = RunKeys(host.settings.state_dir / FOLDER, host.settings.event_keys_kept)

    def server(self, key: str) -> Document:
        """Return the document of the server with the name or uuid *key*. Raises ``NotFound``, or ``Ambiguous`` if
        several servers match."""
        document = self.host.documents.find("server", key)
        if document is None or document.deleting:
            raise NotFound(f"There is no server {key!r} on this host.", kind="server", key=key)
        return document

    def info(self, document: Document) -> Fields:
        """Return ``{"version", "missing"}``: the guest agent's version, and the required commands that it does not
        support."""
        answer = self.agents.ask(document, "guest-info")
        supported = answer.get("supported_commands") if isinstance(answer, dict) else None
        if not isinstance(supported, list) or not isinstance(answer.get("version"), str):
            raise invalid_guest_answer(document, "guest-info")
        enabled = {command.get("name") for command in supported[:1000]
                   if isinstance(command, dict) and command.get("enabled") is True
                   and isinstance(command.get("name"), str)}
        return {"version": printable_guest_text(answer["version"], 100),
                "missing": [name for name in NEEDED if name not in enabled]}

    def run(self, document: Document, args: Fields) -> Fields:
        """Start a program in the guest and return ``{"pid", "exited"}``. A repeated call with the same ``run_id`` does
        not start it again. *args*: run_id, path, arguments, and input (base64, for stdin)."""
        pid = self.runs.begin(args["run_id"], document.id)
        if pid is None:
            program = {"path": args["path"], "arg": args["arguments"], "capture-output": True,
                       **({"input-data": args["input"]} if args["input"] else {})}
            try:
                answer = self.agents.ask(document, "guest-exec", **program)
            except MagnetarError as error:
                if not _may_have_begun(error):
                    self.runs.drop(args["run_id"])
                raise
            pid = number_of_answer(document, "guest-exec",
                                   answer.get("pid") if isinstance(answer, dict) else None, 1)
            self.runs.note(args["run_id"], document.id, pid)
        return {"pid": pid, "exited": False}

    def status(self, document: Document, pid: int) -> Fields:
        """Return whether the program *pid* in the guest has ``exited``, and if so its exit code, signal and output. The
        guest agent returns the result of a program only once; later calls raise ``GuestRefused``."""
        try:
            answer = self.agents.ask(document, "guest-exec-status", pid=pid)
        except NoGuestAgent as error:
            if error.details.get("why") == "frozen":  # for a moment, and the program goes on
                return {"pid": pid, "exited": False}
            raise
        except (GuestRefused, HypervisorError) as error:
            if isinstance(error, (GuestSilent, HypervisorDown)) or error.details.get("why") == "answer":
                raise
            raise GuestRefused(f"The outcome of process {pid} in server {document.name!r} is lost: it was passed on "
                               "already, or has more output than libvirt passes on, which is about 3 MiB. Have the "
                               f"program write into a file. ({printable_guest_text(error.message)})",
                               why="lost") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("exited"), bool):
            raise invalid_guest_answer(document, "guest-exec-status")
        if not answer["exited"]:
            return {"pid": pid, "exited": False}
        numbers = {name: None if answer.get(word) is None else number_of_answer(
            document, "guest-exec-status", answer[word], -2**31, 2**32 - 1)
            for name, word in (("exit_code", "exitcode"), ("signal", "signal"))}
        outputs = {name: base64.b64encode(bytes_of_answer(
            document, "guest-exec-status", answer.get(word, ""), OUTPUT)).decode()
            for name, word in (("stdout", "out-data"), ("stderr", "err-data"))}
        cut = answer.get("out-truncated") is True or answer.get("err-truncated") is True
        return {"pid": pid, "exited": True, **numbers, **outputs, "truncated": cut}

    def read_file(self, document: Document, args: Fields) -> Fields:
        """Return ``{"content", "eof"}``: a part of a guest file in base64, and whether the file ends after it. *args*:
        path, offset and size in bytes."""
        with self._opened(document, args["path"], "r") as handle:
            self._seek(document, handle, args["offset"])
            answer = self.agents.ask(document, "guest-file-read", handle=handle, count=args["size"])
        if not isinstance(answer, dict) or not isinstance(answer.get("eof"), bool):
            raise invalid_guest_answer(document, "guest-file-read")
        content = bytes_of_answer(document, "guest-file-read", answer.get("buf-b64"), args["size"])
        return {"content": base64.b64encode(content).decode(), "eof": answer["eof"] or not content}

    def write_file(self, document: Document, args: Fields) -> Fields:
        """Write a part of an existing guest file, and return ``{"written": number of bytes}``. *args*: path, offset in
        bytes, and content in base64."""
        content = base64.b64decode(args["content"])
        done = 0
        with self._opened(document, args["path"], "r+") as handle:
            self._seek(document, handle, args["offset"])
            while done < len(content):
                answer = self.agents.ask(document, "guest-file-write", handle=handle,
                                         **{"buf-b64": base64.b64encode(content[done:done + INPUT]).decode()})
                done += number_of_answer(document, "guest-file-write",
                                         answer.get("count") if isinstance(answer, dict) else None, 1, PIECE)
            self.agents.ask(document, "guest-file-flush", handle=handle)
        if done != len(content):
            raise invalid_guest_answer(document, "guest-file-write")
        return {"written": done}

    @contextlib.contextmanager
    def _opened(self, document: Document, path: str, mode: str) -> Iterator[int]:
        """Open the file *path* in the guest, and yield the guest agent's handle. The file is closed at the end of the
        ``with`` block. *mode*: as for fopen(3)."""
        handle = number_of_answer(document, "guest-file-open",
                                  self.agents.ask(document, "guest-file-open", path=path, mode=mode))
        try:
            yield handle
        except BaseException:
            with contextlib.suppress(MagnetarError):  # the first error counts
                self.agents.ask(document, "guest-file-close", handle=handle)
            raise
        self.agents.ask(document, "guest-file-close", handle=handle)

    def _seek(self, document: Document, handle: int, offset: int) -> None:
        if not offset:
            return
        answer = self.agents.ask(document, "guest-file-seek", handle=handle, offset=offset, whence=0)
        if not isinstance(answer, dict) or answer.get("position") != offset:
            raise invalid_guest_answer(document, "guest-file-seek")


def _may_have_begun(error: MagnetarError) -> bool:
    """Return whether the guest agent may have started the program of a ``guest-exec`` command, although this command
    failed with *error*."""
    return isinstance(error, (HypervisorDown, HypervisorError)) or error.details.get("why") in ("silent", "answer")


class RunKeys:
    """The ``run_id`` of each program started in a guest, stored as one small file each in *folder*, so that a repeated
    API request does not start a program twice. A file is written before its program starts; the pid is added later. If
    there are more than *most* files, the oldest are removed. Files are not flushed with fsync: when the host loses
    power, the guests stop too."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._count = 0
        self._lock = threading.Lock()

    def begin(self, run_id: str, server_id: str) -> int | None:
        """Store *run_id* and return ``None``; if it exists already, return the pid of its program. Raises ``Conflict``
        if it is unknown whether that program was started, or if the run_id belongs to another server."""
        path = self._path(run_id)
        make_state_folder(self.folder, 0o700)
        with self._lock:
            self._count += 1
            if self._count % TRIM_EACH == 1:
                self._trim()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return self._known(path, run_id, server_id)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"server": server_id, "pid": None}, file)
        return None

    def note(self, run_id: str, server_id: str, pid: int) -> None:
        """Store the *pid* of the started program for *run_id*."""
        write_atomically(self._path(run_id), json.dumps({"server": server_id, "pid": pid}).encode(), durable=False)

    def drop(self, run_id: str) -> None:
        """Remove *run_id*, because its program was not started."""
        self._path(run_id).unlink(missing_ok=True)

    def _path(self, run_id: str) -> Path:
        return self.folder / f"run-{run_id}"  # the prefix keeps . and .. from being names

    def _known(self, path: Path, run_id: str, server_id: str) -> int | None:
        try:
            noted_run = json.loads(path.read_text())
        except (OSError, ValueError):  # the agent died while it wrote, or another request removed it
            noted_run = {"server": server_id, "pid": None}
        if noted_run["server"] != server_id:
            raise Conflict(f"The run_id {run_id} was used for another server. Use a new one.")
        if noted_run["pid"] is None:
            raise Conflict(f"The program of run_id {run_id} is being started, or the agent stopped while it was. It is "
                           "not started again; look in the guest whether it ran, and use a new run_id.")
        return int(noted_run["pid"])

    def _trim(self) -> None:
        paths = sorted(self.folder.iterdir(), key=_written)
        for path in paths[: max(0, len(paths) - self.most)]:
            path.unlink(missing_ok=True)


def _written(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
