# SPDX-License-Identifier: GPL-3.0-or-later
"""How long guests have to shut down, by a clock of the test's: setting, image property, the server's own."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_agent.servers import shutdown
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Cancelled, HypervisorError, InvalidField
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from tests.unit.agent.conftest import SMALL, Host


class Clock:
    """A clock that goes on only while somebody waits for a guest. *at*: what happens at which second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[float, Callable[[], object]] = {}
        self.pressed: list[float] = []
        self.cut: list[float] = []

    def wait(self, _id: str, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)
        for when in [one for one in self.at if one <= self.now]:
            self.at.pop(when)()


@pytest.fixture
def clock(host: Host, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock, and what was done to guests when. The host's setting is Nova's."""
    found = Clock()
    again(host, found, monkeypatch)
    return found


def again(host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch the host's hypervisor, which is another one after a restart."""
    press, cut = host.fake.shutdown, host.fake.destroy
    monkeypatch.setattr(shutdown, "clock", lambda: clock.now)
    monkeypatch.setattr(host.agent.host.changes, "wait", clock.wait)
    monkeypatch.setattr(host.fake, "shutdown", lambda uuid: (clock.pressed.append(clock.now), press(uuid)))
    monkeypatch.setattr(host.fake, "destroy", lambda uuid: (clock.cut.append(clock.now), cut(uuid)))
    given(host, shutdown_timeout=60.0)


def given(host: Host, **settings: Any) -> None:
    host.agent.host.settings = dataclasses.replace(host.agent.host.settings, **settings)


def image(host: Host, name: str = "slow", **properties: str) -> str:
    (host.root / name).write_bytes(b"\0" * 65536)
    host.ensure("image", name, {"source": {"path": str(host.root / name)}, "properties": properties})
    return name


def deaf(host: Host) -> str:
    """web1 does not hear its power button."""
    id = str(host.show()["id"])
    host.fake.deaf.add(id)
    return id


def test_a_guest_has_the_time_of_the_settings(host: Host, clock: Clock) -> None:
    host.server()
    id = deaf(host)
    host.server(power="off")
    assert clock.cut == [60.0] and clock.pressed == [float(second) for second in range(60)]
    assert host.fake.domain(id).reason == "outside"


def test_the_power_button_is_pressed_until_the_guest_hears(host: Host, clock: Clock) -> None:
    """One that still boots misses it."""
    host.server()
    id = deaf(host)
    clock.at[7.5] = host.fake.deaf.clear
    host.server(power="off")
    assert clock.pressed[-1] == 8.0 and not clock.cut and host.fake.domain(id).reason == "guest"


def test_how_often_it_is_pressed_is_a_setting(host: Host, clock: Clock) -> None:
    given(host, shutdown_retry_interval=10.0)
    host.server()
    deaf(host)
    host.server(power="off")
    assert clock.pressed == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0] and clock.cut == [60.0]


def test_a_guest_that_goes_by_itself_while_the_button_is_pressed(host: Host, clock: Clock,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirt says 'domain is not running', and shows it as running a moment longer."""
    host.server()
    id, press = deaf(host), host.fake.shutdown

    def going(uuid: str) -> None:
        press(uuid)
        if len(clock.pressed) == 3:
            clock.at[clock.now + 0.2] = lambda: (host.fake.deaf.clear(), press(uuid))
            raise HypervisorError("libvirt could not shut down the domain: domain is not running.")
    monkeypatch.setattr(host.fake, "shutdown", going)
    host.server(power="off")
    assert not clock.cut and host.fake.domain(id).reason == "guest"


def test_a_button_that_cannot_be_pressed_is_one_that_is_not_heard(host: Host, clock: Clock,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(uuid: str) -> None:
        clock.pressed.append(clock.now)
        raise HypervisorError("libvirt could not shut down the domain: no monitor.")
    host.server()
    monkeypatch.setattr(host.fake, "shutdown", broken)
    given(host, shutdown_retry_interval=20.0)
    host.server(power="off")
    assert clock.pressed == [0.0, 20.0, 40.0] and clock.cut == [60.0]


def test_the_image_says_how_long(host: Host, clock: Clock) -> None:
    host.server(image=image(host, os_shutdown_timeout="300"))
    deaf(host)
    host.server(power="off")
    assert clock.cut == [300.0]


def test_the_image_may_be_gone(host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    host.server(image=image(host, os_shutdown_timeout="5"))
    host.ensure("image", "slow", None)
    host.restart()
    again(host, clock, monkeypatch)
    deaf(host)
    host.server(power="off")
    assert clock.cut == [5.0]


def test_a_rebuild_takes_the_new_images(host: Host, clock: Clock) -> None:
    """The guest of the old image has its time, and the new one the new image's."""
    host.server(image=image(host, os_shutdown_timeout="5"))
    deaf(host)
    host.event("rebuild", "r1", image=image(host, "quick", os_shutdown_timeout="2"))
    assert clock.cut == [5.0]
    host.server(power="off")
    assert clock.cut == [5.0, 7.0]


def test_the_server_says_otherwise(host: Host, clock: Clock) -> None:
    host.server(image=image(host, os_shutdown_timeout="300"), shutdown_timeout=20)
    deaf(host)
    host.server(power="off")
    host.server(power="running", shutdown_timeout=None)
    host.server(power="off")
    assert clock.cut == [20.0, 320.0]


@pytest.mark.parametrize("how", ["image", "server", "setting"])
def test_no_time_cuts_at_once(host: Host, clock: Clock, how: str) -> None:
    if how == "setting":
        given(host, shutdown_timeout=0.0)
    host.server(**{"image": {"image": image(host, os_shutdown_timeout="0")},
                   "server": {"shutdown_timeout": 0}}.get(how, {}))
    host.server(power="off")
    assert clock.cut == [0.0] and not clock.pressed


def test_a_resize_and_a_rescue_wait_as_well(host: Host, clock: Clock) -> None:
    host.server(image=image(host, os_shutdown_timeout="30"))
    deaf(host)
    host.ensure("server", "web1", {"flavor": {**SMALL, "ram": 128}}, allow_reboot=True)
    host.ensure("server", "web1", {"rescue": {}})
    assert clock.cut == [30.0, 60.0]


def test_a_deletion_does_not(host: Host, clock: Clock) -> None:
    host.server(image=image(host, os_shutdown_timeout="30"))
    deaf(host)
    host.ensure("server", "web1", None)
    assert clock.cut == [0.0]


@pytest.mark.parametrize("said", ["-1", "soon", "1.5", "3601", "1" * 20, "٣"])
def test_what_is_no_time_is_refused(host: Host, said: str) -> None:
    with pytest.raises(InvalidField, match="os_shutdown_timeout") as refused:
        host.server(image=image(host, os_shutdown_timeout=said))
    assert refused.value.details["field"] == "image"
    assert host.agent.host.documents.find("server", "web1") is None


def test_a_crash_while_it_waits(host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that comes after asks the guest again, with all of its time."""
    host.server(image=image(host, os_shutdown_timeout="30"))
    id = deaf(host)

    def dies() -> None:
        raise KeyboardInterrupt

    clock.at[10.0] = dies
    with pytest.raises(KeyboardInterrupt):
        host.server(power="off")
    assert host.fake.domain(id).state == "running"
    host.restart()
    assert host.fake.domain(id).state == "off"


def test_a_cancelled_stop_leaves_it_running(host: Host, clock: Clock) -> None:
    host.server()
    deaf(host)
    operation = Operation("stop")
    clock.at[3.0] = operation.cancel
    with pytest.raises(Cancelled):
        off(host, "web1", operation)
    assert host.show()["power_state"] == "running" and not clock.cut


def test_guests_that_do_not_hear_keep_no_others_waiting(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the agent does at once."""
    names, going, over = [f"deaf{n}" for n in range(6)], threading.Semaphore(0), threading.Event()
    for name in names:
        host.server(name)
        host.fake.deaf.add(str(host.show(name)["id"]))
    given(host, shutdown_timeout=3600.0)
    monkeypatch.setattr(host.agent.host.changes, "wait", lambda _id, _seconds: (going.release(), over.wait(60)))
    operations = host.agent.host.operations
    begun = [operations.start("stop", partial(off, host, name)) for name in names]
    for _one in begun:  # all are waited for, though ``parallel`` is 4
        assert going.acquire(timeout=60)
    other = operations.start("start", lambda _operation: host.server("web2").changed)
    assert other.wait(60) and other.result and all(one.status == "running" for one in begun)
    host.fake.deaf.clear()
    over.set()
    for one in begun:
        assert one.wait(60) and one.status == "succeeded"
    assert operations._places == 4


def off(host: Host, name: str, operation: Operation) -> Result:
    return reconcile.ensure_resource(host.agent.drivers, Server, name, {"power": "off"}, check_permissions({}), False,
                                     operation)
