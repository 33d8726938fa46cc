# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of the role agent that need no host: they run here, a few at a time, on folders of the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from magnetar_agent.reconcile.documents import Document, Documents
from magnetar_agent.settings import AgentSettings
from magnetar_core.kinds import Volume, VolumeExport
from tests.support.agent.pki import Pki
from tests.support.roles.agent import ROLE, play, tasks

pytestmark = pytest.mark.slow

IDS = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
REFUSAL = ("Volumes that servers of other hosts use, or that would be removed", "What is known of them",
           "Refuse while there are any of ours")  # fmt: skip


# Uninstall --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("purge", "here", "left"), [
    (False, ["volume_export", "volume"], "a volume of web1 on another host"),
    (True, ["volume_export", "volume"], "data, a volume of web1 on another host"),
    (True, ["volume"], "data"),
    (False, ["volume"], None),
    (True, [], None),
])
def test_uninstall_is_refused_while_others_use_volumes(tmp_path, purge, here, left):
    state = tmp_path / "state"
    documents, (server, volume) = Documents(state), IDS
    if "volume" in here:
        documents.write(Document(Volume.noun, volume, "data", {**Volume.defaults(), "name": "data", "size": 1}))
    if "volume_export" in here:
        documents.write(Document(VolumeExport.noun, server, f"{server}:{volume}", {
            **VolumeExport.defaults(), "server": server, "server_name": "web1", "volume": volume, "peers": ["kvm2"]}))
    good, said = play(tmp_path, tasks("uninstall.yml", *REFUSAL), agent_purge=purge, agent_networks={"files": []},
                      agent_domains={"skipped": True}, agent_settings={"state_dir": str(state)})
    assert good is (left is None), said
    assert left is None or f"localhost has servers, networks or volumes: {left}. They," in said


def test_uninstall_of_what_never_had_an_agent(tmp_path):
    good, said = play(tmp_path, tasks("uninstall.yml", *REFUSAL), agent_purge=True, agent_networks={"files": []},
                      agent_domains={"skipped": True}, agent_settings={"state_dir": str(tmp_path / "nowhere")})
    assert good, said


# Drain ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("cloud", "allowed", "good"), [(0, False, True), (2, False, False), (2, True, True)])
def test_servers_of_a_cloud_are_not_moved_behind_its_back(tmp_path, cloud, allowed, good):
    (block,) = tasks("drain.yml")
    asked = [task for task in block["block"] if task["name"] == "Servers of a cloud are moved by the cloud"]
    went, said = play(tmp_path, asked, "--check", agent_drain_cloud=allowed,
                      agent_drain_host={"hosts": [{"servers": 3, "cloud_servers": cloud}]})
    assert asked and went is good, said
    assert good or "2 of the 3 servers of localhost belong to a cloud" in said


# Given certificates -----------------------------------------------------------------------------------------------
@pytest.fixture
def given(tmp_path):
    """Variables for agent_tls files."""
    pki = Pki(tmp_path / "given")
    cert, key = pki.issue("kvm1")
    return {"agent_tls": "files", "agent_tls_cert": str(cert), "agent_tls_key": str(key),
            "agent_tls_client_ca": str(pki.ca), "agent_tls_dir": str(tmp_path / "tls")}


def test_given_certificates_are_put_in_place(tmp_path, given):
    """The agent takes the settings that go with them, and a second run changes nothing."""
    settings = [{"name": "Settings", "ansible.builtin.template": {
        "src": str(ROLE / "templates/agent.yml.j2"), "dest": str(tmp_path / "agent.yml"), "mode": "0600"}}]
    wanted = [*tasks("configure.yml", "Files with certificates are named"), *tasks("tls.yml"), *settings]
    good, said = play(tmp_path, wanted, **given)
    assert good and "it is restarted" in said, said
    assert "PRIVATE KEY" not in said
    folder = tmp_path / "tls"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name, source, mode in (("agent.pem", "cert", 0o644), ("agent.key", "key", 0o600),
                               ("ca.pem", "client_ca", 0o644)):  # fmt: skip
        assert (folder / name).read_bytes() == Path(given[f"agent_tls_{source}"]).read_bytes()
        assert (folder / name).stat().st_mode & 0o777 == mode
    found = yaml.safe_load((tmp_path / "agent.yml").read_text())
    assert (found["tls_cert"], found["tls_key"], found["tls_client_ca"]) == tuple(
        str(folder / name) for name in ("agent.pem", "agent.key", "ca.pem"))
    assert (found["listen"], found["client_certs"]) == ("0.0.0.0:6553", {"admin": "operate"})
    assert AgentSettings(**{**found, **{name: Path(found[name]) for name in ("tls_cert", "tls_key", "tls_client_ca")}})
    good, said = play(tmp_path, wanted, **given)
    assert good and "changed=0" in said, said


@pytest.mark.parametrize("lacks", ["agent_tls_cert", "agent_tls_key", "agent_tls_client_ca"])
def test_certificates_that_are_not_named(tmp_path, given, lacks):
    good, said = play(tmp_path, tasks("configure.yml", "Files with certificates are named"), **{**given, lacks: ""})
    assert not good and "must all name files on the controller" in said


def test_a_certificate_that_is_not_there(tmp_path, given):
    good, said = play(tmp_path, tasks("tls.yml"), **{**given, "agent_tls_key": str(tmp_path / "none.key")})
    assert not good and "none.key" in said
    assert not (tmp_path / "tls/agent.key").exists()


# Upgrade ----------------------------------------------------------------------------------------------------------
VIRSH = """#!/bin/sh
# What libvirt says: $1 -q -c URI, then what is asked.
shift 3
case "$*" in
  "list --all") cat {folder}/after ;;
  domstate*stopped) echo "shut off (shutdown)" ;;
  domstate*moved) echo "shut off (migrated)" ;;
  domstate*) echo "error: failed to get domain" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(("after", "fallen"), [
    ("1 stays running", None),
    ("1 stays running\n - moved shut off", None),
    ("1 stays running\n - gone shut off", None),
    ("1 stays running\n - stopped shut off", "stopped is shut off (shutdown)"),
])
def test_upgrade_looks_after_guests(tmp_path, monkeypatch, after, fallen):
    (tmp_path / "after").write_text(after)
    virsh = tmp_path / "virsh"
    virsh.write_text(VIRSH.format(folder=tmp_path))
    virsh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = ["1 stays running", *(f"{at} {name} running" for at, name in enumerate(("moved", "gone", "stopped"), 2))]
    good, said = play(tmp_path, tasks("upgrade.yml", "Guests that are there now", "Why guests do not run as before",
                                      "They run as before"),
                      agent_settings={}, agent_guests_before={"stdout_lines": before})
    assert good is (fallen is None), said
    assert fallen is None or f"do not run as before: {fallen}." in said
