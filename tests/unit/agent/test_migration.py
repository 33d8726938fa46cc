# SPDX-License-Identifier: GPL-3.0-or-later
"""Migration between two agents on fake hosts, over real TLS links: what goes, what is refused, and what a crash does.

After every way that it can end, the guest is there exactly once, runs if it ran, and has its disks.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent import access, serve
from magnetar_agent.agent import Agent
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.settings import Settings
from magnetar_core.client import Client
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, InvalidField, MagnetarError, NoSpace, NotFound
from magnetar_core.flows.migrate import Migrate, Side, abort

from .pki import Pki
from .serving import served

#: What is done, in order.
WAY = ["prepare", "claim", "move", "settle", "leave"]


class Died(BaseException):
    """The process ends here."""


class Kvm:
    """A fake host whose agent serves over TLS; ``restart`` is another process over the same state."""

    def __init__(self, root: Path, pki: Pki, name: str, port: int) -> None:
        self.root, self.pki, self.name, self.port = root, pki, name, port
        self.fake = FakeHypervisor(name=name)
        self._ending = ExitStack()
        self.cert, self.key = pki.issue(name)
        self.start()

    def start(self) -> None:
        """A new agent."""
        settings = Settings(
            state_dir=self.root / self.name, socket=self.root / self.name / "run" / "agent.sock", grace=0.1,
            listen=f"127.0.0.1:{self.port}", tls_cert=self.cert, tls_key=self.key, tls_client_ca=self.pki.ca,
            tokens_file=self.root / "none.yml", client_certs={"admin": "operate"}, image_paths=(self.root,), wait=5,
            shutdown_timeout=0.2)
        self.agent = Agent(settings, self.fake)
        self.agent.host_name = self.name
        sock = serve.tcp_socket(("127.0.0.1", self.port))
        tls = access.tls(settings, access.Tokens(settings.tokens_file))
        self._ending.enter_context(served(self.agent, sock, tls))
        self._ending.callback(self.agent.close)
        self.agent.start()
        assert self.agent.follower.settled.wait(10)

    def stop(self) -> None:
        """The agent's process ends; guests do not."""
        self._ending.close()

    def restart(self) -> None:
        """The agent's process dies, with what it does just now, and comes back."""
        for operation in self.agent.operations.list():
            operation._end("died")
        self.stop()
        self.start()

    def side(self) -> Side:
        """A coordinator's view."""
        admin = self.pki.folder / "admin.pem", self.pki.folder / "admin.key"
        return Side(Client(f"https://127.0.0.1:{self.port}", ca_cert=str(self.pki.ca), client_cert=str(admin[0]),
                           client_key=str(admin[1]), timeout=20))

    def runs(self, id: str) -> bool:
        """Whether the guest runs here."""
        found = self.fake.domain(id)
        return found is not None and found.state == "running"

    def knows(self, id: str) -> bool:
        """Whether a server of that uuid is this host's."""
        return self.agent.documents.get("server", id) is not None


class Pair:
    """Two hosts, and a server called web1 on the first."""

    def __init__(self, root: Path, ports: tuple[int, int]) -> None:
        self.root = root
        pki = Pki(root / "pki")
        pki.issue("admin")
        self.one, self.two = Kvm(root, pki, "kvm1", ports[0]), Kvm(root, pki, "kvm2", ports[1])

    def both(self, act: Callable[[Kvm], None]) -> None:
        """On both hosts at once."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(act, (self.one, self.two)))

    def make(self, **want: Any) -> str:
        """A server on the first host; its disk has a pattern."""
        answer = self.one.side().client.ensure("server", "web1", {
            "flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "user_data": "c2VjcmV0", "metadata": {"role": "web"},
            "networks": [{"bridge": "br0"}], **want})
        id = str(answer["resource"]["id"])
        place = self.one.agent.settings.state_dir / "servers" / id
        with (place / "disk").open("ab") as disk:
            disk.write(b"pattern" * 1000)
        (place / "console.log").write_text("boot\n")
        return id

    def migrate(self, server: str = "web1", **wish: Any) -> list[str]:
        """Run the flow; returns its steps' verbs."""
        flow = Migrate(self.one.side(), self.two.side(), server, wish)
        return [step.verb for step in flow.steps()]

    def check(self, id: str, at: Kvm, runs: bool = True) -> None:
        """The guest is at *at* and nowhere else, whole, and nothing is left of its way."""
        other = self.two if at is self.one else self.one
        assert at.knows(id)
        assert not other.knows(id)
        assert at.runs(id) is runs
        assert other.fake.domain(id) is None
        assert not (other.agent.settings.state_dir / "servers" / id).exists()
        disk = (at.agent.settings.state_dir / "servers" / id / "disk").read_bytes()
        assert disk.endswith(b"pattern" * 1000)
        for host in (self.one, self.two):
            assert not list((host.agent.settings.socket.parent / "links").glob("*"))
            assert host.side().host["orphans"] == {"domains": [], "files": []}
            found = host.side().find(id)
            assert found is None or (found["status"] == ("ACTIVE" if runs else "SHUTOFF") and found["fault"] is None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two hosts in a folder with a short name, as unix sockets need it."""
    root = Path(tempfile.mkdtemp(prefix="mag"))
    ports = []
    for _number in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    found = Pair(root, (ports[0], ports[1]))
    yield found
    found.both(Kvm.stop)
    found.one.fake.close()
    found.two.fake.close()
    shutil.rmtree(root)


# What goes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("wish", "power", "runs"), [
    ({}, "running", True), ({"type": "live"}, "running", True), ({"type": "cold"}, "running", True),
    ({}, "off", False), ({"type": "cold"}, "off", False),
])
def test_a_server_goes(pair: Pair, wish: dict[str, str], power: str, runs: bool) -> None:
    id = pair.make(power=power)
    before = pair.one.side().find("web1")
    assert pair.migrate(**wish) == WAY
    pair.check(id, pair.two, runs)
    after = pair.two.side().find("web1")
    assert before and after
    differs = {name for name in before if before[name] != after[name]}
    assert differs in ({"host", "console_log", "updated_at"}, {"host", "console_log"})
    log = pair.two.agent.settings.state_dir / "servers" / id / "console.log"
    assert log.read_text() == "boot\n"
    want = pair.two.agent.documents.get("server", id)
    assert want is not None and want.want["user_data"] == "c2VjcmV0"
    assert pair.migrate() == []  # it is there
    answer = pair.two.side().client.ensure("server", "web1", {"metadata": {"role": "web"}})
    assert not answer["changed"]


def test_a_paused_server_stays_paused(pair: Pair) -> None:
    id = pair.make()
    pair.one.side().client.ensure("server", "web1", {"power": "paused"})
    pair.migrate()
    found = pair.two.fake.domain(id)
    assert found is not None and found.state == "paused"
    assert not pair.one.knows(id)


def test_there_and_back(pair: Pair) -> None:
    id = pair.make()
    pair.migrate()
    back = Migrate(pair.two.side(), pair.one.side(), id)
    assert [step.verb for step in back.steps()] == WAY
    pair.check(id, pair.one)


def test_a_plan_changes_nothing(pair: Pair) -> None:
    id = pair.make()
    steps = Migrate(pair.one.side(), pair.two.side(), "web1").plan()
    assert [step.verb for step in steps] == WAY
    assert "live migration to kvm2" in steps[2].text
    pair.check(id, pair.one)
    for host in (pair.one, pair.two):
        assert not host.agent.documents.list("migration")


def test_what_is_done_is_kept_as_a_record(pair: Pair) -> None:
    id = pair.make()
    pair.migrate()
    for host, peer in ((pair.one, "kvm2"), (pair.two, "kvm1")):
        (record,) = host.side().client.list("migration")
        assert (record["status"], record["server"], record["peer"], record["host"]) == (
            "completed", id, peer, host.name)


# What is refused --------------------------------------------------------------------------------------------------
def refused(pair: Pair, error: type[MagnetarError], words: str, **wish: Any) -> None:
    """Refused before anything is done, in a plan too."""
    for act in (lambda: Migrate(pair.one.side(), pair.two.side(), "web1", wish).plan(), lambda: pair.migrate(**wish)):
        with pytest.raises(error, match=words):
            act()
        for host in (pair.one, pair.two):
            assert not host.agent.documents.list("migration")


def test_the_same_host(pair: Pair) -> None:
    pair.make()
    with pytest.raises(Conflict, match="this very host"):
        Migrate(pair.one.side(), pair.one.side(), "web1").plan()


def test_a_server_that_is_nowhere(pair: Pair) -> None:
    with pytest.raises(NotFound, match="neither on kvm1 nor on kvm2"):
        pair.migrate("web9")


def test_no_memory(pair: Pair) -> None:
    pair.make(flavor={"vcpus": 1, "ram": 70000, "disk": 1})
    refused(pair, NoSpace, "70000 MiB of memory, and the target has 65536 MiB")


def test_another_cpu(pair: Pair) -> None:
    pair.make()
    pair.two.fake.alien_cpu = "<cpu>fake</cpu>"
    refused(pair, Conflict, "CPU .* lacks. Migrate it cold")
    pair.migrate(type="cold")


def test_a_missing_bridge(pair: Pair) -> None:
    pair.make()
    pair.two.fake._bridges = frozenset()
    refused(pair, InvalidField, "must be a bridge of this host")


def test_a_domain_that_is_not_ours(pair: Pair) -> None:
    id = pair.make()
    pair.two.fake.defined_outside(f"<domain><name>foreign</name><uuid>{id}</uuid></domain>")
    refused(pair, Conflict, "foreign.*no server of Magnetar")


def test_a_suspended_server(pair: Pair) -> None:
    pair.make()
    pair.one.side().client.ensure("server", "web1", {"power": "suspended"})
    refused(pair, Conflict, "suspended.*Resume or stop it first")


def test_live_needs_a_running_guest(pair: Pair) -> None:
    pair.make(power="off")
    refused(pair, Conflict, "only a running or paused one can go live", type="live")


def test_no_tls(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.make()
    monkeypatch.setattr(pair.two.agent.links, "name", lambda: None)
    refused(pair, Conflict, "kvm2 has no TLS for links")


def test_a_moving_server_is_left_alone(pair: Pair) -> None:
    id = pair.make()
    flow = Migrate(pair.one.side(), pair.two.side(), "web1")
    steps = flow.steps()
    assert [next(steps).verb, next(steps).verb, next(steps).verb] == WAY[:3]
    client = pair.one.side().client
    for act in (lambda: client.ensure("server", "web1", {"description": "x"}), lambda: client.delete("server", "web1"),
                lambda: client.event("server", "web1", "reboot")):
        with pytest.raises(Conflict, match="is being migrated"):
            act()
    assert [step.verb for step in abort(pair.one.side(), pair.two.side(), "web1")] == ["abort", "abort"]
    client.ensure("server", "web1", {"description": "x"})
    pair.check(id, pair.one)


# What goes wrong --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lose", ["answer", "end"])
def test_libvirts_last_answer_is_lost(pair: Pair, lose: str) -> None:
    id = pair.make()
    pair.one.fake.lose = lose
    with suppress(HypervisorError):
        pair.migrate()
    assert pair.one.runs(id) + pair.two.runs(id) <= 1
    pair.migrate()
    pair.check(id, pair.two)


def test_a_failure_leaves_the_guest_where_it_is(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("libvirt could not: operation failed."))
    with pytest.raises(HypervisorError, match="operation failed"):
        pair.migrate()
    assert pair.one.runs(id)
    found = pair.one.side().find("web1")
    assert found and found["status"] == "ACTIVE"
    (half,) = pair.one.side().client.list("migration")
    assert half["status"] == "failed" and "operation failed" in half["fault"]["message"]
    pair.one.side().client.ensure("server", "web1", {"description": "free again"})
    pair.one.restart()  # which does not try again by itself
    assert pair.one.runs(id)
    pair.migrate()
    pair.check(id, pair.two)


def test_abort_after_a_failure(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    abort(pair.one.side(), pair.two.side(), "web1")
    pair.check(id, pair.one)
    assert abort(pair.one.side(), pair.two.side(), "web1") == []


def test_abort_of_another_ones_migration(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    third = pair.two.side()
    monkeypatch.setattr(third, "address", "192.0.2.3")
    monkeypatch.setattr(third, "link_name", lambda: "kvm3")
    monkeypatch.setattr(third, "open_migrations", lambda _server: [])
    assert abort(pair.one.side(), third, "web1") == []
    assert len(abort(pair.one.side(), pair.two.side(), "web1")) == 2


def test_abort_when_the_target_is_down(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    pair.two.stop()
    target = pair.two.side()
    target.client.timeout = 1
    with pytest.raises(MagnetarError):
        abort(pair.one.side(), target, "web1")
    assert not pair.one.side().open_migrations(id)
    pair.two.start()


def test_a_failed_live_one_goes_cold(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    assert pair.migrate(type="cold")[0] == "abort"
    pair.check(id, pair.two)


def test_no_way_back_after_the_arrival(pair: Pair) -> None:
    id = pair.make()
    for step in Migrate(pair.one.side(), pair.two.side(), "web1").steps():
        if step.verb == "settle":
            break
    with pytest.raises(MagnetarError, match="has (gone|arrived)"):
        abort(pair.one.side(), pair.two.side(), "web1")
    pair.migrate()
    pair.check(id, pair.two)


def test_the_target_is_away(pair: Pair) -> None:
    id = pair.make(power="off")
    steps = Migrate(_brief(pair.one), pair.two.side(), "web1").steps()
    assert [next(steps).verb, next(steps).verb, next(steps).verb] == WAY[:3]
    pair.two.stop()
    with pytest.raises(MagnetarError, match="cannot be reached"):
        next(steps)
    found = pair.one.side().find("web1")
    assert found
    pair.one.side().client.ensure("server", "web1", {"power": "running"})  # not decided: given back
    assert pair.one.runs(id)
    pair.two.start()
    pair.migrate()
    pair.check(id, pair.two)


# Crashes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize("at", range(5))
def test_the_coordinator_dies(pair: Pair, kind: str, at: int) -> None:
    """Between any two steps; another one begins anew."""
    id = pair.make()
    for number, _step in enumerate(Migrate(pair.one.side(), pair.two.side(), "web1", {"type": kind}).steps()):
        if number == at:
            break
    assert pair.one.runs(id) + pair.two.runs(id) <= 1
    pair.migrate(type=kind)
    pair.check(id, pair.two)


#: Calls which change or ask for something; all others are between two of these.
POINTS = tuple((side, part, method) for side, part, methods in (
    ("source", "documents", ("write", "remove")), ("target", "documents", ("write", "remove")),
    ("source", "hypervisor", ("migrate", "stray", "destroy", "undefine", "shutdown")),
    ("target", "hypervisor", ("resume", "define", "render", "start", "make_disk", "arrived")),
) for method in methods)


class Killer:
    """Lets an agent die at the *number*-th call of *method*: whatever it does from then on, fails, and the coordinator
    with *sides* ends, too."""

    def __init__(self, thing: Any, method: str, number: int, *sides: Side) -> None:
        self.whole = getattr(thing, method)
        self.number, self.calls, self.died = number, 0, False
        setattr(thing, method, self)
        self.clients = [side.client for side in sides]
        for client in self.clients:
            client._exchange = partial(self._exchange, client._exchange)  # type: ignore[method-assign]

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls < self.number:
            return self.whole(*given, **named)
        self.died = True
        for client in self.clients:
            if client._connection and client._connection.sock:
                with suppress(OSError):
                    client._connection.sock.shutdown(socket.SHUT_RDWR)
        raise Died

    def _exchange(self, exchange: Callable[..., Any], *given: Any) -> Any:
        try:
            return exchange(*given)
        except Exception:
            if self.died:
                raise Cancelled from None
            raise


@pytest.mark.lab  # it needs no guest, but minutes
@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize(("side", "part", "method"), POINTS)
def test_an_agent_dies(pair: Pair, kind: str, side: str, part: str, method: str) -> None:
    """At each call in turn; then both agents start anew, and somebody runs the flow again. There and back."""
    id = pair.make()
    here, there = pair.one, pair.two
    for number in range(1, 40):
        thing = getattr((here if side == "source" else there).agent, part)
        sides = here.side(), there.side()
        killer = Killer(thing, method, number, *sides)
        with suppress(MagnetarError):
            for _step in Migrate(*sides, "web1", {"type": kind}).steps():
                pass
        assert pair.one.runs(id) + pair.two.runs(id) <= 1
        delattr(thing, method)
        if killer.died:
            pair.both(Kvm.restart)
            _quiet(pair)
        assert pair.one.runs(id) + pair.two.runs(id) <= 1
        for _step in Migrate(here.side(), there.side(), "web1", {"type": kind}).steps():
            pass
        pair.check(id, there)
        if not killer.died:
            return
        here, there = there, here
    raise AssertionError("it never got through")


def _brief(host: Kvm) -> Side:
    side = host.side()
    side.client.timeout = 0.8
    return side


def _quiet(pair: Pair) -> None:
    """Wait for what the agents go on with by themselves."""
    deadline = time.monotonic() + 20
    while any(h.agent.operations.running() for h in (pair.one, pair.two)) and time.monotonic() < deadline:
        time.sleep(0.01)

