# SPDX-License-Identifier: GPL-3.0-or-later
"""The claims of a resize that is taken back on the same host, which gives less by then, as operators have said."""

from types import SimpleNamespace

from magnetar_control.conductor.flows import server_resize
from magnetar_control.store.claims import allocations, host_counters
from magnetar_control.store.claims.allocations import Amounts, Ratios, join_migration_claims
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import allocations as table
from magnetar_control.store.engine.tables import cells
from magnetar_control.store.hosts import hosts

OLD, NEW, GROWN = Amounts(2, 512, 10), Amounts(1, 256, 20), Amounts(2, 512, 20)


def held(database):
    """What each consumer holds; counters say the same."""
    with database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        return {row.consumer_id: Amounts(*(getattr(row, name) for name in allocations.RESOURCES))
                for row in allocations.fetch_server_claims(connection, "s1")}


def test_nothing_that_a_guest_has_is_given_to_others(database, monkeypatch):
    """Its disk has grown, and the host gives less than that by now: what the server and its move hold there is enough,
    and neither the audit nor the next move has two claims to choose from."""
    with database.write() as connection:
        connection.execute(cells.insert().values(id="cell", name="one", database_url="sqlite://", created_at=utc_now()))
        host = hosts.upsert_host_row(connection, "kvm1", "cell", "https://kvm1:6553")
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 8, "memory_mb": 8192, "disk_gb": 50},
                                  Ratios(1.0, 1.0, 1.0))
        assert allocations.claim_host_resources(connection, "other", "other", host, Amounts(1, 256, 10))
        assert allocations.claim_host_resources(connection, "s1", "s1", host, OLD)
        assert allocations.move_claims_to_migration(connection, "s1", "m1", host)
        assert allocations.claim_host_resources(connection, "s1", "s1", host, NEW)
        assert hosts.update_host_row(connection, "kvm1", Ratios(1.0, 1.0, 1.0), disk_gb_reserved=25, vcpus_reserved=6)
    settle(database, monkeypatch, host, GROWN)
    assert held(database) == {"s1": GROWN}
    with database.write() as connection:
        assert not allocations.claim_host_resources(connection, "late", "late", host, Amounts(0, 256, 1))
    settle(database, monkeypatch, host, GROWN)  # once more, after a crash
    assert held(database) == {"s1": GROWN}


def test_what_is_refused_all_the_same_leaves_the_server_with_what_both_held(database, monkeypatch, caplog):
    with database.write() as connection:
        connection.execute(cells.insert().values(id="cell", name="one", database_url="sqlite://", created_at=utc_now()))
        host = hosts.upsert_host_row(connection, "kvm1", "cell", "https://kvm1:6553")
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 8, "memory_mb": 8192, "disk_gb": 50},
                                  Ratios(1.0, 1.0, 1.0))
        assert allocations.claim_host_resources(connection, "s1", "s1", host, OLD)
        assert allocations.move_claims_to_migration(connection, "s1", "m1", host)
        assert allocations.claim_host_resources(connection, "s1", "s1", host, NEW)
    settle(database, monkeypatch, host, Amounts(9, 512, 10))
    assert held(database) == {"s1": Amounts(3, 768, 30)} and "magnetar audit" in caplog.text


def test_classes_devices_and_places_of_both_are_joined(database):
    with database.write() as connection:
        connection.execute(cells.insert().values(id="cell", name="one", database_url="sqlite://", created_at=utc_now()))
        host = hosts.upsert_host_row(connection, "kvm1", "cell", "https://kvm1:6553")
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 8, "memory_mb": 8192, "disk_gb": 50, "resources": {
            name: {"total": 9} for name in ("CUSTOM_A", "CUSTOM_B")}}, Ratios(1.0, 1.0, 1.0))
        assert allocations.claim_host_resources(connection, "s1", "s1", host, OLD, resources={"CUSTOM_A": 2})
        assert allocations.move_claims_to_migration(connection, "s1", "m1", host)
        assert allocations.claim_host_resources(connection, "s1", "s1", host, NEW,
                                                resources={"CUSTOM_A": 1, "CUSTOM_B": 4})
        for id, devices, places in (("m1", '{"gpu":2}', '{"p1":"a"}'), ("s1", '{"gpu":1,"nic":1}', '{"p2":"b"}')):
            connection.execute(table.update().where(table.c.consumer_id == id).values(devices=devices, places=places))
        join_migration_claims(connection, "s1", "m1", host)
        join_migration_claims(connection, "s1", "m1", host)
        [row] = allocations.fetch_host_claims(connection, host)
    stored = row.stored
    assert (stored.consumer_id, stored.resources, stored.devices, stored.places) == (
        "s1", '{"CUSTOM_A":3,"CUSTOM_B":4}', '{"gpu":2,"nic":1}', '{"p1":"a","p2":"b"}')
    assert held(database) == {"s1": Amounts(3, 768, 30)}


def settle(database, monkeypatch, host, amounts):
    """Settle the claims of s1 and its move m1, whose old flavor needs *amounts*."""
    move = SimpleNamespace(work=SimpleNamespace(id="s1"), id="m1", source="kvm1", api=database, read_hosts=lambda: None,
                           conductor=SimpleNamespace(host=lambda _name: SimpleNamespace(id=host)))
    monkeypatch.setattr(server_resize, "spec_of_flavor", lambda *_of: SimpleNamespace(
        amounts=amounts, devices={}, resources={}, nics=()))
    server_resize.settle_claims(move, "kvm1", {})
