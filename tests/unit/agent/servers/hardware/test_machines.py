# SPDX-License-Identifier: GPL-3.0-or-later
"""Machine types: chosen when a server is made, kept as the version that it was then, and changed to later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent import settings
from magnetar_agent.servers.hardware import machines
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.host import capabilities
from magnetar_core.errors import Conflict, Immutable, InvalidField, InvalidSettings
from tests.support.agent.hardware import image
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import SMALL, Host

#: What QEMU has once it is upgraded.
NEWER = {**{name: name for name in ("pc-q35-7.2", "pc-q35-8.2", "pc-i440fx-7.2", "pc-i440fx-8.2")},
         "q35": "pc-q35-8.2", "pc": "pc-i440fx-8.2"}


def machine(host: Host, name: str = "web1") -> str:
    """The machine type in the domain of a server."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    domain = host.fake.domain(document.id)
    assert domain is not None
    return domain.machine


@pytest.mark.parametrize(("defaults", "properties", "own", "made"), [
    ([], {}, {}, "pc-q35-7.2"), (["x86_64=pc"], {}, {}, "pc-i440fx-7.2"), (["aarch64=virt-7.2"], {}, {}, "pc-q35-7.2"),
    (["x86_64=pc-q35-7.1"], {}, {}, "pc-q35-7.1"), (["x86_64=pc"], {"hw_machine_type": "q35"}, {}, "pc-q35-7.2"),
    ([], {"hw_machine_type": "pc-i440fx-7.1"}, {}, "pc-i440fx-7.1"),
    ([], {"hw_machine_type": "pc"}, {"machine": "pc-q35-7.1"}, "pc-q35-7.1"),
    (["x86_64=pc"], {}, {"machine": "q35"}, "pc-q35-7.2"),
    (["x86_64=pc"], {}, {"hardware": {"viommu": "virtio"}}, "pc-q35-7.2"),
    (["x86_64=pc"], {}, {"hardware": {"disk_bus": "ide"}}, "pc-i440fx-7.2"),
    ([], {}, {"hardware": {"disk_bus": "ide"}}, "pc-i440fx-7.2"), ([], {"hw_cdrom_bus": "ide"}, {}, "pc-i440fx-7.2"),
    (["x86_64=pc-q35-7.1"], {"hw_disk_bus": "ide"}, {}, "pc-i440fx-7.2")], ids=str)
def test_who_says_it(tmp_path: Path, defaults: list[str], properties: dict[str, str], own: dict[str, Any],
                     made: str) -> None:
    host = Host(tmp_path, hw_machine_type=tuple(defaults))
    host.start()
    given = image(host, **properties) if properties else {}
    found = host.ensure("server", "web1", {"flavor": SMALL, **given, **own}).resource
    assert found and found["machine"] == machine(host) == made
    assert not host.ensure("server", "web1", {"flavor": SMALL, **given, **own}).changed
    host.agent.close()


def test_a_guest_keeps_its_machine_when_qemu_is_upgraded(host: Host) -> None:
    host.ensure("server", "web1", {"flavor": SMALL, **image(host, hw_machine_type="q35"), "machine": "auto"})
    host.fake.machine_types = NEWER
    for want in ({"power": "off"}, {"power": "running"}, {"machine": "q35"}, {"machine": "auto"},
                 {"flavor": {**SMALL, "vcpus": 2}, "power": "off"}):
        host.ensure("server", "web1", want)
        assert host.show()["machine"] == machine(host) == "pc-q35-7.2"
    host.event("rebuild", "r1", image=host.show()["image"]["id"])
    assert host.show()["machine"] == machine(host) == "pc-q35-7.2"
    host.ensure("image", "odd", None)
    host.event("rebuild", "r2", image=image(host, hw_machine_type="pc")["image"])
    assert host.show()["machine"] == machine(host) == "pc-i440fx-8.2"
    assert host.server("web2").resource["machine"] == "pc-q35-8.2"


def test_what_qemu_lacks_is_refused_with_what_it_has(host: Host) -> None:
    for want in ({"machine": "pc-q35-99.0"}, image(host, hw_machine_type="pc-q35-99.0")):
        with pytest.raises(InvalidField, match=r"machine: must be .* QEMU of host \S+ has, which are q35, pc-q35-7.2"):
            host.ensure("server", "web1", {"flavor": SMALL, **want})
    for word in ("microvm", "virtual", "pc-virtio-1"):
        with pytest.raises(InvalidField, match="must be q35, pc, virt"):
            host.server(machine=word)
        with pytest.raises(InvalidField, match="it is q35, pc, virt, pseries or s390-ccw-virtio"):
            host.ensure("server", "web1", {"flavor": SMALL, **image(host, hw_machine_type=word)})


def test_it_becomes_a_later_version_while_the_server_is_off(host: Host) -> None:
    host.server(machine="pc-q35-7.1")
    with pytest.raises(Conflict, match="machine: can change only while server 'web1' is off"):
        host.ensure("server", "web1", {"machine": "pc-q35-7.2"})
    assert host.ensure("server", "web1", {"machine": "pc-q35-7.2", "power": "off"}).changed
    assert host.show()["machine"] == machine(host) == "pc-q35-7.2"
    for word in ("pc-q35-7.1", "pc", "pc-i440fx-7.2"):
        with pytest.raises(Immutable, match="machine cannot change"):
            host.ensure("server", "web1", {"machine": word})
    with pytest.raises(InvalidField, match="must be a machine type that QEMU of host"):
        host.ensure("server", "web1", {"machine": "pc-q35-9.0"})
    assert machine(host) == "pc-q35-7.2"


def test_an_agent_notes_what_an_earlier_one_did_not(host: Host) -> None:
    host.server()
    document = host.agent.host.documents.find("server", "web1")
    assert document is not None
    document.want["machine"] = "q35"  # the domain is of the version that QEMU had then
    host.agent.host.documents.write(document)
    host.fake.machine_types = NEWER
    host.restart()
    host.fake.machine_types = NEWER
    assert host.show()["machine"] == machine(host) == "pc-q35-7.2"


def test_the_default_is_checked_when_the_agent_starts(host: Host) -> None:
    with pytest.raises(InvalidSettings, match="hw_machine_type: QEMU of this host has no machine type pc-q35-9.0. It "):
        machines.check_machine_settings(AgentSettings(hw_machine_type=("x86_64=pc-q35-9.0",)), host.fake)
    machines.check_machine_settings(AgentSettings(hw_machine_type=("x86_64=pc-q35-7.1", "aarch64=virt-9.0")), host.fake)
    host.fake.disconnect()
    machines.check_machine_settings(AgentSettings(hw_machine_type=("x86_64=pc-q35-9.0",)), host.fake)


@pytest.mark.parametrize(("given", "why"), [
    (["q35"], "must be ARCHITECTURE=TYPE"), (["x86_64=microvm"], "must be q35, pc, virt .of aarch64.*, or a version"),
    (["x86_64=virt"], "must name a machine of its architecture: virt is of aarch64"),
    (["x86_64=pc", "x86_64=q35"], "'x86_64' is named twice"), ("x86_64=pc", "must be a list")], ids=str)
def test_a_setting_that_is_none(tmp_path: Path, given: Any, why: str) -> None:
    (tmp_path / "agent.yml").write_text(f"hw_machine_type: {given}\n")
    with pytest.raises(InvalidSettings, match=why):
        settings.load_agent_settings(tmp_path / "agent.yml")


@pytest.mark.parametrize("kind", ["cold", "live"])
def test_a_move_needs_a_host_that_has_it(pair: Pair, kind: str) -> None:
    id = pair.make()
    pair.two.fake.machine_types = {"q35": "pc-q35-6.2", "pc-q35-6.2": "pc-q35-6.2"}
    with pytest.raises(Conflict, match=r"machine \(pc-q35-7.2\) cannot be had on the target, which lacks machine type "
                                       r"pc-q35-7.2 \(its QEMU has q35, pc-q35-6.2\)"):
        pair.migrate(type=kind)
    pair.two.fake.machine_types = NEWER
    pair.migrate(type=kind)
    pair.check(id, pair.two, True)
    found, domain = pair.two.side().find("web1"), pair.two.fake.domain(id)
    assert found and domain and found["machine"] == domain.machine == "pc-q35-7.2"


def test_what_libvirt_tells_of_them() -> None:
    told = """<capabilities><guest><os_type>hvm</os_type><arch name='x86_64'><wordsize>64</wordsize>
      <machine maxCpus='288'>pc-q35-7.2</machine><machine canonical='pc-q35-7.2' maxCpus='288'>q35</machine>
      <machine maxCpus='288'>microvm</machine></arch></guest>
      <guest><arch name='aarch64'><machine canonical='virt-7.2' maxCpus='512'>virt</machine></arch></guest>
      </capabilities>"""
    assert capabilities.machine_types(ET.fromstring(told)) == {
        "x86_64": {"pc-q35-7.2": "pc-q35-7.2", "q35": "pc-q35-7.2", "microvm": "microvm"},
        "aarch64": {"virt": "virt-7.2"}}
