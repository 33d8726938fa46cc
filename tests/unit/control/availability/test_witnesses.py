# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is asked whether a silent host is alive, and at which address."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from magnetar_control.conductor.availability import witnesses
from magnetar_control.conductor.availability.witnesses import WitnessReport, ask_witnesses
from magnetar_core.errors import Unreachable


class Peers:
    """A conductor of a cell with the hosts kvm1 to kvm5; *answers*: whether each peer reaches kvm1, or its error."""

    name, cell = "c1", SimpleNamespace(id="cell")

    def __init__(self, endpoint, **answers):
        self.answers, self.asked = answers, []
        self.states = SimpleNamespace(rows={
            **{f"kvm{number}": SimpleNamespace(cell_id="cell") for number in range(1, 6)},
            "other": SimpleNamespace(cell_id="another cell")})
        self.endpoint = lambda _host: endpoint

    def is_up(self, name):
        return name in self.answers

    @contextmanager
    def client(self, name, _patience):
        def reaches(address, port):
            self.asked.append((name, address, port))
            if isinstance(self.answers[name], Exception):
                raise self.answers[name]
            return self.answers[name]

        yield SimpleNamespace(reaches=reaches)


@pytest.fixture
def conductor(monkeypatch):
    """A function that makes a conductor, which does not reach kvm1 itself."""
    monkeypatch.setattr(witnesses, "is_host_reached", lambda _address, _port: False)
    return lambda endpoint="https://kvm1:6553", **answers: Peers(endpoint, **answers)


def test_three_living_hosts_of_the_cell_are_asked(conductor):
    cell = conductor(kvm1=True, kvm2=False, kvm3=False, kvm4=False, kvm5=False, other=True)
    assert ask_witnesses(cell, "kvm1") == WitnessReport(None, 3)
    assert len(cell.asked) == 3 and {asked[1:] for asked in cell.asked} == {("kvm1", 6553)}
    assert {asked[0] for asked in cell.asked} <= {"kvm2", "kvm3", "kvm4", "kvm5"}


def test_a_peer_without_an_answer_does_not_count(conductor):
    assert ask_witnesses(conductor(kvm2=Unreachable("x"), kvm3=False), "kvm1") == WitnessReport(None, 1)
    assert ask_witnesses(conductor(kvm2=Unreachable("x")), "kvm1") == WitnessReport(None, 0)
    assert ask_witnesses(conductor(kvm2=None, kvm3=False), "kvm1") == WitnessReport(None, 1)
    assert ask_witnesses(conductor(), "kvm1") == WitnessReport(None, 0)


def test_a_conductor_that_cannot_tell(conductor, monkeypatch):
    """It does not know the host's name any more, say, so its silence means nothing."""
    monkeypatch.setattr(witnesses, "is_host_reached", lambda _address, _port: None)
    cell = conductor(kvm2=False)
    assert ask_witnesses(cell, "kvm1") == WitnessReport(None, 0) and not cell.asked


def test_one_that_reaches_the_host_is_enough(conductor, monkeypatch):
    assert ask_witnesses(conductor(kvm2=True), "kvm1").seen_by == "host kvm2"
    monkeypatch.setattr(witnesses, "is_host_reached", lambda _address, _port: True)
    cell = conductor(kvm2=False)
    assert ask_witnesses(cell, "kvm1") == WitnessReport("conductor c1", 0) and not cell.asked


@pytest.mark.parametrize(("endpoint", "place"), [("ssh://root@kvm1", ("kvm1", 22)), ("ssh://kvm1:2222", ("kvm1", 2222)),
                                                 ("https://kvm1", ("kvm1", 6553))])
def test_the_address_of_the_agent(conductor, endpoint, place):
    cell = conductor(endpoint, kvm2=False)
    ask_witnesses(cell, "kvm1")
    assert cell.asked == [("kvm2", *place)]


def test_an_agent_at_a_socket_is_on_the_machine_of_the_conductor(conductor):
    assert ask_witnesses(conductor("unix:///run/magnetar/agent.sock"), "kvm1").seen_by == "conductor c1"
