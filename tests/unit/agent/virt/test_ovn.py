# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs at ports of OVN: plugged in, moved, and refused by what the host lacks."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml

from magnetar_agent.cli import main
from magnetar_agent.host import inventory
from magnetar_agent.host.hypervisor import MigrationParams
from magnetar_agent.host.networks import IntegrationBridge, Nic, Port, tap_name
from magnetar_agent.servers import guest_data
from magnetar_agent.virt.domain.domain import parse_domain_xml, render_device
from magnetar_agent.virt.domain.migrated_xml import target_domain_xml
from magnetar_agent.virt.network import ovn
from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from tests.support.agent.metadata_cloud_init import SCHEMA
from tests.support.agent.pair import WAY, Pair
from tests.support.agent.serving import served
from tests.support.waiting import eventually
from tests.unit.agent.conftest import Host

MAC = "52:54:00:00:00:77"
ONE, TWO = "3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a001", "3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a002"
CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/network_data.yml").read_text(encoding="utf-8"))
SWITCH = "ovs-vswitchd (Open vSwitch) 3.1.0\n"
LACKS = "ovn-controller does not run."


def nics(host: Host) -> list[tuple[str | None, str | None, str | None, int, bool]]:
    """Network, bridge and port of the running guest's NICs, their MTU, and whether cards do checksums."""
    return [(nic.network, nic.bridge, nic.port, nic.mtu, nic.checksums)
            for nic in host.fake.running(host.show()["id"]).nics]


# The guest ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("datapath", "checksums"), [("system", True), ("netdev", False)])
def test_a_port_is_plugged_in_at_the_integration_bridge(host: Host, datapath: str, checksums: bool) -> None:
    host.fake.datapath = datapath
    host.server(networks=[{"port": ONE.upper(), "mac": MAC, "address": "10.9.9.7/24", "told": {"mtu": 1442}}])
    assert nics(host) == [(None, "br-int", ONE, 1442, checksums)]
    id, state = host.show()["id"], host.agent.host.settings.state_dir
    assert [nic.tap for nic in host.fake.running(id).nics] == [tap_name(state, id, MAC)]
    shown = host.show()
    assert shown["networks"][0]["port"] == ONE and shown["addresses"] == {
        ONE: [{"addr": "10.9.9.7", "version": 4, "mac": MAC, "source": "fixed"}]}
    assert not host.server().changed and not host.server(networks=shown["networks"]).changed
    assert inventory.ovn_status(host.agent.host) == {"bridge": "br-int", "datapath": datapath, "chassis": "fake",
                                                     "reason": ""}
    tree = guest_data.guest_metadata_tree(host.agent.host, host.agent.host.documents.find("server", "web1"))
    (link,) = json.loads(tree["openstack/latest/network_data.json"])["links"]
    assert (link["type"], link["vif_id"], link["mtu"]) == ("ovs", ONE, 1442)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_a_guest_is_told_what_its_nic_carries(host: Host, case: dict[str, Any]) -> None:
    nic = {"port": ONE, "mac": MAC, "address": case["address"], "told": case["told"]}
    assert host.server(networks=[nic]).changed and not host.server(networks=[nic]).changed
    tree = guest_data.guest_metadata_tree(host.agent.host, host.agent.host.documents.find("server", "web1"))
    found = json.loads(tree["openstack/latest/network_data.json"])
    jsonschema.validate(found, SCHEMA)
    assert found["links"] == case["links"]
    assert [{name: value for name, value in one.items() if name != "id"} for one in found["networks"]] == case[
        "networks"]


@pytest.mark.parametrize(("vlan", "words"), [
    ({"segmentation_id": 4095}, "segmentation_id"), ({"mac": "x"}, "mac"), ({"address": "x"}, "address"),
    ({"vlans": []}, "vlans")])
def test_what_a_nic_cannot_carry(host: Host, vlan: dict[str, Any], words: str) -> None:
    known = {"segmentation_id": 5, "port_id": TWO, "network_id": TWO, "mac": MAC, **vlan}
    with pytest.raises(InvalidField, match=words):
        host.server(networks=[{"port": ONE, "told": {"vlans": [known]}}])


def test_the_bridge_is_a_setting(tmp_path: Path) -> None:
    found = Host(tmp_path, integration_bridge="br-ovn")
    found.start()
    try:
        found.server(networks=[{"port": ONE}])
        assert [nic[1] for nic in nics(found)] == ["br-ovn"]
    finally:
        found.agent.close()


def test_ports_come_and_go_while_the_guest_runs(host: Host) -> None:
    host.server(networks=[{"bridge": "br0"}])
    done = host.ensure("interface_attachment", f"web1:{MAC}", {"server": "web1", "port": ONE, "mac": MAC})
    assert [step.verb for step in done.steps if step.verb == "plug"] == ["plug"] and done.resource["port"] == ONE
    assert [nic[1:3] for nic in nics(host)] == [("br0", None), ("br-int", ONE)]
    assert not host.ensure("interface_attachment", f"web1:{ONE}", {"server": "web1", "port": ONE}).changed
    host.ensure("interface_attachment", f"web1:{MAC}", {"server": "web1", "port": TWO, "mac": MAC},
                on_immutable="recreate")
    assert [nic[1:3] for nic in nics(host)] == [("br0", None), ("br-int", TWO)]
    assert host.ensure("interface_attachment", f"web1:{TWO}", None).changed
    assert [nic[1:3] for nic in nics(host)] == [("br0", None)]


def test_its_packets_are_left_to_ovn(host: Host) -> None:
    """The filter of the host's bridges has no rule of it; the table is there for what the host itself would take."""
    host.server(networks=[{"port": ONE, "mac": MAC}])
    tap = tap_name(host.agent.host.settings.state_dir, host.show()["id"], MAC)
    eventually(lambda: host.fake.filtered and host.fake.filtered.ports == {Port(tap, MAC, switched=True)})
    assert host.agent.host.port_security_status() == {"ports": 0, "reason": ""}


def test_the_bridge_drops_what_guests_advertise(host: Host) -> None:
    """From the first port on, and again when the agent has begun anew."""
    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    eventually(lambda: host.fake.filtered)
    assert not host.fake.filtered_switch
    host.server(networks=[{"port": ONE, "mac": "52:54:00:00:00:78"}])
    eventually(lambda: host.fake.filtered_switch == "br-int")
    host.fake.filtered_switch = ""
    host.restart()
    eventually(lambda: host.fake.filtered_switch == "br-int")
    host.fake.switch_lacks = "br-int cannot be watched"
    assert host.agent.host.port_security_status() == {"ports": 0, "reason": "br-int cannot be watched"}


# What is refused ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("nic", "words"), [
    ({"port": ONE, "bridge": "br0"}, "either a network, a bridge, a port or a physical network"),
    ({"port": ONE, "network": "lan"}, "either a network, a bridge, a port or a physical network"),
    ({}, "either a network, a bridge, a port or a physical network"),
    ({"port": "lsp1"}, "networks[0].port"),
    ({"port": ONE, "port_security": False}, "networks[0].port_security: is OVN's"),
    ({"port": ONE, "allowed_addresses": ["10.0.0.1"]}, "networks[0].allowed_addresses: is OVN's"),
])
def test_what_cannot_be(host: Host, nic: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField) as refused:
        host.server(networks=[nic])
    assert words in refused.value.message
    assert not host.agent.host.documents.list("server")


def test_a_port_has_one_nic(host: Host) -> None:
    with pytest.raises(InvalidField, match=r"networks\[1\].port: must differ"):
        host.server(networks=[{"port": ONE}, {"port": ONE}])
    host.server(networks=[{"port": ONE}])
    with pytest.raises(Conflict, match=f"networks\\[0\\].port: {ONE} belongs to server 'web1'"):
        host.server("web2", networks=[{"port": ONE}])


def test_what_the_host_lacks_is_said_before_anything_is_changed(host: Host) -> None:
    host.server("there", networks=[{"port": TWO}])
    host.server("plain", networks=[{"bridge": "br0"}])
    host.fake.ovn_lacks = LACKS
    with pytest.raises(Conflict, match=r"networks\[0\].port: host .* cannot plug in ports of OVN: ovn-controller does"):
        host.server(networks=[{"port": ONE}])
    with pytest.raises(Conflict, match="cannot plug in ports of OVN"):
        host.ensure("interface_attachment", f"plain:{ONE}", {"server": "plain", "port": ONE})
    assert len(host.agent.host.documents.list("server")) == 2 and not host.server("there").changed
    # A definition that is written meanwhile is good for either datapath.
    host.server("there", description="written anew")
    assert [nic.checksums for nic in host.fake.domain(host.show("there")["id"]).nics] == [False]
    assert inventory.ovn_status(host.agent.host)["reason"] == LACKS


# Moves --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_server_goes_with_its_port(pair: Pair, kind: str) -> None:
    id = pair.make(networks=[{"port": ONE, "mac": MAC}])
    pair.two.agent.host.settings = type(pair.two.agent.host.settings)(
        **{**vars(pair.two.agent.host.settings), "integration_bridge": "br-two"})
    assert pair.migrate(type=kind) == WAY
    pair.check(id, pair.two)
    (nic,) = pair.two.fake.running(id).nics
    assert (nic.bridge, nic.port, nic.tap) == ("br-two", ONE, tap_name(pair.two.agent.host.settings.state_dir, id, MAC))


def test_a_target_without_ovn_is_refused_before(pair: Pair) -> None:
    id = pair.make(networks=[{"port": ONE}])
    pair.two.fake.ovn_lacks = LACKS
    with pytest.raises(MagnetarError, match="host kvm2 cannot plug in ports of OVN"):
        pair.migrate()
    pair.check(id, pair.one)


def test_a_running_guest_keeps_what_its_cards_can_do(pair: Pair) -> None:
    id = pair.make(networks=[{"port": ONE}])
    pair.two.fake.datapath = "netdev"
    with pytest.raises(Conflict, match="datapath netdev on the target, and by system on the source"):
        pair.migrate(type="live")
    pair.check(id, pair.one)
    pair.migrate(type="cold")
    pair.check(id, pair.two)
    assert [nic.checksums for nic in pair.two.fake.running(id).nics] == [False]


def test_the_running_domain_as_it_will_be_there(tmp_path: Path) -> None:
    """From a bridge to a port and back; what libvirt has noted of the port here does not go along."""
    card = render_device(Nic(MAC, bridge="br-int", port=ONE, tap="here", mtu=1442))
    live = f"<domain><devices>{card}</devices></domain>"
    for plug, port in ((("br-two", ONE), ONE), (("br0", None), None)):
        went = target_domain_xml(live, MigrationParams(
            libvirt=tmp_path, qemu=tmp_path, disks=tmp_path, persistent="<domain/>", folder=(tmp_path, tmp_path),
            nics={MAC: (None, plug[0], "there", plug[1])}))
        (nic,) = parse_domain_xml(went).nics
        assert (nic.bridge, nic.tap, nic.port, nic.mtu) == (plug[0], "there", port, 1442)
        assert len(ET.fromstring(went).findall("devices/interface/virtualport")) == (port is not None)


# What the host says -------------------------------------------------------------------------------------------------
@contextmanager
def speaking(path: Path, result: Any) -> Iterator[None]:
    """Something that answers JSON-RPC at a socket, in two parts: *result*, or what it has for the method."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()

        def answer() -> None:
            while True:
                try:
                    line, _peer = door.accept()
                except OSError:
                    return
                with line:
                    method = json.loads(line.recv(65536))["method"]
                    given = result[method] if isinstance(result, dict) and method in result else result
                    said = json.dumps({"id": 0, "result": given, "error": None}).encode()
                    line.sendall(said[:9])
                    line.sendall(said[9:])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            path.unlink()


def rows(*bridges: str) -> list[dict[str, Any]]:
    return [{"rows": [{"datapath_type": one} for one in bridges]},
            {"rows": [{"external_ids": ["map", [["system-id", "kvm1"]]]}]}]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("installed")
def test_each_thing_that_lacks_has_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # names of sockets are short
        _each_lacks(Path(folder), monkeypatch)


def _each_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, control = tmp_path / "openvswitch/db.sock", tmp_path / "ovn/ovn-controller.7.ctl"
    switch = tmp_path / "openvswitch/ovs-vswitchd.5.ctl"
    assert "Open vSwitch does not run" in ovn.inspect_integration_bridge("br-int", tmp_path).reason
    with speaking(database, rows()):
        assert "no bridge br-int" in ovn.inspect_integration_bridge("br-int", tmp_path).reason
    with speaking(database, {"no": "rows"}):
        assert "does not answer" in ovn.inspect_integration_bridge("br-int", tmp_path).reason
    with speaking(database, rows("netdev")):
        assert "ovs-vswitchd does not run" in ovn.inspect_integration_bridge("br-int", tmp_path).reason
    with speaking(database, rows("netdev")), speaking(switch, SWITCH):
        assert "ovn-controller does not run" in ovn.inspect_integration_bridge("br-int", tmp_path).reason
        (tmp_path / "ovn").mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:  # of one that was killed
            dead.bind(str(tmp_path / "ovn/ovn-controller.3.ctl"))
        assert "ovn-controller does not run" in ovn.inspect_integration_bridge("br-int", tmp_path).reason
        with speaking(control, "not connected\n"):
            assert "no connection to the southbound database (not connected)" in ovn.inspect_integration_bridge(
                "br-int", tmp_path).reason
        with speaking(control, "connected\n"):
            assert ovn.inspect_integration_bridge("br-int", tmp_path) == IntegrationBridge("br-int", "netdev", "kvm1")
    with speaking(database, rows("")), speaking(switch, SWITCH), speaking(control, "connected"):
        assert ovn.inspect_integration_bridge("br-int", tmp_path) == IntegrationBridge("br-int", "system", "kvm1")
    for version, words in (("22.06.1", "OVN must be 22.09 or newer"), ("21.12.0", "ovn-controller 21.12 runs"),
                           ("22.09.0", ""), ("23.03.1", "")):
        told = {"connection-status": "connected", "version": f"ovn-controller {version}\nOpen vSwitch Library 3.1.0\n"}
        with speaking(database, rows("")), speaking(switch, SWITCH), speaking(control, told):
            reason = ovn.inspect_integration_bridge("br-int", tmp_path).reason
            assert words in reason if words else not reason
    for version, words in (("2.13.8", "ovs-vswitchd (Open vSwitch) 2.13 runs, and Open vSwitch must be 2.17 or newer"),
                           ("2.9.0", "must be 2.17"), ("2.17.9", ""), ("3.1.0", "")):
        told = f"ovs-vswitchd (Open vSwitch) {version}\n"
        with speaking(database, rows("")), speaking(switch, told), speaking(control, "connected"):
            reason = ovn.inspect_integration_bridge("br-int", tmp_path).reason
            assert words in reason if words else not reason
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "Install Open vSwitch" in ovn.inspect_integration_bridge("br-int", tmp_path).reason


def test_host_check(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        with served(host.agent, door):
            check = ["host", "check", "--socket", str(path)]
            assert main([*check, "--need", "ovn"]) == 0
            assert "ovn: ok - br-int, datapath system, fake\n" in capsys.readouterr().out
            host.fake.ovn_lacks = LACKS
            assert main(check) == 0
            assert f"ovn: no - {LACKS}\n" in capsys.readouterr().out
            assert main([*check, "--need", "ovn"]) == 1
            assert f"ovn: LACKS - {LACKS}\n" in capsys.readouterr().out
            assert main([*check, "--need", "uefi", "--need", "secure_boot", "--need", "tpm"]) == 0
            host.fake.secure_boot = False
            assert main([*check, "--need", "secure_boot"]) == 1
            told = capsys.readouterr().out
            assert "uefi: ok\n" in told and "secure_boot: LACKS - the host lacks a UEFI firmware with secure" in told
            host.fake.disconnect()
            assert main(check) == 1
            assert "libvirt: LACKS" in capsys.readouterr().out
            host.fake.reconnect()
    assert Path(path).exists()
