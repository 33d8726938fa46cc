# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest agent that runs programs of this machine: what a guest with qemu-guest-agent answers."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from magnetar_agent.servers.guest_commands import NEEDED
from magnetar_core.errors import GuestRefused


class LocalGuest:
    """The guest agent of an imagined guest: its programs and files are this machine's. ``disabled``: commands that it
    is not allowed to do. ``asked``: the commands that it was asked; ``sizes``: the bytes of each question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disabled: set[str] = set()
        self.asked: list[str] = []
        self.sizes: list[int] = []
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: dict[int, tuple[Path, Path]] = {}
        self._handles: dict[int, Any] = {}
        self._numbers = itertools.count(1000)

    def __call__(self, _uuid: str, request: str) -> str:
        question = json.loads(request)
        command, arguments = question["execute"], question.get("arguments", {})
        self.asked.append(command)
        self.sizes.append(len(request))
        if command in self.disabled:
            raise GuestRefused(f"unable to execute QEMU agent command '{command}': Command {command} has been disabled")
        handler = getattr(self, command.replace("-", "_"), None)
        if handler is None:
            raise GuestRefused(f"The command {command} has not been found")
        try:
            return json.dumps({"return": handler(**{name.replace("-", "_"): value
                                                    for name, value in arguments.items()})})
        except OSError as error:
            raise GuestRefused(f"failed: {error.strerror}") from None

    def guest_info(self) -> Any:
        return {"version": "7.2", "supported_commands": [{"name": name, "enabled": name not in self.disabled}
                                                         for name in NEEDED]}

    def guest_exec(self, path: str, arg: list[str], capture_output: bool, input_data: str = "") -> Any:
        number = next(self._numbers)
        outputs = (self.folder / f"{number}.out", self.folder / f"{number}.err")
        with outputs[0].open("wb") as out, outputs[1].open("wb") as err, (
                self.folder / f"{number}.in").open("w+b") as sent:
            sent.write(base64.b64decode(input_data))
            sent.seek(0)
            self._programs[number] = subprocess.Popen([path, *arg], stdin=sent, stdout=out, stderr=err,
                                                      env={"PATH": os.environ["PATH"]}, cwd="/")
        self._outputs[number] = outputs
        return {"pid": number}

    def guest_exec_status(self, pid: int) -> Any:
        if pid not in self._programs:
            raise GuestRefused(f"Invalid parameter 'pid': no process {pid}")
        code = self._programs[pid].poll()
        if code is None:
            return {"exited": False}
        del self._programs[pid]
        out, err = (path.read_bytes() for path in self._outputs.pop(pid))
        return {"exited": True, **({"exitcode": code} if code >= 0 else {"signal": -code}),
                **({"out-data": base64.b64encode(out).decode()} if out else {}),
                **({"err-data": base64.b64encode(err).decode()} if err else {})}

    def guest_file_open(self, path: str, mode: str) -> Any:
        number = next(self._numbers)
        self._handles[number] = Path(path).open(mode + "b")  # noqa: SIM115
        return number

    def guest_file_seek(self, handle: int, offset: int, whence: int) -> Any:
        return {"position": self._handles[handle].seek(offset, whence), "eof": False}

    def guest_file_read(self, handle: int, count: int) -> Any:
        content = self._handles[handle].read(count)
        return {"count": len(content), "buf-b64": base64.b64encode(content).decode(), "eof": len(content) < count}

    def guest_file_write(self, handle: int, buf_b64: str) -> Any:
        content = base64.b64decode(buf_b64)[:30_000]  # an agent may take a part only
        return {"count": self._handles[handle].write(content), "eof": False}

    def guest_file_flush(self, handle: int) -> Any:
        self._handles[handle].flush()
        return {}

    def guest_file_close(self, handle: int) -> Any:
        self._handles.pop(handle).close()
        return {}

    @property
    def open_files(self) -> int:
        """The number of files that were not closed."""
        return len(self._handles)
