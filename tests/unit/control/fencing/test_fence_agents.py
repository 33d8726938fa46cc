# SPDX-License-Identifier: GPL-3.0-or-later
"""Fence agents are asked by their API, and believed only when they confirm what they did."""

import os
import time
from pathlib import Path

import pytest

from magnetar_control.fencing.fence_agents import host_power, switch_host
from magnetar_control.fencing.fence_devices import fence_devices
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import FencingFailed, InvalidSettings
from tests.support.waiting import eventually


@pytest.fixture
def device(agent):
    def of(**more):
        return fence_devices(make_settings(agent.settings("kvm1", **more)))["kvm1"]
    return of


def test_a_host_is_switched_and_asked(agent, device):
    switch_host(device(), "off")
    assert (agent.power("kvm1"), host_power(device())) == ("off", "off")
    switch_host(device(), "on")
    assert (agent.power("kvm1"), host_power(device())) == ("on", "on")
    assert agent.actions("kvm1") == ["off", "status", "status", "on", "status", "status"]
    assert agent.asked[0] == {"ip": "192.0.2.7", "plug": "kvm1", "action": "off"}


def test_a_failure_that_passes_is_tried_again(agent, device):
    agent.behave("fails once")
    switch_host(device(), "off")
    assert agent.power("kvm1") == "off"


@pytest.mark.parametrize(("mode", "message", "runs"), [
    ("refuses", r"fence_fake failed for host kvm1 \(action (off|status), exit status 1\): Unable to connect/login to "
                r"fencing device at 192.0.2.7 with None. Check address, plug and secrets", 6),
    ("on for ever", "Host kvm1 is still on: fence_fake was asked to switch it off.*right outlet", 6),
    ("lies", "fence_fake contradicts itself about host kvm1: its exit status says off, and it prints: Status: ON", 6),
    ("garbage", r"exit status 77\): \.\.\..*garbage", 6)])
def test_an_agent_that_does_not_confirm(agent, device, mode, message, runs):
    agent.behave(mode)
    with pytest.raises(FencingFailed, match=message) as failed:
        switch_host(device(), "off")
    assert len(agent.asked) == runs
    assert failed.value.message.isprintable() and len(failed.value.message) < 1000


@pytest.mark.parametrize("mode", ["hangs", "hangs in status", "endless"])
def test_an_agent_that_hangs_is_killed_with_its_children(agent, device, mode):
    agent.behave(mode)
    began = time.monotonic()
    with pytest.raises(FencingFailed, match="fence_fake did not end within 1.5 seconds for host kvm1.*was killed"):
        switch_host(device(fence_timeout=1.5, fence_tries=1), "off")
    assert time.monotonic() - began < 60
    if mode != "endless":
        child = int((agent.folder / "child").read_text())
        eventually(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text())


def test_an_agent_that_is_not_there(agent, device):
    (agent.folder / "fence_fake").unlink()
    with pytest.raises(FencingFailed, match="not installed on this machine: there is no .*Install the package fence-a"):
        switch_host(device(), "off")


def test_an_agent_that_cannot_be_run(agent, device):
    (agent.folder / "fence_fake").write_text("#!/nowhere/python\n")
    with pytest.raises(FencingFailed, match="fence_fake"):
        switch_host(device(), "off")
    (agent.folder / "fence_fake").write_text("no program")
    with pytest.raises(FencingFailed, match="cannot be run: Exec format error"):
        switch_host(device(), "off")


class TestSecrets:
    """Secrets come from a file that nobody else can read, and are not in any message."""

    @pytest.fixture
    def file(self, tmp_path):
        file = tmp_path / "secrets"
        file.write_text("# of the management board\nusername=admin\n\npassword=Geheim=1 \n")
        file.chmod(0o600)
        return file

    def device(self, agent, file):
        settings = agent.settings("kvm1")
        settings["fencing"]["kvm1"]["secrets_file"] = str(file)
        return fence_devices(make_settings({**settings, "fence_tries": 1}))["kvm1"]

    def test_the_agent_gets_them(self, agent, file):
        switch_host(self.device(agent, file), "off")
        assert agent.asked[0]["password"] == "Geheim=1 "
        assert agent.asked[0]["username"] == "admin"

    def test_no_message_has_them(self, agent, file):
        agent.behave("refuses")
        with pytest.raises(FencingFailed, match=r"192.0.2.7 with \.\.\.") as failed:
            switch_host(self.device(agent, file), "off")
        assert "Geheim" not in failed.value.message

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
    def test_others_may_not_read_them(self, agent, file, mode):
        file.chmod(mode)
        with pytest.raises(InvalidSettings, match=f"secrets_file {file} of kvm1 has mode {mode:04o}.*chmod 600"):
            switch_host(self.device(agent, file), "off")
        assert not agent.asked

    @pytest.mark.parametrize(("text", "message"), [
        (b"password\n", "line 1 must be NAME=VALUE"), (b"\naction=off\n", "line 2 is set by Magnetar"),
        (b"pass word=x\n", "line 1 must have the name of a parameter"), (b"\xff=1\n", "must be text in UTF-8"),
        (b"#" * 20000, "must have at most 16384 bytes")])
    def test_a_malformed_file(self, agent, file, text, message):
        file.write_bytes(text)
        with pytest.raises(InvalidSettings, match=message):
            switch_host(self.device(agent, file), "off")

    def test_a_missing_file_and_a_folder(self, agent, tmp_path):
        with pytest.raises(InvalidSettings, match="cannot be read: No such file"):
            switch_host(self.device(agent, tmp_path / "none"), "off")
        os.mkfifo(tmp_path / "pipe", 0o600)
        with pytest.raises(InvalidSettings, match="must be a file of root or of the service's user"):
            switch_host(self.device(agent, tmp_path / "pipe"), "off")


@pytest.mark.parametrize(("entry", "message"), [
    (None, "kvm1 must have the keys agent, parameters, secrets_file"),
    ({"agnt": "fence_ipmilan"}, "kvm1 has the key 'agnt'; permitted are agent"),
    ({}, "agent of kvm1 must be the name of a fence agent such as fence_ipmilan, and is None"),
    ({"agent": "/bin/sh"}, "agent of kvm1 must be the name"), ({"agent": "fence_x/../sh"}, "must be the name"),
    ({"agent": "fence_x", "parameters": ["ip"]}, "parameters of kvm1 must be names and values"),
    ({"agent": "fence_x", "parameters": {"password": "x"}}, "parameter password of kvm1 is a secret: write it as pass"),
    ({"agent": "fence_x", "parameters": {"snmp_priv_passwd": "x"}}, "is a secret"),
    ({"agent": "fence_x", "parameters": {"action": "on"}}, "parameter 'action' of kvm1 is set by Magnetar"),
    ({"agent": "fence_x", "parameters": {"ip": "a\nb"}}, "parameter ip of kvm1 must be one line"),
    ({"agent": "fence_x", "parameters": {"ip": None}}, "parameter ip of kvm1 must be one line"),
    ({"agent": "fence_x", "parameters": {"a b": 1}}, "must have the name of a parameter"),
    ({"agent": "fence_x", "secrets_file": "secrets"}, "secrets_file of kvm1 must be an absolute path")])
def test_settings_that_are_refused(entry, message):
    with pytest.raises(InvalidSettings, match=message):
        fence_devices(make_settings({"fencing": {"kvm1": entry}}))


def test_two_hosts_have_two_devices():
    entry = {"agent": "fence_apc", "parameters": {"ip": "192.0.2.1", "plug": 3, "ssl": True, "password_script": "/x"}}
    with pytest.raises(InvalidSettings, match="kvm1 and kvm2 have the same device"):
        fence_devices(make_settings({"fencing": {"kvm1": entry, "kvm2": entry}}))
    device = fence_devices(make_settings({"fencing": {"kvm1": entry}}))["kvm1"]
    assert device.parameters == {"ip": "192.0.2.1", "plug": "3", "ssl": "1", "password_script": "/x"}
    assert str(device.program) == "/usr/sbin/fence_apc"
