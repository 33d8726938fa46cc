# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fake keeps on disk."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.fake.journal import MANY, Journal
from magnetar_agent.fake.state import hung_file
from magnetar_agent.host.networks import Lease, NetworkSpec
from magnetar_agent.virt.tools.templates import NAMESPACE
from magnetar_core.errors import GuestSilent
from magnetar_core.power import OFF, RUNNING

NOTE = f"<magnetar:server xmlns:magnetar='{NAMESPACE}' uuid='%s'/>"


def written(journal: Journal, *changed: str, **things: Any) -> None:
    journal.write(changed, things.get, lambda: things)


def test_the_last_of_each_thing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    journal = Journal(path)
    assert journal.read() == {}
    written(journal, a=1, b=[1])
    written(journal, "a", a=2, b=[1])
    assert len(path.read_text().splitlines()) == 3  # b has not changed
    written(journal, "a", "c", b=[1], c={})
    assert Journal(path).read() == {"b": [1], "c": {}}


def test_a_line_that_was_cut_off_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(Journal(path), a=1)
    with path.open("a") as file:
        file.write('["a", 2')
    again = Journal(path)
    assert again.read() == {"a": 1}
    written(again, a=1, b=2)  # all, since nobody else can have written what the first look found
    assert Journal(path).read() == {"a": 1, "b": 2}


def test_it_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    journal = Journal(path)
    for number in range(3 * MANY):
        written(journal, "a", a=number)
    assert len(path.read_text().splitlines()) < MANY + 10
    assert Journal(path).read() == {"a": 3 * MANY - 1}


def test_what_dhcp_knows_outlives_the_agent(tmp_path: Path) -> None:
    fake = FakeHypervisor(tmp_path)
    for name in ("lan", "wan"):
        fake.make_network(NetworkSpec(str(uuid.uuid4()), name, "nat", f"virbr-{name}", "10.0.0.1", 24,
                                      hosts=(("52:54:00:00:00:01", "10.0.0.2"),)))
    fake.reserve("lan", "52:54:00:00:00:02", "10.0.0.3")
    fake.reserve("lan", "52:54:00:00:00:03", "10.0.0.2")  # whose it was has it no more
    fake.release("wan", "52:54:00:00:00:01")
    fake.lease("wan", Lease("52:54:00:00:00:04", "10.0.0.4", 4))
    again = FakeHypervisor(tmp_path)
    assert again.reserved("lan") == {"52:54:00:00:00:02": "10.0.0.3", "52:54:00:00:00:03": "10.0.0.2"}
    assert again.reserved("wan") == {} and [one.address for one in again.leases("wan")] == ["10.0.0.4"]
    again.remove_network("lan")
    assert set(FakeHypervisor(tmp_path).networks()) == {"wan"}


def test_a_guest_that_hangs_outlives_the_agent(tmp_path: Path) -> None:
    """And another process lets it hang, and go on."""
    id = str(uuid.uuid4())
    xml = f"<domain type='qemu'><name>web</name><uuid>{id}</uuid><metadata>{NOTE % id}</metadata></domain>"
    fake = FakeHypervisor(tmp_path)
    fake.defined_outside(xml, RUNNING)
    hung_file(tmp_path, id).touch()
    for hypervisor in (fake, FakeHypervisor(tmp_path)):
        with pytest.raises(GuestSilent, match=id):
            hypervisor.pause(id)
    hung_file(tmp_path, id).unlink()
    fake.reboot(id)
    fake.hangs(id)
    with pytest.raises(GuestSilent):
        fake.reboot(id)
    fake.destroy(id)
    assert fake.domains()[id].state == OFF and not hung_file(tmp_path, id).exists()
