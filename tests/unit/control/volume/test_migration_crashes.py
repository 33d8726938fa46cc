# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that migrates a volume dies, before or after each request to an agent and each transaction; or an agent
dies in the middle. Another process continues: the volume has one place in the end, and its content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from magnetar_agent.volumes import pools
from magnetar_control.agents import AgentClient
from magnetar_control.api.volume.app import VolumeApplication
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.engine.database import Database
from magnetar_core.http import client
from tests.support.control.serving import ADMIN, Asker, authenticate

from .two_hosts import TwoHosts, attach, migrate_volume_to, new_volume, retype_volume, two_hosts

pytestmark = pytest.mark.slow


class Died(BaseException):
    """The process ends here."""


class Death:
    """Ends the process at its step *number*: before the step, or with *late* after it."""

    def __init__(self, number: int, late: bool) -> None:
        self.number, self.late, self.armed, self.happened = number, late, False, False

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step."""
        if not self.armed:
            yield
            return
        if self.happened:
            raise Died
        self.number -= 1
        if self.number < 0 and not self.late:
            self.happened = True
            raise Died
        yield
        if self.number < 0:
            self.happened = True
            raise Died


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is away is not waited for. Volumes are raw, so that the fakes copy their content."""
    monkeypatch.setattr(client, "RETRY_FOR", 0.2)
    monkeypatch.setattr(pools.FolderPool, "formats", ("raw", "qcow2", "luks"))


@pytest.fixture
def site(database: Database) -> Iterator[TwoHosts]:
    with two_hosts(database) as found:
        yield found


def wrapped(patch: pytest.MonkeyPatch, death: Death) -> None:
    """Let each request and each transaction of a worker be a step."""
    for name in ("ensure", "delete"):
        method = getattr(AgentClient, name)

        def call(self: Any, *args: Any, method: Any = method, **more: Any) -> Any:
            with death.step():
                return method(self, *args, **more)

        patch.setattr(AgentClient, name, call)
    write = Database.write

    @contextmanager
    def transaction(self: Database) -> Iterator[Any]:
        with death.step(), write(self) as connection:
            yield connection

    patch.setattr(Database, "write", transaction)


def ends(site: TwoHosts, id: str, number: int, late: bool) -> bool:
    """Work until the process dies at its step; return whether it did."""
    death = Death(number, late)
    with pytest.MonkeyPatch.context() as patch:
        wrapped(patch, death)
        death.armed = True
        try:
            site.work()
        except Died:
            pass
        finally:
            death.armed = False
    if death.happened and site.row(id) is not None:
        site.lease_ends(id)
    return death.happened


def content(site: TwoHosts, host: str, pool: str, id: str) -> Any:
    return pools.find_pool(site.hosts[host].agent.host, pool).disk(id, "raw").path


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["host", "pool", "in use"])
def test_death_at_every_step(site: TwoHosts, kind: str, late: bool) -> None:
    ask = Asker(VolumeApplication(site.service, authenticate), headers={"openstack-api-version": "volume latest"})
    died = 0
    for number in range(30):
        id = new_volume(ask, site)
        with content(site, "kvm1", "default", id).open("r+b") as stream:
            stream.write(b"kept")
        if kind == "in use":
            attach(site, id)
        target = ("kvm2", "default") if kind == "host" else ("kvm1", "fast")
        migrate_volume_to(ask, id, "kvm2") if kind == "host" else retype_volume(ask, id, "fast")
        happened = ends(site, id, number, late)
        site.work(site.process())
        site.conduct()
        row = site.row(id)
        assert (row["host"], row["pool"], row["migration_status"]) == (*target, "success")
        assert row["status"] == ("in-use" if kind == "in use" else "available") and row["task"] is None
        assert site.lies(id) == ["/".join(target)] and site.removals() == set()
        with content(site, *target, id).open("rb") as stream:
            assert stream.read(4) == b"kept"
        if not happened:
            break
        died += 1
    assert died > 3


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["host", "pool"])
def test_death_at_every_step_of_an_end(site: TwoHosts, kind: str, late: bool) -> None:
    """An administrator has ended the migration, whose copy had begun."""
    ask = Asker(VolumeApplication(site.service, authenticate), headers={"openstack-api-version": "volume latest"})
    for number in range(30):
        id = new_volume(ask, site)
        migrate_volume_to(ask, id, "kvm2") if kind == "host" else retype_volume(ask, id, "fast")
        ends(site, id, 3, late)  # it has begun, or has even arrived
        if site.row(id)["migration"] is None:
            continue
        ask.as_(ADMIN)("POST", f"/v3/volumes/{id}/action", {"os-reset_status": {"status": "available"}}, status=202)
        happened = ends(site, id, number, late)
        site.work(site.process())
        site.conduct()
        row = site.row(id)
        assert row["migration"] is None and row["task"] is None and row["status"] == "available"
        assert site.lies(id) == [f"{row['host']}/{row['pool']}"] and site.removals() == set()
        if not happened:
            break


def test_the_source_is_restarted_while_it_is_copied(site: TwoHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Asker(VolumeApplication(site.service, authenticate), headers={"openstack-api-version": "volume latest"})
    id = new_volume(ask, site)
    fake = site.hosts["kvm2"].fake
    copy, deaths = fake.copy_disk, ["kvm1"]

    def dies(*args: Any, **more: Any) -> None:
        if deaths:
            site.hosts[deaths.pop()].restart()
        copy(*args, **more)

    monkeypatch.setattr(fake, "copy_disk", dies)
    migrate_volume_to(ask, id, "kvm2")
    site.work()
    site.conduct()
    assert site.lies(id) == ["kvm2/default"] and site.row(id)["migration_status"] == "success"


def test_a_slow_process_does_no_harm(site: TwoHosts) -> None:
    """Its lease has ended, another has done the work, and the volume has gone back since."""
    ask = Asker(VolumeApplication(site.service, authenticate), headers={"openstack-api-version": "volume latest"})
    id = new_volume(ask, site)
    migrate_volume_to(ask, id, "kvm2")
    row = site.service.worker._take(volumes, id)
    site.lease_ends(id)
    site.work(site.process())
    migrate_volume_to(ask, id, "kvm1")
    site.work(site.process())
    site.service.worker._do(volumes, row)
    site.work(site.process())
    site.conduct()
    assert site.lies(id) == ["kvm1/default"] and site.row(id)["task"] is None
