# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere in its work on a drain: another look continues, and moves no server twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from magnetar_control.conductor.periodic import host_drains, periodic
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import check, flavors, remove, row
from tests.unit.control.moves.dying import Died, Fate
from tests.unit.control.moves.inside import Inside

from .draining import Draining

pytestmark = pytest.mark.slow


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Two hosts, and a conductor that works on drains only when a test calls it."""
    monkeypatch.setattr(periodic, "work_on_drains", lambda _conductor: None)
    with Inside(hosts=2, host_down_after=600.0) as made:
        flavors(made)
        yield made


def finish(admin: Draining, host: str, fate: Fate, state: str | None) -> None:
    """Look at the drains, with a death in one look, until the host's drain is in *state*."""
    def look() -> bool:
        with contextlib.suppress(Died), fate.looms():
            host_drains.work_on_drains(admin.cloud.parts.working)
        return bool(admin.shown(host)["drain"] == state)

    eventually(look)


def test_a_drain(cloud: Inside) -> None:
    admin, number = Draining(cloud), 0
    while True:
        number += 1
        running, stopped = admin.boot("kvm1", name="running"), admin.boot("kvm1", name="stopped")
        locked = admin.boot("kvm1", name="locked")
        admin.act(stopped, "os-stop")
        assert cloud.admin.act(locked, "lock").status == 202
        assert admin.put("kvm1", query="?wait=0").status == 202
        fate = Fate(number)
        finish(admin, "kvm1", fate, "drained")
        assert [row(cloud, id).host for id in (running, stopped, locked)] == ["kvm2", "kvm2", "kvm1"], number
        assert check(cloud, running)["power_state"] == "running"
        assert check(cloud, stopped)["power_state"] == "off"
        assert admin.actions(running) == ["create", "live-migration"], number
        assert admin.actions(stopped) == ["create", "stop", "migrate", "confirmResize"], number
        assert admin.actions(locked) == ["create", "lock"], number
        assert admin.put("kvm1", "enabled").status == 200
        end = Fate(number)
        finish(admin, "kvm1", end, None)
        assert admin.left("kvm1") == [], number
        remove(cloud, [running, stopped, locked])
        if not fate.died and not end.died:
            return
