# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose memory the CPU encrypts: on what hosts, how many of them, and what they cannot do. The host's CPU is
made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.host import inventory
from magnetar_agent.virt.host.capabilities import UNLIMITED, sev_of
from magnetar_core.errors import Conflict, InvalidField
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import SMALL, Host

PLACE = {"cbitpos": 47, "reduced_phys_bits": 1}
EPYC = {"amd-sev": {"guests": 2, **PLACE}, "amd-sev-es": {"guests": 1, **PLACE}}
HIDDEN = {"mem_encryption": True, "firmware": "uefi"}
ES = {**HIDDEN, "mem_encryption_model": "amd-sev-es"}


def want(hardware: dict[str, Any] = HIDDEN) -> dict[str, Any]:
    return {"flavor": SMALL, "hardware": hardware, "virt_type": "kvm"}


@pytest.fixture
def epyc(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.start()
    host.fake.memory_encryption, host.fake._kvm = EPYC, True
    yield host
    host.agent.close()


@pytest.mark.parametrize(("features", "found"), [
    ("", {}), ('<sev supported="no"/>', {}),
    ('<sev supported="yes"><cbitpos>47</cbitpos><reducedPhysBits>1</reducedPhysBits></sev>',
     {"amd-sev": {"guests": UNLIMITED, **PLACE}}),
    ('<sev supported="yes"><cbitpos>47</cbitpos><reducedPhysBits>1</reducedPhysBits><maxGuests>2</maxGuests>'
     '<maxESGuests>1</maxESGuests></sev>', EPYC),
    ('<sev supported="yes"><cbitpos>47</cbitpos><reducedPhysBits>1</reducedPhysBits><maxGuests>15</maxGuests>'
     '<maxESGuests>0</maxESGuests></sev>', {"amd-sev": {"guests": 15, **PLACE}})])
def test_what_libvirt_tells(features: str, found: dict[str, Any]) -> None:
    root = ET.fromstring(f"<domainCapabilities><features>{features}</features></domainCapabilities>")
    assert sev_of(root) == found


def told(host: Host) -> dict[str, Any]:
    return inventory.host_usage(host.agent.host)


def test_a_server_has_it(epyc: Host) -> None:
    epyc.ensure("server", "web1", want())
    assert epyc.show()["hardware"] == HIDDEN
    root = ET.fromstring(epyc.fake.xml(epyc.show()["id"]))
    assert root.findtext("launchSecurity/policy") == "0x0033"
    assert not epyc.ensure("server", "web1", {"hardware": HIDDEN}).changed
    with pytest.raises(InvalidField, match="cannot be suspended while the memory of the server is encrypted"):
        epyc.ensure("server", "web1", {"power": "suspended"})
    assert {"HW_CPU_X86_AMD_SEV", "HW_CPU_X86_AMD_SEV_ES"} <= set(told(epyc)["traits"])
    assert told(epyc)["resources"]["MEM_ENCRYPTION_CONTEXT"]["total"] == 3
    epyc.fake.disconnect()
    assert told(epyc)["resources"] is None, "a cloud keeps what it was told"


def test_no_more_than_the_cpu_has_keys_for(epyc: Host) -> None:
    for name in ("web1", "web2"):
        epyc.ensure("server", name, want())
    with pytest.raises(Conflict, match="no key left to encrypt .* 2 of 2 are taken for amd-sev, and 2 of 3 in all"):
        epyc.ensure("server", "web3", want())
    epyc.ensure("server", "web3", want(ES))
    epyc.ensure("server", "web2", None)
    epyc.ensure("server", "web2", {"flavor": SMALL, "virt_type": "kvm"})
    epyc.ensure("server", "web4", want())
    object.__setattr__(epyc.agent.host.settings, "num_memory_encrypted_guests", 3)
    with pytest.raises(Conflict, match="no key left"):
        epyc.ensure("server", "web2", {"hardware": ES}, allow_reboot=True)


@pytest.mark.parametrize(("hardware", "why"), [
    ({"mem_encryption": True}, "needs firmware uefi"), ({**HIDDEN, "disk_bus": "ide"}, "needs disk_bus virtio or sata"),
    ({**HIDDEN, "disk_bus": "scsi", "scsi_model": "lsilogic"}, "scsi with scsi_model virtio-scsi"),
    ({**HIDDEN, "vgpus": 1}, "must not be set together with vgpus"),
    ({**HIDDEN, "pmem": "a", "pci_alias": "b:1"}, "must not be set together with pci_alias and pmem"),
    ({"mem_encryption_model": "amd-sev-es"}, "needs mem_encryption")])
def test_what_does_not_go_together(epyc: Host, hardware: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidField, match=why):
        epyc.ensure("server", "web1", want(hardware))


def test_hosts_without(epyc: Host) -> None:
    with pytest.raises(InvalidField, match="cannot be had on machine pc; use machine q35"):
        epyc.ensure("server", "web1", {**want(), "machine": "pc"})
    with pytest.raises(InvalidField, match="which lacks KVM, without which no CPU encrypts"):
        epyc.ensure("server", "web1", {**want(), "virt_type": "qemu"})
    epyc.ensure("server", "web0", want())
    with pytest.raises(InvalidField, match="which lacks KVM, without which no CPU encrypts"):
        epyc.ensure("server", "web0", {"virt_type": "qemu"}, on_immutable="recreate")
    epyc.fake.memory_encryption = {"amd-sev": EPYC["amd-sev"]}
    with pytest.raises(InvalidField, match="which lacks memory encryption amd-sev-es: a CPU of AMD that has it"):
        epyc.ensure("server", "web1", want(ES))
    epyc.fake.memory_encryption = {}
    with pytest.raises(InvalidField, match="which lacks memory encryption amd-sev: "):
        epyc.ensure("server", "web1", want())
    assert "MEM_ENCRYPTION_CONTEXT" not in told(epyc)["resources"]
    assert epyc.agent.host.documents.find("server", "web1") is None


def test_it_moves_cold_only(pair: Pair) -> None:
    for kvm in (pair.one, pair.two):
        kvm.fake.memory_encryption, kvm.fake._kvm = EPYC, True
    id = pair.make(hardware=HIDDEN, virt_type="kvm")
    with pytest.raises(Conflict, match="is encrypted .*no other host could read it"):
        pair.migrate(type="live")
    pair.migrate(type="cold")
    pair.check(id, pair.two, True)
