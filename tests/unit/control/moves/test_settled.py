# SPDX-License-Identifier: GPL-3.0-or-later
"""The claims of a resize that is taken back on the same host, which gives less by then, as operators have said."""

from types import SimpleNamespace

from magnetar_control.conductor import resize
from magnetar_control.store import allocations, hosts
from magnetar_control.store.allocations import Amounts, Ratios
from magnetar_control.store.database import now
from magnetar_control.store.tables import cells

OLD, NEW, GROWN = Amounts(2, 512, 10), Amounts(1, 256, 20), Amounts(2, 512, 20)


def held(database):
    """What each consumer holds; counters say the same."""
    with database.write() as connection:
        assert allocations.audit(connection) == []
        return {row["consumer_id"]: Amounts(*(row[name] for name in allocations.RESOURCES))
                for row in allocations.held(connection, "s1")}


def test_nothing_that_a_guest_has_is_given_to_others(database, monkeypatch, caplog):
    """Its disk has grown, and the host gives less than that: the claim of the grown flavor is refused."""
    with database.write() as connection:
        connection.execute(cells.insert().values(id="cell", name="one", database_url="sqlite://", created_at=now()))
        host = hosts.register(connection, "kvm1", "cell", "https://kvm1:6553")
        hosts.inventory(connection, "kvm1", {"vcpus": 8, "memory_mb": 8192, "disk_gb": 50}, Ratios(1.0, 1.0, 1.0))
        assert allocations.claim(connection, "other", "other", host, Amounts(1, 256, 10))
        assert allocations.claim(connection, "s1", "s1", host, OLD)
        assert allocations.move(connection, "s1", "m1", host)
        assert allocations.claim(connection, "s1", "s1", host, NEW)
        assert hosts.set_host(connection, "kvm1", Ratios(1.0, 1.0, 1.0), disk_gb_reserved=25)
    move = SimpleNamespace(work=SimpleNamespace(id="s1"), id="m1", source="kvm1", api=database, read_hosts=lambda: None,
                           conductor=SimpleNamespace(host=lambda _name: {"id": host}))
    monkeypatch.setattr(resize, "needed", lambda *_of: SimpleNamespace(
        amounts=GROWN, devices={}, resources={}, nics=()))
    resize.settle_claims(move, "kvm1", {})
    assert held(database) == {"s1": NEW, "m1": OLD} and "magnetar audit" in caplog.text
    with database.write() as connection:
        assert not allocations.claim(connection, "late", "late", host, Amounts(1, 256, 1))
        assert hosts.set_host(connection, "kvm1", Ratios(1.0, 1.0, 1.0), disk_gb_reserved=0)
    resize.settle_claims(move, "kvm1", {})
    assert held(database) == {"s1": GROWN}
