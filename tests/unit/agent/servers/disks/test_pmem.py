# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent memory: which namespaces there are, who gets which, and that nobody reads what another has written. The
host's sysfs is made up; files stand for namespaces."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.hardware.pmem import Namespace, pmem_warnings, present_namespaces
from magnetar_agent.host import inventory
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.disks.pmem import Pmem
from magnetar_agent.virt.domain.domain import parse_domain_xml
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, InvalidSettings
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import SMALL, Host, made_at_once

ONE = {"flavor": SMALL, "hardware": {"pmem": "small"}}
SIZE = 4 << 20


def filled(path: Path) -> Path:
    """A file that somebody has written to."""
    path.write_bytes(b"secret" + bytes(SIZE - 6))
    return path


def equipped(folder: Path, count: int = 2) -> dict[str, Any]:
    """Settings of a host with so many small namespaces and a large one."""
    small = [str(filled(folder / f"pmem{number}")) for number in range(count)]
    return {"pmem_namespaces": {"small": small, "LARGE": [str(filled(folder / "large"))]}}


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, **equipped(tmp_path))
    host.start()
    yield host
    host.agent.close()


def told(host: Host) -> dict[str, int]:
    """How many the host says are free, by label."""
    return {label: one["free"] for label, one in inventory.host_usage(host.agent.host)["pmem"].items()}


def has(host: Host, name: str = "web1") -> list[str]:
    """The files that a server has, which are in its domain, and empty."""
    found = host.show(name)
    root = ET.fromstring(host.fake.xml(found["id"]))
    paths = [one.text for one in root.findall("devices/memory/source/path")]
    assert paths == found["pmem_namespaces"]
    return [Path(path).name for path in found["pmem_namespaces"]]


def test_namespaces_of_sysfs(tmp_path: Path) -> None:
    folder = tmp_path / "bus/nd/devices"
    for name, more in {"namespace0.0": {"alt_name": "ns0", "mode": "dax", "holder": "dax0.0"},
                       "namespace0.1": {"alt_name": "ns1", "mode": "dax", "holder": "dax0.1"},
                       "namespace1.0": {"alt_name": "fs", "mode": "memory", "holder": "pfn1.0"},
                       "namespace1.1": {"alt_name": "", "mode": "raw"},
                       "dax0.0": {"size": str(6442450944), "align": "2097152"},
                       "dax0.1": {"size": str((6 << 30) + (1 << 20)), "align": "2097152"}}.items():
        (folder / name).mkdir(parents=True)
        for file, content in more.items():
            (folder / name / file).write_text(content + "\n")
    wanted = {"6GB": ("ns1", "ns0"), "gone": ("fs", "ns9", "/none")}
    assert present_namespaces(tmp_path, wanted) == [
        Namespace("6GB", "ns1", Path("/dev/dax0.1"), 6 << 20, 2048),
        Namespace("6GB", "ns0", Path("/dev/dax0.0"), 6 << 20, 2048)]
    assert present_namespaces(tmp_path, {}) == []
    [missing, *_daxio] = pmem_warnings(tmp_path, wanted)
    assert "pmem_namespaces names fs, ns9, /none, and there is no namespace" in missing


def test_a_file_is_one_namespace(tmp_path: Path) -> None:
    """By whatever names: two servers would have the same memory, and the second would empty the first one's."""
    path, link, other = filled(tmp_path / "one"), tmp_path / "link", tmp_path / "other"
    link.symlink_to(path)
    other.hardlink_to(path)
    wanted = {"a": (str(path), f"{tmp_path}/./one"), "b": (str(link), str(other))}
    assert [one.name for one in present_namespaces(tmp_path, wanted)] == [str(path)]
    [doubled] = pmem_warnings(tmp_path, wanted)
    assert f"names {tmp_path}/./one, {link}, {other}, and there is no" in doubled


@pytest.mark.parametrize(("value", "why"), [
    ([], "must be a mapping"), ({"a": "ns0"}, "must be a mapping"), ({"a": ["../ns"]}, "must be a mapping"),
    ({"a b": ["ns0"]}, "must be a label"), ({"a": ["ns0", "ns0"]}, "named twice"),
    ({"a": ["ns0"], "b": ["ns0"]}, "named twice"), ({"a-b": ["ns0"], "A_B": ["ns1"]}, "would both be counted as")])
def test_settings_that_are_wrong(value: Any, why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        AgentSettings(pmem_namespaces=value)


def test_a_server_has_some_for_itself(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pmem": "LARGE,small"}})
    assert has(big) == ["large", "pmem0"] and told(big) == {"small": 1, "LARGE": 0}
    assert Path(big.show()["pmem_namespaces"][0]).read_bytes() == bytes(SIZE)
    assert parse_domain_xml(big.fake.xml(big.show()["id"])).ram_mib == SMALL["ram"]
    assert not big.ensure("server", "web1", {"hardware": {"pmem": "LARGE,small"}}).changed
    resources = inventory.host_usage(big.agent.host)["resources"]
    assert {name: one["total"] for name, one in resources.items()} == {
        "CUSTOM_PMEM_NAMESPACE_SMALL": 2, "CUSTOM_PMEM_NAMESPACE_LARGE": 1}


def test_what_is_written_stays_until_the_server_goes(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    path = filled(Path(big.show()["pmem_namespaces"][0]))
    for power in ("off", "running"):
        big.ensure("server", "web1", {"power": power})
    big.restart()
    big.ensure("server", "web1", {"hardware": {"pmem": "small,small"}}, allow_reboot=True)
    assert has(big) == ["pmem0", "pmem1"] and path.read_bytes().startswith(b"secret")
    big.ensure("server", "web1", {"hardware": {"pmem": "LARGE"}}, allow_reboot=True)
    assert has(big) == ["large"] and path.read_bytes() == bytes(SIZE) and told(big) == {"small": 2, "LARGE": 0}
    filled(Path(big.show()["pmem_namespaces"][0]))
    big.ensure("server", "web1", None)
    assert (big.root / "large").read_bytes() == bytes(SIZE) and told(big) == {"small": 2, "LARGE": 1}


def test_no_more_than_there_are(big: Host) -> None:
    assert sum(made_at_once(big, ONE, 5)) == 2 and told(big) == {"small": 0, "LARGE": 1}
    with pytest.raises(Conflict, match="no free namespace of persistent memory with the label small"):
        big.ensure("server", "more", ONE)
    for wanted, there in (("small,small,small", "has 2 namespaces"), ("huge", "has 0 namespaces")):
        with pytest.raises(InvalidField, match=rf"hardware.pmem: .*{there}"):
            big.ensure("server", "more", {"flavor": SMALL, "hardware": {"pmem": wanted}})
    assert big.agent.host.documents.find("server", "more") is None


def test_one_that_cannot_be_emptied_is_not_given(big: Host) -> None:
    """Its server is not made, or does not start with it; when it can be emptied, it does."""
    big.fake.fail_next("empty_pmem", HypervisorError("daxio is missing"))
    with pytest.raises(HypervisorError, match="daxio is missing"):
        big.ensure("server", "web1", ONE)
    assert big.agent.host.documents.find("server", "web1") is None and told(big) == {"small": 2, "LARGE": 1}
    assert (big.root / "pmem0").read_bytes().startswith(b"secret")
    big.ensure("server", "web1", ONE)
    big.fake.fail_next("empty_pmem", HypervisorError("daxio is missing"))
    with pytest.raises(HypervisorError, match="daxio is missing"):
        big.ensure("server", "web1", {"hardware": {"pmem": "small,small"}}, allow_reboot=True)
    assert (big.root / "pmem1").read_bytes().startswith(b"secret")
    big.ensure("server", "web1", {"power": "running"})
    assert has(big) == ["pmem0", "pmem1"] and (big.root / "pmem1").read_bytes() == bytes(SIZE)


def test_one_that_is_gone_is_missed(big: Host) -> None:
    """A server that has written to it does not get an empty one in its place, unless it is asked to."""
    big.ensure("server", "web1", ONE)
    big.ensure("server", "web1", {"power": "off"})
    path = filled(big.root / "pmem0")
    path.rename(big.root / "away")
    for _again in range(2):
        with pytest.raises(Conflict, match="no persistent memory .*/pmem0 with the label small any more, to which"):
            big.ensure("server", "web1", {"power": "running"})
    (big.root / "away").rename(path)
    big.ensure("server", "web1", {"power": "running"})
    assert has(big) == ["pmem0"] and path.read_bytes().startswith(b"secret")
    big.ensure("server", "web1", {"power": "off"})
    path.unlink()
    for hardware in ({}, ONE["hardware"]):
        big.ensure("server", "web1", {"hardware": hardware})
    big.ensure("server", "web1", {"power": "running"})
    assert has(big) == ["pmem1"] and (big.root / "pmem1").read_bytes() == bytes(SIZE)


def test_it_is_not_suspended(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    with pytest.raises(InvalidField, match="cannot be suspended while the server has persistent memory"):
        big.ensure("server", "web1", {"power": "suspended"})


def test_a_move_gives_it_empty_ones(pair: Pair) -> None:
    for kvm, name in ((pair.one, "one"), (pair.two, "two")):
        path = filled(pair.root / name)
        object.__setattr__(kvm.agent.host.settings, "pmem_namespaces", {"small": (str(path),)})
    id = pair.make(hardware={"pmem": "small"})
    filled(pair.root / "one")
    with pytest.raises(Conflict, match="which cannot move while the guest runs"):
        pair.migrate(type="live")
    pair.migrate(type="cold")
    found = pair.two.side().client.get("server", id)
    assert found["pmem_namespaces"] == [str(pair.root / "two")]
    assert (pair.root / "two").read_bytes() == bytes(SIZE) == (pair.root / "one").read_bytes()


def test_what_empties_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """daxio does; a stand-in notes how it is called."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HypervisorError, match=r"daxio is missing. Install it \(Debian: pmdk-tools\)"):
        Pmem().empty_pmem(Path("/dev/null"))
    daxio = tmp_path / "daxio"
    daxio.write_text(f"#!/bin/sh\necho $* >{tmp_path}/called\n")
    daxio.chmod(0o755)
    Pmem().empty_pmem(Path("/dev/null"))
    assert (tmp_path / "called").read_text() == "--zero --output /dev/null\n"
    daxio.write_text("#!/bin/sh\necho no such device >&2\nexit 1\n")
    with pytest.raises(HypervisorError, match="daxio says of /dev/null: no such device"):
        Pmem().empty_pmem(Path("/dev/null"))
    with pytest.raises(HypervisorError, match="none is gone. Look at the agent's setting pmem_namespaces"):
        Pmem().empty_pmem(tmp_path / "none")


def test_a_file_stays_a_namespace_while_it_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that dies in between finds it again, with room for what a guest writes; and empties it then."""
    path = filled(tmp_path / "one")
    blocks, write = path.stat().st_blocks, os.pwrite

    def dies(file: int, what: Any, at: int) -> int:
        if at:
            raise OSError(errno.EIO, "the host is gone")
        return write(file, what, at)

    with monkeypatch.context() as patch, pytest.raises(HypervisorError, match="could not be emptied: .*host is gone"):
        patch.setattr(os, "pwrite", dies)
        Pmem().empty_pmem(path)
    assert path.stat().st_size == SIZE
    path.write_bytes(b"secret".rjust(SIZE))
    Pmem().empty_pmem(path)
    assert path.read_bytes() == bytes(SIZE) and path.stat().st_blocks == blocks
    with path.open("r+b") as file:
        file.truncate(0)
        file.truncate(2 * SIZE)
        file.seek(SIZE)
        file.write(b"secret")
    Pmem().empty_pmem(path)
    assert path.read_bytes() == bytes(2 * SIZE) and path.stat().st_blocks < blocks
