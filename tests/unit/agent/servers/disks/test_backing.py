# SPDX-License-Identifier: GPL-3.0-or-later
"""What each disk of a server stands on, as libvirt is told: its format, and its whole chain. Where that is left out,
libvirt reads it from the disk, which a guest may have written out of a broken QEMU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.host.hypervisor import MigrationParams
from magnetar_agent.virt.domain.domain import render_device
from magnetar_agent.virt.domain.migrated_xml import target_domain_xml
from magnetar_agent.volumes import attaching
from magnetar_core.errors import HypervisorError
from tests.support.agent.pair import Pair
from tests.support.agent.resize import folder
from tests.unit.agent.conftest import SMALL, Host
from tests.unit.core.images import iso, qcow2

ALL = {**SMALL, "disk": 1, "ephemeral": 1, "swap": 8}
#: Disks that stand alone.
OTHERS = {"vdb": "qcow2", "vdc": "qcow2", "sdo": "raw"}


def chain(element: ET.Element) -> list[str]:
    """A disk's formats and backing files, from the top to the end, which it must say."""
    driver, below = element.find("driver"), element.find("backingStore")
    found = [] if driver is None else [driver.get("type", "not said")]
    assert below is not None, "what it stands on is not said"
    if len(below) == 0:
        return found
    format, source = below.find("format"), below.find("source")
    assert below.get("type") == "file" and format is not None and source is not None
    return [*found, f"{format.get('type')} {Path(source.get('file', '')).name}", *chain(below)]


def chains(xml: str) -> dict[str, str]:
    """The chain of each disk of a domain, by target."""
    found = {}
    for disk in ET.fromstring(xml).iterfind("devices/disk"):
        target = disk.find("target")
        assert target is not None
        found[target.get("dev", "")] = " on ".join(chain(disk))
    return found


def told(host: Host) -> dict[str, str]:
    """What libvirt was told of web1: as it is defined, and as it runs."""
    domain = host.fake._domains[host.show()["id"]]
    assert chains(domain.live) == chains(domain.xml)
    return chains(domain.xml)


def image(host: Host, format: str) -> None:
    """An image called after its *format*."""
    content = {"raw": b"r" * 2**20, "qcow2": qcow2(size=8 * 2**20), "iso": iso()}[format]
    (host.root / format).write_bytes(content)
    host.ensure("image", format, {"source": {"path": str(host.root / format)}, "disk_format": format})


@pytest.mark.parametrize(("want", "root"), [
    ({"image": "raw"}, {"vda": "qcow2 on raw base"}),
    ({"image": "qcow2"}, {"vda": "qcow2 on qcow2 base"}),
    ({"image": "raw", "root_format": "raw"}, {"vda": "raw"}),
    ({"image": "raw", "root_format": "copy"}, {"vda": "qcow2"}),
    ({"image": "qcow2", "root_format": "copy"}, {"vda": "qcow2"}),
    ({"image": "iso"}, {"vda": "qcow2", "sda": "raw"}),
    ({"image": None}, {"vda": "qcow2"}),
])
def test_a_server(host: Host, want: dict[str, Any], root: dict[str, str]) -> None:
    if want["image"]:
        image(host, want["image"])
    host.server(flavor=ALL, config_drive=True, **want)
    assert told(host) == {**root, **OTHERS}
    host.ensure("server", "web1", {"flavor": {**ALL, "disk": 2, "swap": 0}}, allow_reboot=True)
    assert told(host) == {**root, "vdb": "qcow2", "sdo": "raw"}


def test_a_host_whose_root_disks_are_raw(tmp_path: Path) -> None:
    """As of ``images_type`` flat: what says no format is made in that of the setting, and keeps it."""
    host = Host(tmp_path, root_format="raw")
    host.start()
    try:
        image(host, "qcow2")
        host.server(image="qcow2")
        assert (told(host)["vda"], host.show()["root_format"]) == ("raw", "raw")
        host.server("other", image="qcow2", root_format="qcow2")
        host.settings["root_format"] = "qcow2"
        host.restart()
        assert not host.server(image="qcow2").changed and not host.server(root_format="auto").changed
        assert (host.show()["root_format"], host.show("other")["root_format"]) == ("raw", "qcow2")
    finally:
        host.agent.close()


def test_another_image(host: Host) -> None:
    for format in ("raw", "qcow2"):
        image(host, format)
    host.server(image="raw")
    host.ensure("server", "web1", {"image": "qcow2"}, on_immutable="rebuild")
    assert told(host)["vda"] == "qcow2 on qcow2 base"


@pytest.mark.parametrize(("tools", "disks"), [
    ("qcow2", {"vda": "qcow2 on qcow2 rescue.base", "vdb": "qcow2 on raw base"}),
    ("iso", {"vda": "qcow2 on raw base", "sda": "raw"}),
])
def test_a_rescue(host: Host, tools: str, disks: dict[str, str]) -> None:
    for format in ("raw", tools):
        image(host, format)
    host.server(image="raw", config_drive=True)
    host.ensure("server", "web1", {"rescue": {"image": tools}})
    assert told(host) == {**disks, "sdo": "raw"}


@pytest.mark.parametrize("format", ["raw", "qcow2"])
def test_volumes(host: Host, format: str) -> None:
    """Plugged in, and at the next start."""
    host.server()
    host.ensure("volume", "data", {"size": 1, "format": format})
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    assert told(host)["vdb"] == format
    document = host.agent.host.documents.list("volume_attachment")[0]
    disk = attaching.attached_disk(host.agent.host, document)
    assert disk and chain(ET.fromstring(render_device(disk))) == [format]


def test_a_server_that_goes_live(pair: Pair) -> None:
    """libvirt gets two definitions for the other host: as it runs, and as it starts. Its disk stands on what it was
    made on there, whatever its header says here."""
    pair.image("system")
    id = pair.make(image="system", flavor=ALL, config_drive=True)
    disk = folder_of(pair.one, id) / "disk"
    disk.write_bytes(b"no header" + disk.read_bytes()[9:])
    pair.migrate(type="live")
    found, place = pair.two.fake._domains[id], folder_of(pair.two, id)
    for xml in (found.live, found.xml):
        assert chains(xml) == {"vda": "qcow2 on raw base", **OTHERS}
        assert f'file="{place}/base"' in xml and str(folder_of(pair.one, id)) not in xml


def folder_of(host: Any, id: str) -> Path:
    """The server's folder."""
    return Path(host.agent.host.settings.state_dir / "servers" / id)


RUNS = """<domain><devices>
  <disk type="file" device="disk">
    <driver name="qemu" type="qcow2"/>
    <source file="/here/disk" index="1"/>
    <backingStore type="file" index="2"><format type="raw"/><source file="/here/base"/><backingStore/></backingStore>
    <target dev="vda"/>
  </disk>
  <disk type="file" device="disk">
    <driver name="qemu" type="qcow2"/>
    <source file="/pool/1" index="3"/>
    <backingStore/>
    <target dev="vdb"/>
    <serial>1</serial>
  </disk>
</devices></domain>"""
DEVICE = """<hostdev mode="subsystem" type="pci" managed="yes">
  <source><address domain="0x0000" bus="0x{}" slot="0x00" function="0x0"/></source></hostdev>"""
STARTS_THERE = """<domain><devices>
  <disk type="network" device="disk">
    <driver name="qemu" type="raw"/>
    <source protocol="nbd" name="1"/>
    <backingStore/>
    <target dev="vdb"/>
    <serial>1</serial>
  </disk>
</devices></domain>"""


def test_the_definition_for_another_host() -> None:
    """libvirt shows what runs with indexes. A volume is reached in another way from there."""
    sockets = Path("/l"), Path("/q"), Path("/d")
    made = target_domain_xml(RUNS, MigrationParams(*sockets, STARTS_THERE, (Path("/here"), Path("/there"))))
    assert chains(made) == {"vda": "qcow2 on raw base", "vdb": "raw"}
    assert 'file="/there/base"' in made and "/here" not in made and made.count("<backingStore") == 3


def test_devices_for_another_host_whatever_the_order_they_are_in() -> None:
    """Earlier agents have put them in the order of their addresses, and the target's are in that of their aliases."""
    runs, starts = (f"<domain><devices>{''.join(map(DEVICE.format, buses))}</devices></domain>" for buses in (
        ("0a", "81", "91"), ("c1", "a1", "b1")))
    aliases = {"0000:0a:00.0": "nic", "0000:81:00.0": "gpu", "0000:91:00.0": "nic"}
    sockets = Path("/l"), Path("/q"), Path("/d")
    made = target_domain_xml(runs, MigrationParams(*sockets, starts, (Path("/here"), Path("/there")), devices=aliases))
    assert re.findall('bus="0x(..)"', made) == ["a1", "c1", "b1"]


def test_what_it_stands_on_is_gone(host: Host) -> None:
    image(host, "raw")
    host.server(image="raw", power="off")
    (folder(host) / "base").unlink()
    with pytest.raises(HypervisorError, match="no file .*base"):
        host.ensure("server", "web1", {"power": "running"})


@pytest.mark.parametrize("power", ["running", "off"])
def test_a_domain_of_an_earlier_agent(host: Host, power: str) -> None:
    image(host, "raw")
    host.server(image="raw", flavor=ALL, config_drive=True, power=power)
    domain = host.fake._domains[host.show()["id"]]
    with host.fake._change("earlier"):
        domain.xml = domain.live = re.sub("(?s)<backingStore type.*?</backingStore>|<backingStore/>", "", domain.xml)
    host.restart()
    domain = host.fake._domains[host.show()["id"]]
    assert chains(domain.xml) == {"vda": "qcow2 on raw base", **OTHERS}
    assert host.show()["power_state"] == power and not host.server(flavor=ALL).changed
