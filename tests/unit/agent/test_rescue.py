# SPDX-License-Identifier: GPL-3.0-or-later
"""Rescue and unrescue, on the fake: which disks the domain has, what is kept, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.hypervisor import DomainSpec
from magnetar_core.errors import Conflict, InvalidField

from .conftest import SMALL, Host
from .test_remake import folder, image


def disks(host: Host) -> dict[str, str]:
    domain = host.fake.domains()[host.show()["id"]]
    return {disk.target: disk.path.name for disk in domain.disks}


ORDINARY = {"vda": "disk", "vdb": "disk.ephemeral", "vdc": "disk.swap", "vdz": "config.iso"}
RESCUED = {"vda": "disk.rescue", "vdb": "disk", "vdz": "config.iso"}


@pytest.fixture
def web(host: Host) -> Host:
    image(host, "system")
    host.server(image="system", flavor={**SMALL, "ephemeral": 1, "swap": 8}, networks=[{"bridge": "br0"}])
    return host


def test_there_and_back(web: Host) -> None:
    other = image(web, "tools", 4)
    root = (folder(web) / "disk").stat().st_ino
    seen = web.ensure("server", "web1", {"rescue": {"image": "tools"}}, dry_run=True)
    assert seen.resource and seen.resource["status"] == "RESCUE"
    assert seen.diff == [{"path": "rescue", "old": None, "new": {"image": other}}]
    found = web.ensure("server", "web1", {"rescue": {"image": "tools"}})
    verbs = ["record", "stop", "rescue", "define", "start"]
    assert [s.verb for s in found.steps] == [s.verb for s in seen.steps] == verbs
    assert found.resource and (found.resource["status"], found.resource["power_state"]) == ("RESCUE", "running")
    assert disks(web) == RESCUED
    assert (folder(web) / "rescue.base").read_bytes().startswith(b"tools")
    assert not web.ensure("server", "web1", {"rescue": {"image": "tools"}}).changed
    assert not web.server(flavor={**SMALL, "ephemeral": 1, "swap": 8}).changed, "omitted is untouched"

    back = web.ensure("server", "web1", {"rescue": None})
    assert [step.verb for step in back.steps] == ["record", "stop", "define", "unrescue", "start"]
    assert disks(web) == ORDINARY and back.resource and back.resource["status"] == "ACTIVE"
    assert not list(folder(web).glob("*rescue*")) and (folder(web) / "disk").stat().st_ino == root
    assert not web.ensure("server", "web1", {"rescue": None}).changed


def test_without_an_image_its_own_is_taken(web: Host) -> None:
    found = web.ensure("server", "web1", {"rescue": {}}).resource
    assert found and found["rescue"] == {"image": found["image"]["id"]}
    web.server("blank")
    with pytest.raises(InvalidField, match="rescue.image"):
        web.ensure("server", "blank", {"rescue": {}})


def test_a_rescue_outlives_agent_host_and_image(web: Host) -> None:
    web.ensure("server", "web1", {"rescue": {}})
    web.ensure("image", "system", None)
    web.restart()
    assert (web.show()["status"], disks(web)) == ("RESCUE", RESCUED)
    web.agent.close()
    web.fake.host_reboots()
    (web.root / "state/boot_id").write_text("another")
    web.restart()
    assert (web.show()["status"], web.show()["power_state"], disks(web)) == ("RESCUE", "running", RESCUED)
    web.ensure("server", "web1", {"power": "off"})
    assert (web.show()["status"], web.show()["power_state"]) == ("RESCUE", "off")
    web.ensure("server", "web1", {"rescue": None, "power": "running"})
    assert (web.show()["status"], disks(web)) == ("ACTIVE", ORDINARY)


def test_from_a_cd(web: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is booted first, and the disks keep their names."""
    image(web, "cd")
    document = web.agent.documents.find("image", "cd")
    assert document is not None
    document.state["disk_format"] = document.want["disk_format"] = "iso"
    web.agent.documents.write(document)
    specs: list[DomainSpec] = []
    define = web.fake.define
    monkeypatch.setattr(web.fake, "define", lambda spec: (specs.append(spec), define(spec)))
    web.ensure("server", "web1", {"rescue": {"image": "cd"}})
    assert disks(web) == {"vda": "disk", "sda": "rescue.base", "vdz": "config.iso"}
    assert specs[-1].boot == ("cdrom", "hd") and web.show()["status"] == "RESCUE"
    web.ensure("server", "web1", {"rescue": None})
    assert specs[-1].boot == ("hd", "cdrom") and disks(web) == ORDINARY


@pytest.mark.parametrize(("asked", "allowed"), [
    ({"flavor": {**SMALL, "ram": 128, "ephemeral": 1, "swap": 8}}, {"allow_reboot": True}),
    ({"user_data": "YQ=="}, {"on_immutable": "rebuild"})])
def test_what_waits_until_it_is_unrescued(web: Host, asked: dict[str, Any], allowed: dict[str, Any]) -> None:
    web.ensure("server", "web1", {"rescue": {}})
    with pytest.raises(Conflict, match="Unrescue"):
        web.ensure("server", "web1", asked, **allowed)
    assert web.ensure("server", "web1", {"rescue": None, **asked}, **allowed).changed
    assert web.show()["status"] == "ACTIVE"


def test_a_document_of_an_older_agent_is_unchanged(web: Host) -> None:
    document = web.agent.documents.find("server", "web1")
    assert document is not None
    del document.want["rescue"]
    web.agent.documents.write(document)
    assert not web.ensure("server", "web1", {}).changed
    assert web.ensure("server", "web1", {"rescue": {}}).changed


def test_a_kernel_rescues_nobody(web: Host) -> None:
    image(web, "kernel")
    document = web.agent.documents.find("image", "kernel")
    assert document is not None
    document.state["disk_format"] = document.want["disk_format"] = "aki"
    web.agent.documents.write(document)
    with pytest.raises(InvalidField, match="only a kernel"):
        web.ensure("server", "web1", {"rescue": {"image": "kernel"}})
    with pytest.raises(InvalidField, match="none called 'nowhere'"):
        web.ensure("server", "web1", {"rescue": {"image": "nowhere"}})
    assert web.show()["status"] == "ACTIVE"
