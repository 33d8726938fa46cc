# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that speaks with guests: ``magnetar-metadata``, or ``-m magnetar_agent.metadata.process COMMANDS``.

*COMMANDS* is the descriptor of a connection to the agent. Without it systemd has started the process, and the agent
connects at systemd's socket (``magnetar-metadata.socket``). Over this connection the agent sends a second one, for
questions.

The process runs as ``nobody``, or as the unit's own user, in its own user namespace, and creates a network namespace
for each bridge: it can reach neither the host's network nor its secrets, and asks the agent for the data of a guest.
The process ends with the agent; then the kernel removes its namespaces and their devices.
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

from magnetar_core.daemon.report import REPORT, start_process_report
from magnetar_core.errors import MagnetarError
from magnetar_core.version import installed_version

from . import PORT, messages, steering
from .guest_http import HEAD, GuestHttp
from .guest_process import peer_is_root
from .paths import GuestPaths

if TYPE_CHECKING:
    from .messages import Message

NOBODY = 65534
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SET_DUMPABLE, _SET_NO_NEW_PRIVS = 4, 38
#: Number of guests with cached data, and seconds until it is stale: data outside a server's document may change, too.
CACHED_GUESTS, FRESH = 256, 10.0
#: Seconds that the agent may take to answer.
PATIENCE = 30.0
#: The descriptor of systemd's socket, and seconds that an agent may take to connect.
LISTENS, CONNECTS = 3, 10.0
_libc = ctypes.CDLL(None, use_errno=True)


def confine_process() -> None:
    """Drop the privileges of this process: become the user ``nobody``, who is root only inside a new user namespace and
    network namespace. Modules cannot be imported afterwards."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _checked(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0))  # otherwise /proc/self is root's
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
    """The connection over which this process asks the agent for guests' data, and a cache of the answers. Used in the
    event loop only. *guests*: the server's uuid by tap address."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._kept: OrderedDict[str, tuple[float, GuestPaths]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[GuestPaths | None]] = {}
        #: Server by address of its tap.
        self.guests: dict[str, str] = {}

    async def run(self) -> None:
        """Receive the agent's answers until the connection is closed."""
        reader, self._writer = await asyncio.open_connection(sock=self._end)
        while True:
            try:
                text = await reader.readexactly(messages.message_length(await reader.readexactly(4)))
            except (EOFError, OSError):
                return
            answer = json.loads(text)
            waiting = self._waiting.pop(answer["number"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def forget(self, servers: list[str]) -> None:
        """Drop the cached data of *servers* (uuids), because it has changed."""
        for server in servers:
            self._kept.pop(server, None)
            self._asked.pop(server, None)

    async def find(self, guest: str) -> GuestPaths | None:
        """Return the data for the guest with the tap address *guest*, from the cache or from the agent; ``None`` if no
        server has this address. Concurrent requests share one question to the agent."""
        server = self.guests.get(guest)
        if server is None:
            return None
        cached = self._kept.get(server)
        if cached is not None and time.monotonic() - cached[0] < FRESH:
            self._kept.move_to_end(server)
            return cached[1]
        pending = self._asked.get(server)
        if pending is None:
            pending = self._asked[server] = asyncio.create_task(self._tree(server))
        return await asyncio.shield(pending)

    async def _tree(self, server: str) -> GuestPaths | None:
        this = asyncio.current_task()
        try:
            answer = await self._ask({"about": server})
            if "parts" not in answer:
                return None
            parts = [base64.b64decode(part) for part in answer["parts"]]
            guest_paths = GuestPaths({path: parts[at] for path, at in answer["tree"].items()}, answer["password"])
            if self._asked.get(server) is this:  # otherwise it has changed meanwhile
                self._kept[server] = time.monotonic(), guest_paths
                self._kept.move_to_end(server)
                while len(self._kept) > CACHED_GUESTS:
                    self._kept.popitem(last=False)
            return guest_paths
        finally:
            if self._asked.get(server) is this:
                del self._asked[server]

    async def send_password(self, guest: str, password: str) -> tuple[int, str]:
        """Send to the agent the *password* that the guest with the tap address *guest* has posted. Return the HTTP
        status for the guest, and the reason if the password is refused."""
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
            self._writer.write(messages.encode_message({**question, "number": number}))
            async with asyncio.timeout(PATIENCE):
                return await self._waiting[number]
        finally:
            self._waiting.pop(number, None)


class Namespaces:
    """The network namespaces of this process, one for each bridge, with a listening socket in each. One thread runs the
    agent's commands, because a thread must switch to a namespace to create a socket in it."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop, http: GuestHttp,
                 questions: Questions) -> None:
        self._end, self._loop, self._http, self._questions = end, loop, http, questions
        self._made: dict[str, int] = {}
        self._listening: dict[str, list[asyncio.Server]] = {}

    def run(self) -> None:
        """Receive and run the agent's commands until the connection is closed; then end the process."""
        try:
            while True:
                command, _none = messages.receive_message(self._end)
                try:
                    answer, descriptor = getattr(self, f"_{command['do']}")(**command["with"])
                except (OSError, MagnetarError) as error:
                    answer, descriptor = {"failed": str(error)}, None
                messages.send_message(self._end, answer, descriptor)
        except (EOFError, OSError):
            os._exit(0)

    def _make(self, name: str) -> tuple[Message, int]:
        """Run the command ``make``: create the network namespace *name*. Return an empty answer and the namespace's
        descriptor, so that the agent can put a device into the namespace."""
        self._close(name)
        _checked(_libc.unshare(_NEW_NET))
        self._made[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        return {}, self._made[name]

    def _listen(self, name: str, seal: str) -> tuple[Message, None]:
        """Run the command ``listen``: configure the device that the agent has put into the namespace *name*, and listen
        in this namespace. *seal*: the secret source MAC that the nftables rules give to guests' requests, so that the
        service recognises requests that have passed the rules. Return the MAC of the device."""
        _checked(_libc.setns(self._made[name], _NEW_NET))
        links, rules = steering.namespace_setup(seal)
        steering.run_network_program(["nft", "-f", "-"], rules)
        steering.run_network_program(["ip", "-batch", "-"], links)
        listeners = [socket.create_server(("0.0.0.0", PORT), backlog=1024),  # noqa: S104 (of this namespace)
                     socket.create_server(("::", PORT), family=socket.AF_INET6, backlog=1024)]
        asyncio.run_coroutine_threadsafe(self._serve(name, listeners), self._loop).result()
        words = steering.run_network_program(["ip", "-o", "link", "show", steering.INNER]).split()
        return {"mac": words[words.index("link/ether") + 1]}, None

    async def _serve(self, name: str, listeners: list[socket.socket]) -> None:
        self._listening[name] = [await asyncio.start_server(self._http.connected, sock=listener, limit=HEAD)
                                 for listener in listeners]

    def _close(self, name: str) -> tuple[Message, None]:
        for server in self._listening.pop(name, ()):
            self._loop.call_soon_threadsafe(server.close)
        if name in self._made:
            os.close(self._made.pop(name))
        return {}, None

    def _know(self, guests: dict[str, str]) -> tuple[Message, None]:
        self._loop.call_soon_threadsafe(setattr, self._questions, "guests", guests)
        return {}, None

    def _forget(self, servers: list[str]) -> tuple[Message, None]:
        self._loop.call_soon_threadsafe(self._questions.forget, servers)
        return {}, None


async def serve_guests(commands: socket.socket, question_socket: socket.socket) -> None:
    """Answer guests' HTTP requests until the agent closes the connections. *commands*: the socket with the agent's
    commands. *question_socket*: the socket for questions to the agent."""
    REPORT.add_loop(asyncio.get_running_loop())
    questions = Questions(question_socket)
    spaces = Namespaces(commands, asyncio.get_running_loop(), GuestHttp(questions.find, questions.send_password),
                        questions)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # guests choose what goes wrong
    reading = asyncio.create_task(questions.run())
    await asyncio.sleep(0)
    threading.Thread(target=spaces.run, name="commands", daemon=True).start()
    await reading


def accept_agent(listener: socket.socket) -> socket.socket:
    """Accept and return the agent's connection on *listener*, systemd's listening socket. Connections from other users
    are closed. Raises ``TimeoutError`` if the agent does not connect in time."""
    listener.settimeout(CONNECTS)
    while True:
        commands, _nobody = listener.accept()
        if peer_is_root(commands):
            return commands
        commands.close()


def open_connections() -> tuple[socket.socket, socket.socket]:
    """Return the agent's two sockets: for commands, and for questions to the agent. The first socket comes as a command
    line argument or from systemd, the second in a message over the first. Raises ``EOFError`` or ``OSError`` if the
    agent has ended."""
    if len(sys.argv) > 1:
        commands = socket.socket(fileno=int(sys.argv[1]))
    else:
        with socket.socket(fileno=LISTENS) as listener:
            commands = accept_agent(listener)
    commands.settimeout(CONNECTS)
    descriptor = messages.receive_message(commands)[1]
    if descriptor is None:
        raise EOFError("there is no connection for questions")
    commands.settimeout(None)
    question_socket = socket.socket(fileno=descriptor)
    for end in (commands, question_socket):
        os.set_inheritable(end.fileno(), False)
    return commands, question_socket


def main() -> None:
    """Run the process of the metadata service until the agent ends it."""
    try:
        commands, question_socket = open_connections()
    except (EOFError, OSError):
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    installed_version()  # for reports; cached, because the process cannot read it later
    try:
        confine_process()
    except OSError as error:
        messages.send_message(commands,
                              {"failed": f"The kernel lets nobody have namespaces of its own: {error.strerror}."})
        return
    start_process_report("metadata")  # a process with threads gets no user namespace
    messages.send_message(commands, {"ready": os.getpid()})
    asyncio.run(serve_guests(commands, question_socket))


if __name__ == "__main__":
    main()
