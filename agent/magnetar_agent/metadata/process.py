# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that speaks with guests: ``magnetar-metadata``, or ``-m magnetar_agent.metadata.process COMMANDS``.

*COMMANDS* is the descriptor of a connection to the agent; without it systemd has started the process, at whose socket
the agent connects (``magnetar-metadata.socket``). Over it the agent sends another one, for questions.

It is nobody, or the unit's own user, in a user namespace of its own, and makes a network namespace for each bridge: it
can reach neither the host's network nor its secrets, and asks the agent for what a guest is told. It ends with the
agent, and the kernel removes the namespaces and devices with it.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import os
import resource
import socket
import sys
import threading
import time
from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING

from magnetar_core.errors import MagnetarError

from . import PORT, messages, steering
from .guest_http import HEAD, GuestHttp
from .guest_process import peer_is_root
from .paths import GuestPaths

if TYPE_CHECKING:
    from .messages import Message

NOBODY = 65534
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SET_DUMPABLE, _SET_NO_NEW_PRIVS = 4, 38
#: How many guests' data are kept, and for how long: what is not in a server's document may change, too.
KEPT, FRESH = 256, 10.0
#: Seconds that the agent may take to answer.
PATIENCE = 30.0
#: The descriptor at which systemd hands over its socket, and seconds that an agent may take to connect.
LISTENS, CONNECTS = 3, 10.0
_libc = ctypes.CDLL(None, use_errno=True)


def confine() -> None:
    """Become nobody, and root of nothing but new namespaces. All modules have been imported by now."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _checked(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0))  # else /proc/self is root's
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_USER | _NEW_NET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    _checked(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0))  # no other process of nobody's may look into it


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Questions:
    """What is asked of the agent, and what it has said. In the event loop."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._kept: OrderedDict[str, tuple[float, GuestPaths]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[GuestPaths | None]] = {}
        #: Server by address of its tap.
        self.guests: dict[str, str] = {}

    async def run(self) -> None:
        """Read answers until the agent ends."""
        reader, self._writer = await asyncio.open_connection(sock=self._end)
        while True:
            try:
                text = await reader.readexactly(messages.length(await reader.readexactly(4)))
            except (EOFError, OSError):
                return
            answer = json.loads(text)
            waiting = self._waiting.pop(answer["number"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def forget(self, servers: list[str]) -> None:
        """Something about these has changed."""
        for one in servers:
            self._kept.pop(one, None)
            self._asked.pop(one, None)

    async def find(self, guest: str) -> GuestPaths | None:
        """What the guest may read; those who ask at the same time wait for one answer."""
        server = self.guests.get(guest)
        if server is None:
            return None
        kept = self._kept.get(server)
        if kept is not None and time.monotonic() - kept[0] < FRESH:
            self._kept.move_to_end(server)
            return kept[1]
        asked = self._asked.get(server)
        if asked is None:
            asked = self._asked[server] = asyncio.create_task(self._tree(server))
        return await asyncio.shield(asked)

    async def _tree(self, server: str) -> GuestPaths | None:
        this = asyncio.current_task()
        try:
            answer = await self._ask({"about": server})
            if "parts" not in answer:
                return None
            parts = [base64.b64decode(part) for part in answer["parts"]]
            found = GuestPaths({path: parts[at] for path, at in answer["tree"].items()}, answer["password"])
            if self._asked.get(server) is this:  # else it has changed meanwhile
                self._kept[server] = time.monotonic(), found
                self._kept.move_to_end(server)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return found
        finally:
            if self._asked.get(server) is this:
                del self._asked[server]

    async def leave(self, guest: str, password: str) -> tuple[int, str]:
        """Hand a guest's password to the agent."""
        server = self.guests.get(guest)
        if server is None:
            return 404, "Nobody is known at the place that this came from."
        answer = await self._ask({"password": password, "of": server})
        self.forget([server])
        return int(answer["status"]), str(answer["why"])

    async def _ask(self, question: Message) -> Message:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(messages.packed({**question, "number": number}))
            async with asyncio.timeout(PATIENCE):
                return await self._waiting[number]
        finally:
            self._waiting.pop(number, None)


class Namespaces:
    """The network namespaces, one for each bridge, and what listens there. Commands come in a thread of their own,
    which goes from one namespace to the next; sockets stay in the one that they were made in."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop, http: GuestHttp,
                 questions: Questions) -> None:
        self._end, self._loop, self._http, self._questions = end, loop, http, questions
        self._made: dict[str, int] = {}
        self._listening: dict[str, list[asyncio.Server]] = {}

    def run(self) -> None:
        """Obey until the agent ends; then end."""
        try:
            while True:
                command, _none = messages.receive(self._end)
                try:
                    answer, descriptor = getattr(self, f"_{command['do']}")(**command["with"])
                except (OSError, MagnetarError) as error:
                    answer, descriptor = {"failed": str(error)}, None
                messages.send(self._end, answer, descriptor)
        except (EOFError, OSError):
            os._exit(0)

    def _make(self, name: str) -> tuple[Message, int]:
        """A new namespace; its descriptor goes to the agent."""
        self._close(name)
        _checked(_libc.unshare(_NEW_NET))
        self._made[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        return {}, self._made[name]

    def _listen(self, name: str, seal: str) -> tuple[Message, None]:
        """The agent has put a device into the namespace: its MAC is the answer."""
        _checked(_libc.setns(self._made[name], _NEW_NET))
        links, rules = steering.inside(seal)
        steering.run(["nft", "-f", "-"], rules)
        steering.run(["ip", "-batch", "-"], links)
        listeners = [socket.create_server(("0.0.0.0", PORT), backlog=1024),  # noqa: S104 (of this namespace)
                     socket.create_server(("::", PORT), family=socket.AF_INET6, backlog=1024)]
        asyncio.run_coroutine_threadsafe(self._serve(name, listeners), self._loop).result()
        words = steering.run(["ip", "-o", "link", "show", steering.INNER]).split()
        return {"mac": words[words.index("link/ether") + 1]}, None

    async def _serve(self, name: str, listeners: list[socket.socket]) -> None:
        self._listening[name] = [await asyncio.start_server(self._http.connected, sock=one, limit=HEAD)
                                 for one in listeners]

    def _close(self, name: str) -> tuple[Message, None]:
        for one in self._listening.pop(name, ()):
            self._loop.call_soon_threadsafe(one.close)
        if name in self._made:
            os.close(self._made.pop(name))
        return {}, None

    def _know(self, guests: dict[str, str]) -> tuple[Message, None]:
        self._loop.call_soon_threadsafe(setattr, self._questions, "guests", guests)
        return {}, None

    def _forget(self, servers: list[str]) -> tuple[Message, None]:
        self._loop.call_soon_threadsafe(self._questions.forget, servers)
        return {}, None


async def serve(commands: socket.socket, asked: socket.socket) -> None:
    """Serve until the agent ends."""
    questions = Questions(asked)
    spaces = Namespaces(commands, asyncio.get_running_loop(), GuestHttp(questions.find, questions.leave), questions)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # guests choose what goes wrong
    reading = asyncio.create_task(questions.run())
    await asyncio.sleep(0)
    threading.Thread(target=spaces.run, name="commands", daemon=True).start()
    await reading


def connected(listener: socket.socket) -> socket.socket:
    """The agent's connection at systemd's socket; others' are closed. ``TimeoutError``: the agent is gone again."""
    listener.settimeout(CONNECTS)
    while True:
        commands, _nobody = listener.accept()
        if peer_is_root(commands):
            return commands
        commands.close()


def begun() -> tuple[socket.socket, socket.socket]:
    """The connections for commands and for questions. ``EOFError``, ``OSError``: there is no agent."""
    if len(sys.argv) > 1:
        commands = socket.socket(fileno=int(sys.argv[1]))
    else:
        with socket.socket(fileno=LISTENS) as listener:
            commands = connected(listener)
    commands.settimeout(CONNECTS)
    descriptor = messages.receive(commands)[1]
    if descriptor is None:
        raise EOFError("there is no connection for questions")
    commands.settimeout(None)
    asked = socket.socket(fileno=descriptor)
    for end in (commands, asked):
        os.set_inheritable(end.fileno(), False)
    return commands, asked


def main() -> None:
    """See the head of this file."""
    try:
        commands, asked = begun()
    except (EOFError, OSError):
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    try:
        confine()
    except OSError as error:
        messages.send(commands, {"failed": f"The kernel lets nobody have namespaces of its own: {error.strerror}."})
        return
    messages.send(commands, {"ready": os.getpid()})
    asyncio.run(serve(commands, asked))


if __name__ == "__main__":
    main()
