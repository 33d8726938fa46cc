# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it evacuates a server: another one brings it to its end, once."""

import pytest

from magnetar_control.conductor.hosts import host_return
from magnetar_core.errors import HypervisorError
from tests.support.control.crashes import until_none
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import claims, row
from tests.unit.control.moves.dying import Died, Fate, through

from .evacuating import ENGINES

pytestmark = [ENGINES, pytest.mark.slow]


@pytest.fixture
def id(admin):
    """Of a running server with a port, and a volume of each host."""
    found = admin.server(networks="auto", flavorRef="small")["id"]
    yield found


def evacuate(admin, id, fate, host=None):
    """With a death in it; returns the row."""
    return through(admin.cloud, id, "evacuate", fate, host=host, forced=False, stopped=False)


@pytest.mark.parametrize("late", [False, True])
def test_an_evacuation_and_the_return_of_the_host(admin, id, late):
    def there(fate):
        host = row(admin.cloud, id).host
        admin.down(host)
        found = evacuate(admin, id, fate)
        assert (found.vm_state, found.task_state, found.fault) == ("active", None, None), fate.number
        assert found.host != host and admin.statuses(id)[-1] == ("evacuation", host, found.host, "done"), fate.number
        assert {one: place for one, (place, _held) in claims(admin.cloud, id).items()} == {
            "server": found.host, "migration": host}, fate.number
        admin.up(host)
        admin.clean(id, found.host)
        assert admin.cloud.kvm[found.host].runs(id)
        ports = admin.cloud.services.network.ports(id)
        assert [(one["host"], one["port_state"]) for one in ports] == [(found.host, "ACTIVE")]

    until_none(admin.cloud, id, late, (there,))


@pytest.mark.parametrize("late", [False, True])
def test_a_host_that_refuses(admin, id, late):
    """The claims are as before, no migration is open, and nothing is left there."""
    host = row(admin.cloud, id).host
    target = next(name for name in admin.cloud.hosts if name != host)
    volume = admin.volume(host=target)
    assert admin.attach(id, volume).status == 200
    eventually(lambda: admin.state(volume) == "in-use")
    fake = admin.cloud.kvm[target].fake
    define, before = fake.define, claims(admin.cloud, id)

    def refuses(domain):
        raise HypervisorError(f"libvirt could not define {domain.uuid}")

    admin.down(host)
    fake.define = refuses

    def there(fate):
        found = evacuate(admin, id, fate, host=target)
        assert (found.host, found.task_state) == (host, None), fate.number
        assert claims(admin.cloud, id) == before, fate.number
        assert admin.statuses(id)[-1][3] in ("failed", "error"), fate.number
        assert not admin.cloud.kvm[target].knows(id), fate.number

    try:
        until_none(admin.cloud, id, late, (there,))
    finally:
        fake.define = define
        admin.up(host)
    admin.clean(id, host)


def test_the_watcher_of_a_host_that_returns(admin, id, monkeypatch):
    """What it sees to may be cut off anywhere; who watches the host then sees to it again."""
    for number in range(1, 40):
        host = row(admin.cloud, id).host
        admin.down(host)
        there = evacuate(admin, id, Fate(0)).host
        fate, settle = Fate(number), host_return.complete_evacuations

        def dying(*args, fate=fate, settle=settle):
            try:
                with Fate(0).looms() if fate.died else _in_this_thread(fate).looms():
                    return settle(*args)
            except Died:
                raise HypervisorError("the conductor died") from None

        monkeypatch.setattr(host_return, "complete_evacuations", dying)
        admin.up(host)
        monkeypatch.undo()
        admin.clean(id, there)
        if not fate.died:
            return
    raise AssertionError


def _in_this_thread(fate):
    import threading

    fate.thread = threading.current_thread()
    return fate
