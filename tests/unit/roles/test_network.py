# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role network writes for a cluster of OVN's centrals, and whom others are told of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.northbound import SHARE
from tests.support.roles.agent import play

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/network"
#: Names of centrals with what the inventory says of them.
THREE = {"net1": {"ansible_host": "192.0.2.1", "network_northbound": True, "network_southbound": True},
         "net2": {"network_address": "2001:db8::2"}, "net3": {"ansible_host": "192.0.2.3"}}
SCRIPTS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
needs_ovsdb = pytest.mark.skipif(not shutil.which("ovsdb-tool"), reason="needs ovsdb-tool (package openvswitch-common)")


def told(folder, centrals, tasks, **given):
    """What *tasks* say on net1, with the variables of the role, of a site with these centrals."""
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": {"localhost": {}}, "children": {
        "magnetar_network": {"hosts": centrals}, "magnetar_api": {"hosts": {"localhost": {}}},
        "magnetar_cells": {"hosts": {"localhost": {}}}}}}))
    good, said = play(folder, [
        {"ansible.builtin.include_vars": str(ROLE / "defaults/main.yml")},
        {"ansible.builtin.include_vars": str(ROLE / "vars/main.yml")}, *tasks], "-i", str(inventory),
        ansible_python_interpreter=sys.executable, **given)
    assert good, said
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("centrals", "south", "north", "cards"), [
    (THREE, "ssl:192.0.2.1:6642,ssl:[2001:db8::2]:6642,ssl:192.0.2.3:6642",
     "ssl:192.0.2.1:6641,ssl:[2001:db8::2]:6641,ssl:192.0.2.3:6641",
     "ssl:192.0.2.1:6645,ssl:[2001:db8::2]:6645,ssl:192.0.2.3:6645"),
    ({"net1": {"network_port": 7, "network_southbound": True}}, "ssl:net1:7", "", ""),
    ({"net1": {"network_northbound": True, "network_northbound_port": 8}}, "ssl:net1:6642", "ssl:net1:8", ""),
    ({}, "", "", "")])
def test_whom_hosts_and_control_plane_are_told_of(tmp_path, centrals, south, north, cards):
    said = told(tmp_path, centrals, [
        {"ansible.builtin.include_role": {
            "name": str(ROOT / "roles/common"), "tasks_from": "topology", "public": True}},
        {"ansible.builtin.debug": {
            "msg": "hosts <{{ agent_ovn_remote }}> control plane <{{ common_northbound }}> cards "
                   "<{{ common_northbound_settings.ovn_southbound | default('') }}>"}}],
        common_without_passwords=True)
    assert f"hosts <{south}> control plane <{north}> cards <{cards}>" in said, said


@pytest.mark.slow
def test_the_control_plane_does_not_come_to_the_southbound_database_alone(tmp_path):
    tasks = yaml.safe_load((ROLE / "tasks/configure.yml").read_text())
    ask = next(task for task in tasks if "comes in to both databases" in task["name"])
    good, said = play(tmp_path, [ask], network_southbound=True, network_northbound=False)
    assert not good and "Set network_northbound for the group magnetar_network" in " ".join(said.split()), said


@pytest.mark.slow
def test_the_units_of_a_central(tmp_path):
    told(tmp_path, THREE, [{"ansible.builtin.template": {
        "src": str(ROLE / "templates/central.conf.j2"), "dest": f"{tmp_path}/{{{{ unit }}}}.conf"},
        "loop": "{{ network_units }}", "loop_control": {"loop_var": "unit"},
        "vars": {"inventory_hostname": "net2"}}, {"ansible.builtin.template": {
            "src": str(ROLE / "templates/magnetar-southbound.service.j2"), "dest": f"{tmp_path}/{{{{ relay.unit }}}}"},
            "loop": "{{ network_relays.values() }}", "loop_control": {"loop_var": "relay"}}])
    nb, sb, northd = (" ".join((tmp_path / f"{unit}.conf").read_text().replace("\\\n", " ").split()) for unit in (
        "ovn-ovsdb-server-nb", "ovn-ovsdb-server-sb", "ovn-northd"))
    assert "AssertPathExists=/var/lib/ovn/ovnnb_db.db" in nb and "AssertPathExists=/var/lib/ovn/ovnsb_db.db" in sb
    for said, name, raft, service in ((nb, "nb", 6643, 6641), (sb, "sb", 6644, 6645)):
        assert f"run_{name}_ovsdb" in said
        assert f"--db-{name}-cluster-local-proto=ssl --db-{name}-cluster-local-addr=[2001:db8::2]" in said
        assert f"--db-{name}-cluster-local-port={raft}" in said
        # Members and clients of the clustered databases have certificates of one CA, and hosts none of that.
        assert f"--ovn-{name}-db-ssl-ca-cert=/etc/magnetar-network/northbound/ca.pem" in said
        assert f"--db-{name}-use-remote-in-db=no -- --remote=pssl:{service}:0.0.0.0" in said
        assert "/etc/magnetar-network/ca.pem" not in said
    assert "--ovn-northd-nb-db=ssl:192.0.2.1:6641,ssl:[2001:db8::2]:6641,ssl:192.0.2.3:6641" in northd
    assert "--ovn-northd-sb-db=ssl:192.0.2.1:6645,ssl:[2001:db8::2]:6645,ssl:192.0.2.3:6645" in northd
    assert "stop_northd --ovn-manage-ovsdb=no" in northd
    hosts, control = ((tmp_path / f"magnetar-southbound{more}").read_text() for more in ("", "-control"))
    for said, remote, ca in ((hosts, "db:OVN_Southbound,SB_Global,connections", "/etc/magnetar-network/ca.pem"),
                             (control, "pssl:6645:0.0.0.0", "/etc/magnetar-network/northbound/ca.pem")):
        assert "relay:OVN_Southbound:unix:" in said and f"--remote={remote} " in said and f"--ca-cert={ca} " in said


def sh(name, *words):
    """What a script of the role says."""
    script = SCRIPTS[f"network_{name}"].replace("{{ network_beside }}", SCRIPTS["network_beside"])
    done = subprocess.run(["sh", "-ec", script, "sh", *map(str, words)], check=False,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_ovsdb
@pytest.mark.skipif(not SHARE.exists(), reason="needs the schemas of OVN (package ovn-common)")
def test_databases_become_a_cluster_and_one_again(tmp_path):
    """With what they had; a step that was cut off is done again, and what is done is left alone."""
    file, schema = tmp_path / "nb.db", SHARE / "ovn-nb.ovsschema"
    assert sh("look", file) == "none"
    subprocess.run(["ovsdb-tool", "create", file, schema], check=True)
    subprocess.run(["ovsdb-tool", "transact", file, json.dumps(["OVN_Northbound", {
        "op": "insert", "table": "Logical_Switch", "row": {"name": "kept"}}])], check=True, capture_output=True)
    assert sh("look", file) == "alone"
    (tmp_path / "nb.db.new").write_text("cut off")
    sh("create", file, schema, "ssl:192.0.2.1:6643")
    member, cluster = sh("look", file).split()
    assert member == "member"
    other = tmp_path / "other.db"
    sh("join", other, cluster, "OVN_Northbound", "ssl:192.0.2.2:6643", "ssl:192.0.2.1:6643 ssl:192.0.2.3:6643")
    assert sh("look", other) == f"member {cluster}"
    assert sh("alone", file) == "converted"
    assert sh("look", file) == "alone" and sh("alone", file) == ""
    rows = subprocess.run(["ovsdb-tool", "query", file, json.dumps(["OVN_Northbound", {
        "op": "select", "table": "Logical_Switch", "where": [], "columns": ["name"]}])], check=True,
        capture_output=True, text=True).stdout  # fmt: skip
    assert "kept" in rows
    assert sh("look", tmp_path / "nb.db.member") == f"member {cluster}"
    assert sh("look", tmp_path / "nb.db.alone") == "alone"


@needs_ovsdb
@pytest.mark.skipif(not SHARE.exists(), reason="needs the schemas of OVN (package ovn-common)")
def test_a_second_recovery_keeps_what_the_first_one_put_aside(tmp_path):
    file = tmp_path / "nb.db"
    assert sh("aside", file) == ""
    for number in (1, 2, 3):
        file.write_text(f"lost {number}")
        assert sh("aside", file) == "moved"
    lost = ("nb.db.lost", "nb.db.lost.2", "nb.db.lost.3")
    assert [(tmp_path / name).read_text() for name in lost] == ["lost 1", "lost 2", "lost 3"]
    clusters = []
    for _again in range(2):
        sh("create", file, SHARE / "ovn-nb.ovsschema", "ssl:192.0.2.1:6643")
        clusters.append(sh("look", file))
        assert sh("alone", file) == "converted"
    assert [sh("look", tmp_path / name) for name in ("nb.db.member", "nb.db.member.2")] == clusters
    assert sh("look", tmp_path / "nb.db.alone") == "alone" and not (tmp_path / "nb.db.alone.2").exists()


def test_recovery_stops_everywhere_before_it_acts_anywhere():
    """A host that is cut off sees no leader: what others see keeps it from acting, too."""
    tasks = yaml.safe_load((ROLE / "tasks/recover.yml").read_text())
    acts = next(number for number, task in enumerate(tasks) if "ansible.builtin.systemd_service" in task)
    asks = [task for task in tasks[:acts] if "ansible.builtin.assert" in task]
    assert len(asks) == 3 and all(task.get("any_errors_fatal") for task in asks)


@pytest.mark.slow
@pytest.mark.parametrize(("seen", "words"), [
    ({"net1": ("member a", "member b"), "net2": ("none", "none")}, ""),
    ({"net1": ("alone", "alone"), "net2": ("none", "none")}, ""),
    ({"net1": ("none", "none"), "net2": ("member a", "member b")}, "net1 must have both databases"),
    ({"net1": ("member a", "none"), "net2": ("member a", "member b")}, "net1 must have both databases")])
def test_who_cannot_be_the_survivor(tmp_path, seen, words):
    tasks = yaml.safe_load((ROLE / "tasks/recover.yml").read_text())
    ask = next(task for task in tasks if "All answer" in task["name"])
    state = {name: dict(zip(("northbound", "southbound"), both, strict=True)) for name, both in seen.items()}
    good, said = play(tmp_path, [ask], network_survivor="net1", network_state=state, network_hosts=["localhost"])
    assert good is not bool(words), said
    assert words in " ".join(said.split())
    good, said = play(tmp_path, [ask], network_survivor="net1", network_state=state,
                      network_hosts=["localhost", "net3"])
    assert not good and "net3 of the group magnetar_network cannot be asked" in " ".join(said.split()), said
