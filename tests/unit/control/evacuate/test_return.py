# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that returns runs no second copy of what was evacuated from it, and starts all that is its own still."""

import threading

import pytest

from magnetar_control.conductor.flows import server_evacuate
from magnetar_control.conductor.hosts import host_return
from magnetar_control.store.engine.database import utc_now
from magnetar_core.errors import HypervisorError
from tests.support.control.specs import flavor
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import claims, row

from .evacuating import ENGINES

pytestmark = [ENGINES, pytest.mark.slow]


@pytest.fixture
def two(admin):
    """Two running servers of one host, and the host."""
    first = admin.server(flavorRef="small")["id"]
    host = admin.host_of(first)
    zone = {"availability_zone": f"nova:{host}"}
    second = admin.server(flavorRef="small", **zone)["id"]
    assert admin.host_of(second) == host
    return first, second, host


class Starts:
    """The servers that a host starts, from now on."""

    def __init__(self, kvm):
        self.ids, self.whole = [], kvm.fake.start
        kvm.fake.start = self

    def __call__(self, id, *more, **named):
        self.ids.append(id)
        self.whole(id, *more, **named)


@pytest.mark.parametrize("boots", [True, False])
def test_a_host_that_comes_back(admin, two, boots):
    """Booted anew it starts what is its own, when the cloud has said so; and never what was evacuated. Where its guests
    ran on, the copy is stopped and removed before the host counts as up."""
    gone, kept, host = two
    admin.down(host)
    there = admin.evacuated(gone)["OS-EXT-SRV-ATTR:host"]
    if boots:
        admin.boots(host)
    started = Starts(admin.cloud.kvm[host])
    admin.up(host)
    assert not admin.cloud.kvm[host].knows(gone) and admin.cloud.kvm[host].fake.domain(gone) is None
    eventually(lambda: admin.cloud.kvm[host].runs(kept))
    assert started.ids == ([kept] if boots else [])
    admin.clean(gone, there)
    eventually(lambda: row(admin.cloud, kept).vm_state == "active")
    assert admin.host_of(kept) == host and claims(admin.cloud, kept).keys() == {"server"}


def test_a_boot_without_the_cloud_starts_nothing_of_it(admin, two, monkeypatch):
    first, second, host = two
    monkeypatch.setattr(host_return, "start_held_servers", lambda *_args: None)
    admin.down(host)
    admin.boots(host)
    admin.up(host)
    kvm = admin.cloud.kvm[host]
    assert {one: kvm.runs(one) for one in (first, second)} == {first: False, second: False}
    eventually(lambda: admin.call.server(first)["status"] == "ACTIVE")  # nobody takes them for stopped
    kvm.restart()
    assert not kvm.runs(first)
    monkeypatch.undo()
    admin.down(host)
    admin.up(host)
    eventually(lambda: kvm.runs(first) and kvm.runs(second))


def test_a_host_counts_as_up_only_when_it_is_clean(admin, two, monkeypatch):
    gone, _kept, host = two
    admin.down(host)
    there = admin.evacuated(gone)["OS-EXT-SRV-ATTR:host"]
    refused, began = threading.Event(), utc_now()
    with monkeypatch.context() as patch:
        def refuses(*_args):
            refused.set()
            raise HypervisorError("the disk cannot be removed")

        patch.setattr(host_return, "remove_server_from_host", refuses)
        admin.come_back(host)
        assert refused.wait(120)
        assert not admin.heard(host, began)
        assert admin.statuses(gone)[0][3] == "done"
    eventually(lambda: admin.heard(host, began))
    admin.clean(gone, there)


def held_build(monkeypatch):
    """A build that waits for ``go``; ``begun`` is set when it has begun."""
    go, begun, make = threading.Event(), threading.Event(), server_evacuate.make_server

    def slow(*args):
        begun.set()
        assert go.wait(60)
        return make(*args)

    monkeypatch.setattr(server_evacuate, "make_server", slow)
    return go, begun


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("boots", [True, False])
def test_a_host_that_returns_meanwhile(admin, two, monkeypatch, fails, boots):
    """Its guest is stopped, and goes when the other runs. Where that does not come to be, it runs again."""
    gone, _kept, host = two
    target = next(name for name in admin.cloud.hosts if name != host)
    admin.down(host)
    go, begun = held_build(monkeypatch)
    if fails:
        admin.cloud.kvm[target].fake.fail_next("define", HypervisorError("libvirt could not define the domain: no."))
    assert admin.evacuate(gone, "2.94", host=target).status == 200
    assert begun.wait(120)
    if boots:
        admin.boots(host)
    admin.up(host)
    kvm = admin.cloud.kvm[host]
    assert kvm.knows(gone) and not kvm.runs(gone)
    go.set()
    server = admin.call.settled(gone)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host if fails else target)
    if fails:
        eventually(lambda: kvm.runs(gone))
    admin.clean(gone, host if fails else target)


def test_a_host_that_is_up_again_before_it_has_begun_keeps_its_server(admin, two, monkeypatch):
    gone, _kept, host = two
    admin.down(host)
    choose = server_evacuate.Evacuation.choose

    def slow(move):
        found = choose(move)
        admin.up(host)
        return found

    monkeypatch.setattr(server_evacuate.Evacuation, "choose", slow)
    server = admin.evacuated(gone)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
    assert "still in use" in row(admin.cloud, gone).fault
    admin.clean(gone, host)


def test_a_host_that_is_forced_down_and_answers(admin, two):
    """Its guest is stopped before the other starts, and removed at once; until then it stays forced down."""
    gone, _kept, host = two
    assert admin.evacuate(gone).status == 400
    assert admin.force_down(host).status == 200
    try:
        assert admin.evacuate(gone, "2.94").status == 200
        reply = admin.force_down(host, False)
        assert reply.status == 400 or admin.statuses(gone)[0][3] == "completed"
        there = admin.call.settled(gone)["OS-EXT-SRV-ATTR:host"]
        assert there != host
        admin.clean(gone, there)
    finally:
        assert admin.force_down(host, False).status == 200


@pytest.mark.parametrize("security", ["user", "host", "deployment"])
def test_a_guest_with_a_tpm_starts_where_its_secret_is_to_be_had(admin, security):
    """Only its user may open a TPM whose secret is theirs: such a server is off after the boot, and shown so."""
    specs = {"hw:tpm_version": "2.0", "hw:tpm_secret_security": security}
    id = admin.server(flavorRef=flavor(admin.call, f"tpm-{security}", specs))["id"]
    host = admin.host_of(id)
    admin.down(host)
    admin.boots(host)
    admin.up(host)
    if security == "user":
        eventually(lambda: admin.call.server(id)["status"] == "SHUTOFF")
        assert not admin.cloud.kvm[host].runs(id)
        assert admin.call.act(id, "os-start").status == 202
    eventually(lambda: admin.cloud.kvm[host].runs(id))
    eventually(lambda: admin.call.server(id)["status"] == "ACTIVE")
