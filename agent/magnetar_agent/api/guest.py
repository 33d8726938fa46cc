# SPDX-License-Identifier: GPL-3.0-or-later
"""POST /v1/server/KEY/guest: commands for the guest agent of a server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from magnetar_agent.servers.guest_commands import GuestCommands
from magnetar_core.errors import MagnetarError
from magnetar_core.http.guest_commands import check_guest_command

from . import audit
from .routes import Json, path_key, read_json_body, read_query

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.agent import ManagedHost
    from magnetar_agent.reconcile.documents import Document, Fields

T = TypeVar("T")
#: Threads for questions to guest agents. Each thread waits for one answer; other requests have other threads.
GUEST_AGENT_THREADS = 16
#: Seconds between two questions for the end of a program: first, and at most; each pause is longer than the one before.
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.005, 0.5, 1.5
#: The commands with a line in the audit log, and the argument that the line shows.
AUDITED = {"run": "path", "read_file": "path", "write_file": "path"}


class GuestRoute:
    """The HTTP handler for commands to the QEMU guest agent of a server."""

    def __init__(self, agent: ManagedHost) -> None:
        self.agent, self.commands = agent, GuestCommands(agent.host)
        self._threads = CapacityLimiter(GUEST_AGENT_THREADS)

    async def command(self, request: Request) -> Json:
        """Send a command to the guest agent of a running server, and return its result. Commands: info, run, status,
        read_file, write_file."""
        read_query(request)
        command, args = check_guest_command(
            await read_json_body(request, self.agent.host.settings.body_max_bytes))
        document = await self._thread(lambda: self.commands.server(path_key(request)))
        began = time.monotonic()
        try:
            answer = await self._perform(document, command, args)
        except MagnetarError as error:
            self._audit(request, document, command, args, began, error)
            raise
        self._audit(request, document, command, args, began)
        return Json({"command": command, "server": document.id, **answer, "request_id": request.state.request_id})

    async def _perform(self, document: Document, command: str, args: Fields) -> Fields:
        if command == "info":
            return await self._thread(lambda: self.commands.info(document))
        if command == "read_file":
            return await self._thread(lambda: self.commands.read_file(document, args))
        if command == "write_file":
            return await self._thread(lambda: self.commands.write_file(document, args))
        if command == "run":
            args = {**args, "pid": (await self._thread(lambda: self.commands.run(document, args)))["pid"]}
            if not args["wait"]:
                return {"pid": args["pid"], "exited": False}
        return await self._until_ended(document, args["pid"], args["wait"])

    async def _until_ended(self, document: Document, pid: int, wait: float) -> Fields:
        """Return the state of the guest's process *pid* when it has ended, or after *wait* seconds. Occupies no thread
        while waiting."""
        deadline, pause = time.monotonic() + wait, FIRST_PAUSE
        while True:
            outcome = await self._thread(lambda: self.commands.status(document, pid))
            left = deadline - time.monotonic()
            if outcome["exited"] or left <= 0:
                return outcome
            await asyncio.sleep(min(pause, left))
            pause = min(pause * GROWTH, LONGEST_PAUSE)

    async def _thread(self, function: Callable[[], T]) -> T:
        return await to_thread.run_sync(function, limiter=self._threads)

    def _audit(self, request: Request, document: Document, command: str, args: Fields, began: float,
               error: MagnetarError | None = None) -> None:
        """Write a line to the audit log about a command to a guest agent. The line has the name of the program or file,
        but no arguments or content."""
        if command not in AUDITED:
            return
        more: dict[str, Any] = {AUDITED[command]: args[AUDITED[command]]}
        if error is not None:
            more["error"] = {"code": error.code, "message": error.message}
        audit.write_audit_line(f"guest_{command}", document.kind, document.name, request.state.caller,
                               request.state.request_id, "failed" if error else "succeeded",
                               seconds=time.monotonic() - began, **more)
