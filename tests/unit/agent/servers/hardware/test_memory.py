# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of guests in files: what goes with it, what the host tells, that it is given once, and moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host import inventory
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Conflict, InvalidField, InvalidSettings, NoSpace
from tests.support.agent.pair import Pair
from tests.support.agent.server_hardware import domain
from tests.unit.agent.conftest import Host

FILES = {"file_backed_memory": 1024, "ram_allocation_ratio": 1.0}


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, **FILES)
    made.start()
    yield made
    made.agent.close()


def backing(host: Host, name: str = "web1") -> list[str]:
    found = domain(host, name).find("memoryBacking")
    return [] if found is None else [one.tag for one in found]


@pytest.mark.parametrize(("settings", "words"), [
    ({"file_backed_memory": 1024}, "file_backed_memory: needs ram_allocation_ratio 1"),
    ({**FILES, "reserved_huge_pages": {0: {2048: 1}}}, "file_backed_memory: excludes large pages"),
    ({**FILES, "file_backed_memory": -1}, "file_backed_memory: must be from 0"),
    ({**FILES, "file_backed_memory": 0.5}, "file_backed_memory: must be a whole number")], ids=str)
def test_settings_that_do_not_go_together(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        AgentSettings(**settings)


def test_so_much_is_told_and_given_once(filed: Host) -> None:
    assert inventory.host_usage(filed.agent.host)["memory_mb"] == 1024
    filed.server("web1", flavor={"vcpus": 1, "ram": 600})
    assert backing(filed) == ["source", "access", "allocation", "discard"]
    filed.ensure("server", "web1", {"power": "off"})
    with pytest.raises(Conflict, match=r"needs 600 MiB of memory, and of the 1024 MiB that host .* 424 are left"):
        filed.server("web2", flavor={"vcpus": 1, "ram": 600})
    filed.server("web2", flavor={"vcpus": 1, "ram": 424}, power="off")
    with pytest.raises(Conflict, match="0 are left|424 are left"):
        filed.server("web2", flavor={"vcpus": 1, "ram": 425}, power="off")
    assert not filed.server("web2", flavor={"vcpus": 1, "ram": 424}, power="off").changed
    with pytest.raises(InvalidField, match="no more than 1024 MiB of ram"):
        filed.server("web3", flavor={"vcpus": 1, "ram": 2048})


def test_large_pages_cannot_be_had(filed: Host) -> None:
    filed.fake.cells = (filed.fake.cells[0]._replace(pages={2048: 512}),)
    with pytest.raises(Conflict, match=r"free in the cell are: none \(memory of its guests is in files"):
        filed.server(hardware={"mem_page_size": "large"})
    filed.server(hardware={"mem_page_size": "small"})


def test_guests_have_it_from_their_next_start_on(host: Host) -> None:
    host.server()
    host.settings |= FILES
    runs = host.fake.running(host.show()["id"])
    host.restart()
    assert backing(host) and runs is not None and not runs.file_backed
    for name in FILES:
        host.settings.pop(name)
    host.restart()
    assert not host.fake.domains()[host.show()["id"]].file_backed


@pytest.mark.parametrize("way", ["to", "from"])
def test_a_running_guest_has_it_as_the_target_has_it(pair: Pair, way: str) -> None:
    kvm = pair.two if way == "to" else pair.one
    kvm.agent.host.settings = replace(kvm.agent.host.settings, **FILES)
    id = pair.make()
    pair.migrate()
    runs = pair.two.fake.running(id)
    assert runs is not None and runs.file_backed is (way == "to")


def test_a_target_that_has_not_so_much_left_refuses(pair: Pair) -> None:
    pair.two.agent.host.settings = replace(pair.two.agent.host.settings, **{**FILES, "file_backed_memory": 63})
    pair.make(power="off")
    with pytest.raises(Conflict, match="of the 63 MiB that host kvm2 has in files"):
        pair.migrate(type="cold")
    pair.one.side().client.ensure("server", "web1", {"power": "running"})
    with pytest.raises((Conflict, NoSpace), match="63 MiB"):
        pair.migrate()
