# SPDX-License-Identifier: GPL-3.0-or-later
"""Two agents on fake hosts, connected by real TLS links, and a server on the first."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from magnetar_agent.agent import Agent
from magnetar_agent.api import access, serve
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.migrations import source
from magnetar_agent.reconcile.documents import Document, Documents
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Cancelled, MagnetarError
from magnetar_core.flows.migrate import Migrate, Side
from magnetar_core.http.client import Client
from tests.support.file_modes import exposed

from .pki import Pki
from .serving import served

#: Verbs of a migration's steps, in order.
WAY = ["prepare", "claim", "move", "settle", "leave"]


class Died(BaseException):
    """The agent's process ends at this point."""


@contextmanager
def ended_threads() -> Iterator[None]:
    """Within the context, do not report threads that ``Died`` ends."""
    told = threading.excepthook

    def tell(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, Died):
            told(args)

    threading.excepthook = tell
    try:
        yield
    finally:
        threading.excepthook = told


class Mortal(Documents):
    """The documents of an agent that may die: then its threads can no longer write."""

    writing: Any
    dead: bool

    def write(self, document: Document, durable: bool = True) -> None:
        with self.writing:
            if self.dead:
                raise Died
            super().write(document, durable)

    def remove(self, document: Document) -> None:
        with self.writing:
            if self.dead:
                raise Died
            super().remove(document)


class Kvm:
    """A fake host whose agent serves over TLS. ``restart`` starts a new agent with the same state. *more*: settings."""

    def __init__(self, root: Path, pki: Pki, name: str, port: int, **more: Any) -> None:
        self.more = more
        self.root, self.pki, self.name, self.port = root, pki, name, port
        self.fake = FakeHypervisor(name=name)
        self._ending = ExitStack()
        self.cert, self.key = pki.issue(name)
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        settings = AgentSettings(
            state_dir=self.root / self.name, socket=self.root / self.name / "run" / "agent.sock", grace=0.1,
            listen=f"127.0.0.1:{self.port}", tls_cert=self.cert, tls_key=self.key, tls_client_ca=self.pki.ca,
            tokens_file=self.root / "none.yml", client_certs={"admin": "operate"}, image_paths=(self.root,), wait=5,
            shutdown_timeout=0.2, **self.more)
        self.agent = Agent(settings, self.fake)
        documents: Any = self.agent.host.documents
        documents.__class__, documents.writing, documents.dead = Mortal, threading.RLock(), False
        self.agent.host.name = self.name
        sock = serve.tcp_socket(("127.0.0.1", self.port))
        tls = access.server_tls_context(settings, access.BearerTokens(settings.tokens_file))
        self._ending.enter_context(served(self.agent, sock, tls))
        self._ending.callback(self.agent.close)
        self.agent.start()
        assert self.agent.power_sync.settled.wait(120)

    def stop(self) -> None:
        """End the agent; guests keep running."""
        self._ending.close()

    def die(self) -> None:
        """Let the agent die in the middle of its work: its threads can no longer write documents."""
        documents: Any = self.agent.host.documents
        with documents.writing:
            documents.dead = True
        for operation in self.agent.host.operations.list():
            operation._end("died")
        self.stop()

    def restart(self) -> None:
        """Let the agent die, and start a new one."""
        self.die()
        self.start()

    def side(self) -> Side:
        """Return the host as one side of a migration, with a client."""
        admin = self.pki.folder / "admin.pem", self.pki.folder / "admin.key"
        return Side(Client(f"https://127.0.0.1:{self.port}", ca_cert=str(self.pki.ca), client_cert=str(admin[0]),
                           client_key=str(admin[1]), timeout=20))

    def runs(self, id: str) -> bool:
        """Return whether the guest runs on this host."""
        found = self.fake.domain(id)
        return found is not None and found.state == "running"

    def knows(self, id: str) -> bool:
        """Return whether this host has a document of the server."""
        return self.agent.host.documents.get("server", id) is not None


class Pair:
    """Two hosts, and a server called web1 on the first."""

    def __init__(self, root: Path, ports: tuple[int, int], more: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.root, more = root, more or {}
        self._ending = ExitStack()
        self._ending.enter_context(ended_threads())
        pki = Pki(root / "pki")
        pki.issue("admin")
        self.one, self.two = (
            Kvm(root, pki, name, port, **more.get(name, {}))
            for name, port in zip(("kvm1", "kvm2"), ports, strict=True))

    def both(self, act: Callable[[Kvm], None]) -> None:
        """Call *act* for both hosts, in parallel."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(act, (self.one, self.two)))

    def close(self) -> None:
        """End both hosts and remove their files, also those that threads of dead agents still write."""
        self.both(Kvm.stop)
        self.one.fake.close()
        self.two.fake.close()
        self._ending.close()
        open_files = [exposed(self.root / host.name) for host in (self.one, self.two)]
        for _attempt in range(5):
            shutil.rmtree(self.root, ignore_errors=True)
            if not self.root.exists():
                break
            time.sleep(0.1)
        assert open_files == [[], []], "other users of the hosts could read these"

    def make(self, **want: Any) -> str:
        """Create a server on the first host, with a pattern on its disk; return its uuid."""
        answer = self.one.side().client.ensure("server", "web1", {
            "flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None, "user_data": "c2VjcmV0",
            "metadata": {"role": "web"}, "networks": [{"bridge": "br0"}], **want})
        id = str(answer["resource"]["id"])
        place = Path(self.one.agent.host.settings.servers_folder) / id
        with (place / "disk").open("ab") as disk:
            disk.write(b"pattern" * 1000)
        (place / "console.log").write_text("boot\n")
        (place / "console.log").chmod(0o600)  # as virtlogd makes it
        return id

    def image(self, name: str) -> None:
        """Create an image on the first host."""
        (self.root / name).write_bytes(name.encode().ljust(1 << 20, b"."))
        self.one.side().client.ensure("image", name, {"source": {"path": str(self.root / name)}, "disk_format": "raw"})

    def migrate(self, server: str = "web1", **wish: Any) -> list[str]:
        """Migrate a server to the second host; return the verbs of the steps."""
        flow = Migrate(self.one.side(), self.two.side(), server, wish)
        return [step.verb for step in flow.steps()]

    def check(self, id: str, at: Kvm, runs: bool = True) -> None:
        """Check that the guest and its whole disk are on *at* and on no other host, and that the migration has left
        nothing."""
        other = self.two if at is self.one else self.one
        assert at.knows(id)
        assert not other.knows(id)
        assert at.runs(id) is runs
        assert other.fake.domain(id) is None
        assert not (other.agent.host.settings.state_dir / "servers" / id).exists()
        disk = (at.agent.host.settings.state_dir / "servers" / id / "disk").read_bytes()
        assert disk.endswith(b"pattern" * 1000)
        for host in (self.one, self.two):
            assert not list((host.agent.host.settings.socket.parent / "links").glob("*"))
            orphans = host.side().host["orphans"]
            assert (orphans["domains"], orphans["files"]) == ([], [])
            found = host.side().find(id)
            assert found is None or (found["status"] == ("ACTIVE" if runs else "SHUTOFF") and found["fault"] is None)


class Killer:
    """A patch that lets an agent die at the *number*-th call of *method* of *thing*. All later calls of the method
    fail, and the coordinator with *sides* ends too."""

    def __init__(self, thing: Any, method: str, number: int, *sides: Side) -> None:
        self.whole = getattr(thing, method)
        self.number, self.calls, self.died, self.over = number, 0, False, False
        self._counting = threading.Lock()
        setattr(thing, method, self)
        self.clients = [side.client for side in sides]
        for client in self.clients:
            client._exchange = partial(self._exchange, client._exchange)  # type: ignore[method-assign]

    def __call__(self, *given: Any, **named: Any) -> Any:
        with self._counting:
            self.calls += 1
            self.died |= not self.over and self.calls >= self.number
            dies = self.died
        if not dies:
            return self.whole(*given, **named)
        for client in self.clients:
            if client._connection and client._connection.sock:
                with suppress(OSError):
                    client._connection.sock.shutdown(socket.SHUT_RDWR)
        raise Died

    def end(self) -> bool:
        """Let no further call die; return whether one did."""
        with self._counting:
            self.over = True
            return self.died

    def _exchange(self, exchange: Callable[..., Any], *given: Any) -> Any:
        try:
            return exchange(*given)
        except Exception:
            if self.died:
                raise Cancelled from None
            raise


def killed(thing: Any, method: str, number: int, kind: str, *sides: Side) -> bool:
    """Migrate web1 from the first to the second of *sides* while an agent dies as ``Killer`` says; return whether one
    did."""
    killer = Killer(thing, method, number, *sides)
    with suppress(MagnetarError):
        for _step in Migrate(*sides, "web1", {"type": kind}).steps():
            pass
    delattr(thing, method)
    return killer.end()


class Held:
    """A migration on *host* that stops until ``on`` is set: when *done* tenths of the memory are sent (``live``),
    before its disk is sent (``cold``), or after the guest has moved (``after``). ``reached`` is set when it stops."""

    def __init__(self, host: Kvm, kind: str, done: int = 0) -> None:
        self.reached, self.on, self.done = threading.Event(), threading.Event(), done
        self._whole: Any = source.send_file_frames if kind == "cold" else host.fake.migrate
        if kind == "cold":
            source.send_file_frames = self._send
        else:
            host.fake.migrate = self._after if kind == "after" else self._live  # type: ignore[method-assign]

    def _wait(self, going: Callable[[], object]) -> None:
        self.reached.set()
        while not self.on.wait(0.01):
            going()

    def _live(self, uuid: str, params: Any, going: Callable[[Any], None], gone: Any) -> None:
        def slow(facts: Any) -> None:
            going(facts)
            if facts["done"] == self.done:
                self._wait(lambda: going(facts))

        self._whole(uuid, params, slow, gone)

    def _after(self, *given: Any) -> None:
        self._whole(*given)
        self._wait(lambda: None)

    def _send(self, talk: Any, path: Path, offset: int, sent: Callable[[int], None], *rate: Any) -> int:
        if path.name == "disk":
            self._wait(lambda: sent(0))
        return int(self._whole(talk, path, offset, sent, *rate))


def brief(host: Kvm) -> Side:
    """Return the host as a side of a migration whose client waits only 2 seconds, for an agent that is busy."""
    side = host.side()
    side.client.timeout = 2.0
    return side


def quiet(pair: Pair) -> None:
    """Wait until both agents have no running operations."""
    deadline = time.monotonic() + 120
    while any(h.agent.host.operations.running() for h in (pair.one, pair.two)) and time.monotonic() < deadline:
        time.sleep(0.01)
