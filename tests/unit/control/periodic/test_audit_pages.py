# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of a cell with many servers reads bounded pages, changed servers first, and finds what is on any page."""

import contextlib
import itertools
import threading
import uuid
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, event, insert, select, update

from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.audit_pages import PAGE
from magnetar_control.conductor.periodic.audit_reader import AuditReader
from magnetar_control.conductor.periodic.audit_state import AuditedServer, AuditState, Finding
from magnetar_control.conductor.periodic.cell_audit import CellAudit
from magnetar_control.conductor.periodic.repair import REPAIRS
from magnetar_control.scheduler.request_spec import claimed_amounts
from magnetar_control.services.network.embedded import EmbeddedNetworks
from magnetar_control.services.volume.embedded import EmbeddedVolumes
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.schema import upgrade_schema
from magnetar_control.store.store import CELL0, Store
from magnetar_core.errors import Conflict, NotFound, Unreachable

THEN, COUNT, HOSTS = "2026-11-01T00:00:00.000000", 5000, 10
FLAVOR = '{"vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}}'
WHO = {"project_id": "p", "user_id": "u"}
IDS = [str(uuid.UUID(int=number << 96 | number)) for number in range(1, COUNT + 1)]
AMOUNTS = claimed_amounts({"vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}})


class Guests:
    """The agents of all hosts: the guests of each, by endpoint and id."""

    def __init__(self):
        self.guests, self.calls, self.silent = {}, 0, set()

    @contextlib.contextmanager
    def client(self, endpoint):
        if endpoint in self.silent:
            raise Unreachable("It does not answer.")
        mine = self.guests[endpoint]

        def get(_noun, id):
            self.calls += 1
            if id not in mine:
                raise NotFound("There is none.", kind="server", key=id)
            return mine[id]

        def list(noun, **_query):
            self.calls += 1
            return [*mine.values()] if noun == "server" else []
        yield SimpleNamespace(get=get, list=list)


def row(number, **more):
    """The row of a server that is on its host."""
    return {"id": IDS[number], "name": "web", "vm_state": "active", "power_state": 1, "host": f"kvm{number % HOSTS}",
            "flavor_id": "1", "flavor": FLAVOR, "created_at": THEN, **WHO, **more}


def fill(store, guests):
    """Write servers, claims, mappings and guests that agree."""
    cell = store.find_cell("cell1").id
    claims = [{"consumer_id": IDS[number], "server_id": IDS[number], "host_id": f"h{number % HOSTS}",
               "created_at": THEN, **AMOUNTS._asdict()} for number in range(COUNT)]
    each = COUNT // HOSTS
    with store.api.write() as connection:
        connection.execute(insert(tables.hosts), [
            {"id": f"h{number}", "name": f"kvm{number}", "number": number, "cell_id": cell, "endpoint": f"kvm{number}",
             "servers": each, "created_at": THEN, **{f"{name}_used": n * each for name, n in AMOUNTS._asdict().items()}}
            for number in range(HOSTS)])
        connection.execute(insert(tables.allocations), claims)
        connection.execute(insert(tables.server_mappings), [
            {"server_id": id, "cell_id": cell, "project_id": "p"} for id in IDS])
    with store.cell(cell).write() as connection:
        connection.execute(insert(tables.servers), [row(number) for number in range(COUNT)])
    for number in range(COUNT):
        guests.guests.setdefault(f"kvm{number % HOSTS}", {})[IDS[number]] = {
            "id": IDS[number], "power_state": "running", "volumes_attached": [], "networks": []}


class Audited:
    """A cloud of one cell, and the parts of a conductor that the audit uses."""

    def __init__(self, database, folder):
        self.store, self.agents = Store(database), Guests()
        self.store.add_cell("cell0", f"sqlite:///{folder}/cell0.db", CELL0)
        cell = self.store.add_cell("cell1", database.url.render_as_string(hide_password=False))
        upgrade_schema(self.store.cell0, tables.CELL)
        self.services = SimpleNamespace(network=EmbeddedNetworks(database), volume=EmbeddedVolumes(
            database, list, None, lambda _host, _image: None))
        up = SimpleNamespace(profile=SimpleNamespace(cell_id=cell.id, up=True))
        self.database, self.repaired, self.pages = self.store.cell(cell.id), [], []
        self.conductor = SimpleNamespace(
            store=self.store, agents=self.agents, services=self.services, cell=cell, database=self.database,
            over=threading.Event(), states=SimpleNamespace(hosts={f"kvm{number}": up for number in range(HOSTS)}))
        self.audit = self.successor()
        fill(self.store, self.agents)

    def successor(self):
        """The audit of a conductor that has just started."""
        return CellAudit(self.conductor, lambda _state, finding: self.repaired.append(finding))

    def turn(self):
        """The lasting findings of one turn."""
        return [(finding.kind, finding.id) for finding in self.audit.run_next_part(lambda _seconds: None)]

    def turns(self, count):
        """The lasting findings of some turns."""
        return {found for _turn in range(count) for found in self.turn()}

    def everything(self):
        """The findings of the command."""
        return {(finding.kind, finding.id) for finding in audit.run_with_state(
            self.store, self.agents, self.services, pause=0)[0]}

    def change(self, statement):
        with self.database.write() as connection:
            connection.execute(statement)


#: Turns of a pass over the cell, and the one that sees its last findings again.
PASS = 7


@pytest.fixture
def cloud(database, tmp_path, monkeypatch):
    made = Audited(database, tmp_path)
    read = AuditReader.read_page

    def reading(reader, subjects):
        state = read(reader, subjects)
        made.pages.append(state)
        return state

    monkeypatch.setattr(AuditReader, "read_page", reading)
    yield made
    made.store.close()


@contextlib.contextmanager
def fetched(*databases):
    """The statements that are sent within, each with its rows."""
    seen = []

    def note(_connection, cursor, statement, *_rest):
        seen.append((statement, cursor))

    engines = [engine for database in databases for engine in (database.engine, database.reading)]
    for engine in engines:
        event.listen(engine, "after_cursor_execute", note)
    yield seen
    for engine in engines:
        event.remove(engine, "after_cursor_execute", note)


def changed(number, action="reboot"):
    """The action that was done to a server."""
    return insert(tables.actions).values(request_id=f"req-{uuid.uuid4()}", server_id=IDS[number], action=action,
                                         start_time=THEN, state="done", **WHO)


def test_a_turn_reads_a_page_and_a_pass_reads_all(cloud):
    seen = set()
    for number in range(PASS):
        cloud.pages.clear()
        with fetched(cloud.store.api, cloud.database) as statements:
            assert cloud.turn() == []
        assert sum(len(state.ids) for state in cloud.pages) <= 2 * PAGE
        assert len(statements) < 120, [statement for statement, _cursor in statements]
        assert not any("FOR UPDATE" in statement for statement, _cursor in statements)
        assert not number or not any(statement.startswith(("INSERT", "DELETE")) and "audit_marks" not in statement
                                     for statement, _cursor in statements)
        seen.update(id for state in cloud.pages for id in state.servers)
    assert seen == set(IDS)
    assert cloud.everything() == set()


def damage(cloud, number):
    """Do damage of several kinds to the servers near *number*; return what is found."""
    orphan, port, left, gone = (str(uuid.uuid4()) for _time in range(4))
    with cloud.store.api.write() as connection:
        connection.execute(delete(tables.allocations).where(tables.allocations.c.server_id == IDS[number]))
        connection.execute(insert(tables.server_mappings), [
            {"server_id": id, "cell_id": cloud.conductor.cell.id, "project_id": "p", "deleted": id != gone}
            for id in (orphan, left, gone)])
        connection.execute(insert(tables.allocations).values(
            consumer_id=orphan, server_id=orphan, host_id=f"h{number % HOSTS}", created_at=THEN, vcpus=0, memory_mb=0,
            disk_gb=0))
        network = connection.execute(select(tables.API.tables["networks"].c.id)).scalar()
        if network is None:
            network = "n"
            connection.execute(insert(tables.API.tables["networks"]).values(
                id=network, project_id="p", name="n", type="nat", created_at=THEN))
        connection.execute(insert(tables.API.tables["ports"]).values(
            id=port, project_id="p", name="", network_id=network, mac_address=port[:17], status="DOWN",
            device_id=orphan, device_owner="compute:nova", place=0, created_at=THEN))
    cloud.change(update(tables.servers).where(tables.servers.c.id == IDS[number + 1]).values(task_state="rebooting"))
    cloud.change(update(tables.servers).where(tables.servers.c.id == IDS[number + 2]).values(vm_state="building",
                                                                                           host=None))
    cloud.agents.guests[f"kvm{number % HOSTS}"][left] = {
        "id": left, "power_state": "running", "volumes_attached": [], "networks": []}
    host = f"kvm{number % HOSTS}"
    return {("unclaimed", IDS[number]), ("orphan", orphan), ("port", port), ("stuck", IDS[number + 1]),
            ("stuck", IDS[number + 2]), ("double", IDS[number + 2]), ("left", left), ("lost", gone), ("counter", host)}


def test_a_finding_on_any_page_is_found(cloud):
    expected = {finding for number in (0, 2504, COUNT - 4) for finding in damage(cloud, number)}
    assert cloud.everything() == expected
    assert cloud.turns(PASS) == expected
    assert {(finding.kind, finding.id) for finding in cloud.repaired} == expected


def test_changed_and_stuck_servers_come_first(cloud):
    for _turn in range(2):
        cloud.turn()
    for number in (7, COUNT - 2):
        with cloud.store.api.write() as connection:
            connection.execute(update(tables.allocations).where(
                tables.allocations.c.server_id == IDS[number]).values(vcpus=2))
        cloud.change(changed(number))
    cloud.change(update(tables.servers).where(tables.servers.c.id == IDS[-1]).values(task_state="rebooting"))
    cloud.pages.clear()
    assert cloud.turn() == []
    assert [state.servers.keys() for state in cloud.pages[:2]] == [{IDS[-1]}, {IDS[7], IDS[COUNT - 2]}]
    assert set(cloud.turn()) == {("unclaimed", IDS[7]), ("unclaimed", IDS[COUNT - 2]), ("stuck", IDS[-1])}


def test_a_busy_server_is_read_again_when_its_action_has_ended(cloud):
    cloud.turn()
    with cloud.store.api.write() as connection:
        connection.execute(update(tables.allocations).where(
            tables.allocations.c.server_id == IDS[-1]).values(vcpus=2))
    cloud.change(changed(COUNT - 1).values(state="running"))
    cloud.pages.clear()
    cloud.turn()
    assert cloud.pages[0].servers[IDS[-1]].busy
    cloud.change(update(tables.actions).values(state="done"))
    cloud.turn()
    assert cloud.turn() == [("unclaimed", IDS[-1])]


def test_a_successor_goes_on_and_loses_no_finding(cloud):
    """The conductor dies between two turns, and another one begins where suspects were last read again."""
    expected = damage(cloud, 2504)
    found = set()
    for _conductor in range(PASS):
        found |= cloud.turns(2)
        cloud.audit = cloud.successor()
        if found >= expected:
            break
    assert found == expected


class Killed(Exception):
    """Ends a turn where a kill of the process would."""


def test_an_audit_that_is_killed_in_a_turn_loses_no_finding(cloud):
    """Each conductor dies after one page more of its turn; what it has read, but not stored, is read again."""
    expected = damage(cloud, 2504)
    for last_page in range(6):
        rests = itertools.count()

        def rest(_seconds, rests=rests, last_page=last_page):
            if next(rests) == last_page:
                raise Killed

        with contextlib.suppress(Killed):
            cloud.audit.run_next_part(rest)
        cloud.audit = cloud.successor()
    assert cloud.turns(2 * PASS) >= expected
    assert {(finding.kind, finding.id) for finding in cloud.repaired} >= expected


def test_lasting_findings_do_not_pile_up(cloud):
    """A cloud that is broken everywhere is read no faster."""
    cloud.change(update(tables.servers).values(power_state=4, vm_state="stopped"))
    for _turn in range(4):
        cloud.pages.clear()
        cloud.turn()
        assert sum(len(state.ids) for state in cloud.pages) <= 4 * PAGE
        assert len(cloud.audit.suspects) <= PAGE


def test_a_silent_host_is_asked_once(cloud):
    cloud.agents.silent = {f"kvm{number}" for number in range(HOSTS)}
    findings, report = audit.run_with_state(cloud.store, cloud.agents, cloud.services, pause=0)
    assert findings == [] and report.silent_hosts == cloud.agents.silent
    assert (report.server_count, report.host_count) == (COUNT, 0)


@pytest.mark.parametrize("macs", [["fa:16:3e:00:00:01"], []])
def test_a_port_is_kept_if_a_guest_where_nothing_leads_to_has_it(macs):
    """The page asked kvm0; the guest is on kvm1. A host that does not answer is left out."""
    freed, up = [], SimpleNamespace(profile=SimpleNamespace(cell_id="c", up=True))
    guest = {"id": "s", "volumes_attached": [], "networks": [{"mac": mac} for mac in macs]}

    @contextlib.contextmanager
    def client(name):
        if name == "kvm2":
            raise Unreachable("It does not answer.")
        yield SimpleNamespace(get=lambda _noun, _id: guest)

    watch = SimpleNamespace(conductor=SimpleNamespace(
        client=client, cell=SimpleNamespace(id="c"), states=SimpleNamespace(hosts=dict.fromkeys(
            ("kvm0", "kvm2", "kvm1"), up)),
        services=SimpleNamespace(network=SimpleNamespace(release=lambda *words: freed.append(words)))))
    state = AuditState(servers={"s": AuditedServer.of_values({"id": "s", "volumes": "[]", "interfaces": "[]"})},
                       guests={"kvm0": {}})
    finding = Finding("port", "p", "s", "", "s")
    with pytest.raises(Conflict) if macs else contextlib.nullcontext():
        REPAIRS["port"](watch, state, finding)
    assert freed == ([] if macs else [("s", "p")])


def test_a_host_or_cell_that_is_silent_in_the_second_reading_only(cloud, monkeypatch):
    damage(cloud, 10)
    read_page = audit.AuditReader.read_page

    def read_in_silence(reader, subjects):
        reader.silent_cells.add("gone")
        reader.silent_hosts.add("kvm-gone")
        return read_page(reader, subjects)

    monkeypatch.setattr(audit.time, "sleep", lambda _seconds: monkeypatch.setattr(
        audit.AuditReader, "read_page", read_in_silence))
    _findings, report = audit.run_with_state(cloud.store, cloud.agents, cloud.services)
    assert ("gone" in report.silent_cells, "kvm-gone" in report.silent_hosts) == (True, True)
