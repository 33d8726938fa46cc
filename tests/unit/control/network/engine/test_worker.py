# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written into the engine: when, by whom, who waits for it, and what becomes of it in trouble."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from sqlalchemy import insert

from magnetar_control.services.network import EmbeddedNetworks, Wait
from magnetar_control.services.network.engine import changes, wanted
from magnetar_control.services.network.engine.engine import DesiredContent
from magnetar_control.services.network.tables import changes as changes_table
from magnetar_control.services.network.tables import ports
from magnetar_core.errors import Unavailable
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE

from .conftest import SERVER, new_network, new_port, new_server


def test_a_port_is_known_before_its_guest_starts(ask, service, engine):
    nic = new_server(service, new_network(ask))
    with pytest.raises(Unavailable, match="OVN did not take the server's ports"):
        service.prepare(SERVER, "h1")
    service.worker.start()
    try:
        service.worker.wait = Wait(60.0, 0.0)
        service.prepare(SERVER, "h1")
        assert engine.port(nic["port_id"]).hosts == ("h1",)
        service.bind(SERVER, "h1")
        service.prepare(SERVER, "h2", running=True)
        assert (engine.port(nic["port_id"]).hosts, engine.port(nic["port_id"]).arriving) == (("h1", "h2"), True)
    finally:
        service.worker.stop()


def test_a_port_of_a_new_server_is_written_once_with_its_host(ask, service, engine):
    network = new_network(ask)
    service.worker.round()
    number = engine.number
    (nic,) = service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]), host="h1")
    service.worker.round()
    service.prepare(SERVER, "h1")  # has nothing to wait for
    service.bind(SERVER, "h1")
    service.worker.round()
    assert (engine.port(nic["port_id"]).hosts, engine.number) == (("h1",), number + 1)


def test_a_server_that_stays_has_its_ports_where_they_were(ask, service, engine):
    """Also what they are there, which its host, being down, cannot be asked."""
    nic = new_server(service, new_network(ask))
    devices = {nic["mac"]: {"pci_slot": "0000:c1:00.2"}}
    service.bind(SERVER, "h1", devices=devices)
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h2", running=True)
    service.worker.round()
    assert engine.port(nic["port_id"]).hosts == ("h1", "h2")
    service.stay(SERVER)
    service.worker.round()
    assert (engine.port(nic["port_id"]).hosts, engine.port(nic["port_id"]).arriving) == (("h1",), False)
    (port,) = ask.as_(ADMIN)("GET", "/v2.0/ports")["ports"]
    assert (port["binding:host_id"], port["status"], port["binding:profile"]) == ("h1", "ACTIVE", devices[nic["mac"]])
    number = engine.number
    service.stay(SERVER)
    service.worker.round()
    assert engine.number == number  # nothing was to be written


def test_a_port_that_is_there_is_looked_at_and_not_written(ask, service, engine, sqlite):
    network = new_network(ask)
    service.worker.round()
    service.prepare(SERVER, "h1")  # it has none
    service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]), host="h1")
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h1")
    service.worker.round()
    with counted(api=sqlite) as count:
        service.prepare(SERVER, "h1")
    assert len(count) == 2 and not service.worker.engine.differences(
        DesiredContent(scope=frozenset())), "and nothing is written"
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h2")  # which is written, and noted


def test_a_server_that_starts_where_it_was_made_is_bound_by_one_statement(ask, service, engine, sqlite):
    network = new_network(ask)
    service.worker.round()
    (nic,) = service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]), host="h1")
    with pytest.raises(Unavailable):
        service.bind_prepared(SERVER, "h1")  # the engine does not have it yet
    service.worker.round()
    with counted(api=sqlite) as count:
        service.bind_prepared(SERVER, "h1")
    (port,) = ask.as_(ADMIN)("GET", "/v2.0/ports")["ports"]
    assert (port["binding:host_id"], port["status"], len(count)) == ("h1", "ACTIVE", 1)
    other = new_server(service, network, id=str(uuid.uuid4()))  # whose notes are not waited for
    with counted(api=sqlite) as count:
        service.bind_prepared(SERVER, "h1")
    assert len(count) == 1 and engine.port(other["port_id"]) is None
    device = {nic["mac"]: {"pci_slot": "0000:c1:00.2"}}
    service.bind_prepared(SERVER, "h1", devices=device)
    with pytest.raises(Unavailable):
        service.bind_prepared(SERVER, "h2", devices=device)  # which the engine is to be told
    service.worker.round()
    service.bind_prepared(SERVER, "h2")
    assert engine.port(nic["port_id"]).hosts == ("h2",)
    (port,) = ask.as_(ADMIN)("GET", f"/v2.0/ports?device_id={SERVER}")["ports"]
    assert port["binding:profile"] == {}


def test_nobody_binds_what_another_holds(ask, service, sqlite):
    """Neither at once, nor in the transaction that is needed otherwise."""
    new_server(service, new_network(ask))
    service.worker.round()

    def lost():
        raise LookupError

    for host in ("", "h1"):
        with pytest.raises(LookupError):
            service.bind_prepared(SERVER, host, lost)
    (port,) = ask.as_(ADMIN)("GET", "/v2.0/ports")["ports"]
    assert port["status"] == "DOWN"


def test_nobody_waits_for_hosts_where_the_setting_says_so(ask, service, engine, monkeypatch):
    new_server(service, new_network(ask))
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h1")
    service.worker.round()
    asked = []
    monkeypatch.setattr(engine, "reached", lambda number, seconds: asked.append(seconds) or True)
    service.prepare(SERVER, "h1")
    service.worker.wait = Wait(0.1, 2.0)
    service.prepare(SERVER, "h1")
    assert asked == [2.0]


def test_who_waits_asks_the_database_once(ask, service, engine, sqlite):
    """The writer of the same process tells what it has written."""
    nic = new_server(service, new_network(ask))
    service.worker.round()
    service.worker.wait = Wait(60.0, 0.0)
    service.bind(SERVER, "h1")
    with ThreadPoolExecutor() as pool, counted(api=sqlite) as count:
        waiting = pool.submit(service.worker.wait_until_applied, [f"port/{nic['port_id']}"])
        time.sleep(0.3)
        assert not waiting.done() and len(count) == 1
        service.worker.round()
        waiting.result(5)
    assert engine.port(nic["port_id"]).hosts == ("h1",)


def test_who_waits_hears_before_the_notes_are_gone(ask, service, sqlite, monkeypatch):
    """If they stay, what they say is written again."""
    nic = new_server(service, new_network(ask))
    service.worker.round()
    service.worker.wait = Wait(60.0, 0.0)
    service.bind(SERVER, "h1")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(service.worker.wait_until_applied, [f"port/{nic['port_id']}"])

        def kept(*_words):
            waiting.result(5)
            raise LookupError

        with monkeypatch.context() as patched, pytest.raises(LookupError):
            patched.setattr(changes, "finish_change_notes", kept)
            time.sleep(0.1)
            service.worker.round()
    with sqlite.read() as connection:
        assert changes.noted_units(connection) == {f"port/{nic['port_id']}"}
    service.worker.round()
    with sqlite.read() as connection:
        assert not changes.noted_units(connection)


def test_who_writes_himself_tells_no_others_what_is_to_be_written(ask, service, sqlite, monkeypatch):
    told = []
    monkeypatch.setattr(sqlite, "_notifier", SimpleNamespace(send=told.extend, stop=lambda: None))
    network = new_network(ask)
    assert told == [changes.NETWORK_CHANGED] * 2, "it may be another who writes"
    service.worker.round()
    told.clear()
    seen = sqlite.signals.count(changes.NETWORK_CHANGED)
    new_server(service, network)
    assert told == [] and sqlite.signals.count(changes.NETWORK_CHANGED) == seen + 1
    service.worker.round()
    assert told == [changes.WRITTEN]


@pytest.mark.parametrize("end", ["h1", "h2"])
def test_a_move_ends_here_or_there(ask, service, engine, end):
    nic = new_server(service, new_network(ask))
    service.bind(SERVER, "h1")
    service.worker.round()
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h2", running=True)
    service.bind(SERVER, end)
    service.worker.round()
    assert (engine.port(nic["port_id"]).hosts, engine.port(nic["port_id"]).arriving) == ((end,), False)
    service.unbind(SERVER)
    service.worker.round()
    assert engine.port(nic["port_id"]).hosts == ()
    service.release(SERVER)
    service.worker.round()
    assert engine.port(nic["port_id"]) is None


def test_what_was_noted_before_a_crash_is_written_after_it(ask, service, engine, sqlite):
    service.worker.round()
    network = new_network(ask)
    engine.away = True
    with pytest.raises(Unavailable):
        service.worker.round()
    engine.away = False
    after = EmbeddedNetworks(sqlite, engine=engine)
    after.worker.round()
    assert f"network/{network['id']}" in engine.units
    assert after.differences() == []


def test_a_lost_engine_is_written_anew(ask, service, engine):
    nic = new_server(service, new_network(ask))
    service.worker.round()
    assert service.differences() == []
    engine.lose()
    assert {one.unit for one in service.differences()} >= {f"port/{nic['port_id']}"}
    service.worker.round()
    assert service.differences() == []


def test_what_is_noted_is_no_difference_yet(ask, service):
    service.worker.round()
    new_network(ask)
    assert service.differences() == []


def test_only_who_leads_writes(ask, service, engine):
    engine.close()
    new_network(ask)
    service.worker.round()
    assert engine.units == {}


def test_an_engine_that_is_away_is_found_by_the_audit(service, engine):
    engine.away = True
    assert [one.text for one in service.differences()] == ["The northbound database does not answer."]


def _on_a_card(database, *ids):
    """Have these ports be functions of a SmartNIC."""
    device = {"card_serial_number": "AB12", "pf_mac_address": "02:00:00:00:00:0a", "vf_num": 3}
    with database.write() as connection:
        connection.execute(ports.update().where(ports.c.id.in_(ids)).values(
            vnic_type="remote-managed", device=device))


def test_ports_on_cards_wait_for_their_chassis_alone(ask, service, engine, sqlite):
    """All else is written meanwhile; what is noted of them stays until somebody tells where they are."""
    network = new_network(ask)
    nic, port = new_server(service, network), new_port(ask, network)
    _on_a_card(sqlite, nic["port_id"])
    engine.lost_cards = True
    service.worker.round()
    with sqlite.read() as connection:
        assert changes.noted_units(connection) == {f"port/{nic['port_id']}"}
    assert engine.port(port["id"]) and engine.port(nic["port_id"])
    later = new_port(ask, network)
    service.worker.round()
    assert engine.port(later["id"])
    with counted(api=sqlite) as asked:
        service.worker.round()
    assert not [one for one in asked if "INSERT" in one[1] or "UPDATE" in one[1]], "it looks, and writes nothing"
    engine.lost_cards = False
    service.worker.round()
    with sqlite.read() as connection:
        assert not changes.noted_units(connection)


def test_many_ports_on_cards_that_wait_are_passed_by(ask, service, engine, sqlite, monkeypatch):
    """However many they are, a statement names none of them, and what comes after them is written."""
    network = new_network(ask)
    waiting = [new_server(service, network)["port_id"] for _one in range(7)]
    _on_a_card(sqlite, *waiting)
    engine.lost_cards = True
    monkeypatch.setattr(changes, "MANY", 3)
    service.worker.round()
    free = [new_port(ask, network)["id"] for _one in range(4)]
    with counted(api=sqlite) as asked:
        service.worker.round()
    assert all(map(engine.port, free))
    assert not [one for one in asked if "unit NOT IN" in one[1]]
    with sqlite.read() as connection:
        assert changes.noted_units(connection) == {f"port/{id}" for id in waiting}


def test_a_round_that_passes_by_ends_however_much_comes(ask, service, engine, sqlite, monkeypatch):
    """What is noted meanwhile before its place is the next round's."""
    service.worker.round()
    monkeypatch.setattr(changes, "MANY", 3)
    with sqlite.write() as connection:
        connection.execute(insert(changes_table), [{"id": f"{at:036}", "unit": f"port/{at}"} for at in range(5)])
    rounds = []

    def repair(wanted: DesiredContent) -> int:
        rounds.append(wanted)
        with sqlite.write() as connection:
            connection.execute(insert(changes_table), [{"id": f"f{99 - len(rounds):035}", "unit": "port/new"}])
        if len(rounds) == 30:
            service.worker._over.set()
        return 1

    monkeypatch.setattr(engine, "repair", repair)
    monkeypatch.setattr(engine, "unplaced", lambda _wanted: {"port/0"})
    service.worker.round()
    assert len(rounds) < 10


def test_a_port_that_changes_has_no_statement_made(ask, service, engine, monkeypatch):
    """That takes longer than to execute it, and each new server waits for the interpreter meanwhile."""
    network = new_network(ask)
    for id in (SERVER, str(uuid.uuid4())):  # at first everything is compared
        new_server(service, network, id=id)
        service.worker.round()

    def made(*_words):
        raise AssertionError("a statement is made")

    later = new_server(service, network, id=str(uuid.uuid4()))
    for name in ("select", "delete", "update"):
        for module in (changes, wanted):
            monkeypatch.setattr(module, name, made, raising=False)
    service.worker.round()
    assert engine.port(later["port_id"])


def test_what_is_wrong_with_an_engine_is_found_by_the_audit(service, engine, monkeypatch):
    service.worker.round()
    monkeypatch.setattr(engine, "faults", lambda: ["A member of the cluster does not answer."])
    assert [one.text for one in service.differences()] == ["A member of the cluster does not answer."]


def test_many_ports_take_few_statements(ask, service, engine, sqlite):
    network = new_network(ask)
    new_port(ask, network)  # in the group that is the project's
    service.worker.round()

    def statements(number: int) -> int:
        ask("POST", "/v2.0/ports", {"ports": [{"network_id": network["id"]} for _one in range(number)]})
        with counted(api=sqlite) as count:
            service.worker.round()
        return len(count)

    assert statements(40) == statements(2) == 5  # what it is on and in has not changed


def test_what_a_port_is_on_and_in_is_written_with_it_where_the_engine_lacks_it(ask, service, engine, monkeypatch):
    """Also where not all is seen that has changed, so that they may have."""
    network = new_network(ask)
    service.worker.round()
    new_port(ask, network)
    for key in [key for key in engine.units if not key.startswith("port/")]:
        del engine.units[key]
    new_port(ask, network)
    service.worker.round()
    assert service.differences() == []
    monkeypatch.setattr(changes, "MANY", 2)
    wanted_units, repair = [], engine.repair
    monkeypatch.setattr(engine, "repair", lambda wanted: wanted_units.append({*wanted.units}) or repair(wanted))
    new_port(ask, network), new_port(ask, network)
    service.worker.round()
    new_port(ask, network)
    service.worker.round()
    key = f"network/{network['id']}"
    assert [key in units for units in wanted_units] == [True, False]
