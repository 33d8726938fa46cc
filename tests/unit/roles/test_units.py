# SPDX-License-Identifier: GPL-3.0-or-later
"""The units of the roles and of ./quickstart: how much each may, and as whom it runs."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
import yaml

from magnetar_core.http import connections

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import control_plane  # noqa: E402
import machine  # noqa: E402

#: As systemd-analyze has it, times ten.
MOST = 35
TEMPLATES = {path.name.removesuffix(".j2"): path for path in sorted(ROOT.glob("roles/*/templates/*.service.j2"))}
SERVE = control_plane.UNIT.name


def defaults(role):
    return {name: value for file in ("defaults", "vars") if (path := ROOT / f"roles/{role}/{file}/main.yml").exists()
            for name, value in (yaml.safe_load(path.read_text()) or {}).items()}


def rendered(name):
    """A unit as the role writes it, with what operators may add."""
    if name == SERVE:
        return control_plane.control_plane_unit()
    role = TEMPLATES[name].parts[-3]
    given = {**defaults("common"), **defaults(role), "agent_unit_write_paths": "/var/lib/magnetar",
             "agent_unit_hides_modules": "yes",
             f"{role}_write_paths": ["/srv/images"], "relay": defaults("network")["network_relays"]["hosts"]}
    return jinja2.Template(TEMPLATES[name].read_text(), undefined=jinja2.StrictUndefined,
                           keep_trailing_newline=True).render(given)


def lines(name):
    return re.findall(r"^([A-Z]\w+)=(.*)$", rendered(name), re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("name", [*TEMPLATES, SERVE])
def test_a_unit_is_confined(name, tmp_path):
    (tmp_path / name).write_text(rendered(name))
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={MOST}", "--no-pager",
                           tmp_path / name], check=False, capture_output=True, text=True,
                          env={**os.environ, "SYSTEMD_COLORS": "0"})
    said = done.stdout.strip().splitlines() or [done.stderr]
    print(said[-1])
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_are_looked_at():
    names = ("agent", "api", "conductor", "firewall", "metadata", "southbound")
    assert set(TEMPLATES) == {f"magnetar-{name}.service" for name in names}


@pytest.mark.parametrize("name", [*(f"magnetar-{one}.service" for one in ("agent", "api", "conductor")), SERVE])
def test_who_has_many_connections_may(name):
    assert dict(lines(name))["LimitNOFILE"] == str(connections.OPEN)


def test_serve_has_the_sandbox_of_the_api():
    """But for paths that an operator of the API adds; it has the agent's socket and its own folder besides."""
    api, serve = lines("magnetar-api.service"), lines(SERVE)
    begin = next(at for at, (word, _value) in enumerate(api) if word == "CapabilityBoundingSet")
    sandbox = [line for line in api[begin:] if line[0] not in ("ReadWritePaths", "WantedBy")]
    assert len(sandbox) > 15 and sandbox == [line for line in serve if line in sandbox]
    assert {("User", "magnetar-serve"), ("Group", "magnetar-serve"), ("SupplementaryGroups", "magnetar"),
            ("StateDirectory", "magnetar/control"), ("StateDirectoryMode", "0700"), ("UMask", "0077")} <= set(serve)
    assert "{" not in control_plane.control_plane_unit() and "ReadWritePaths" not in dict(serve)


@pytest.mark.parametrize("name", [*TEMPLATES, SERVE])
def test_what_a_unit_makes_is_its_user_s_alone(name):
    assert dict(lines(name))["UMask"] == "0077"


@pytest.mark.parametrize("name", ["magnetar-api.service", "magnetar-conductor.service", SERVE])
def test_the_control_plane_is_not_root(name):
    assert dict(lines(name))["User"].startswith("magnetar")


def test_what_speaks_with_guests_is_nobody_and_has_no_network_of_the_host():
    found = dict(lines("magnetar-metadata.service"))
    assert found["DynamicUser"] == found["PrivateNetwork"] == found["NoNewPrivileges"] == "yes"
    assert found["CapabilityBoundingSet"] == "" and found["PartOf"] == "magnetar-agent.service"
    assert dict(lines("magnetar-agent.service"))["RestrictNamespaces"] == "yes"
    socket = (ROOT / "roles/agent/templates/magnetar-metadata.socket.j2").read_text()
    assert "SocketMode=0600" in socket and "SocketUser" not in socket and "SocketGroup" not in socket
    path = re.search("ListenStream=(.*)", socket)[1]
    assert f"MAGNETAR_METADATA_SOCKET={path}" in rendered("magnetar-agent.service")


# Where systemd does not run ---------------------------------------------------------------------------------------
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user")


@as_root
def test_serve_without_systemd(monkeypatch):
    user = pwd.getpwnam("nobody")
    monkeypatch.setattr(control_plane, "AGENT_GROUP", "daemon")
    done = subprocess.run([*control_plane._as(user), "cat", "/proc/self/status", "/proc/self/environ"], check=True,
                          capture_output=True, text=True, env={**os.environ, "SECRET": "of root"})
    found = dict(re.findall(r"^(\w+):\s*(.*?)\s*$", done.stdout, re.MULTILINE))
    assert found["Uid"].split() == [str(user.pw_uid)] * 4 and found["Gid"].split() == [str(user.pw_gid)] * 4
    assert found["Groups"] == "1" and found["NoNewPrivs"] == "1" and "SECRET" not in done.stdout
    assert {found[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}


@as_root
def test_what_root_has_made_is_handed_over(tmp_path, monkeypatch):
    """An installation from before: root's process has ended by then, and a link leads nowhere."""
    folder, outside, ended = tmp_path / "state/control", tmp_path / "outside", []
    (folder / "images").mkdir(parents=True)
    (folder / "images/one").write_text("content")
    (folder / "api.db").write_text("rows")
    outside.write_text("root's")
    (folder / "link").symlink_to(outside)
    folder.chmod(0o755)
    monkeypatch.setattr(control_plane, "FOLDER", folder)
    monkeypatch.setattr(machine, "stop_process", lambda name: ended.append((name, folder.stat().st_uid)))
    monkeypatch.setattr(machine, "remove_service", lambda path: ended.append((path.name, folder.stat().st_uid)))
    user = pwd.getpwnam("nobody")
    assert control_plane._handed_over(user)
    assert ended == [(SERVE, 0), ("control", 0)]
    seen = {path.name: (path.lstat().st_uid, oct(path.lstat().st_mode & 0o777)) for path in
            (folder, *folder.rglob("*")) if not path.is_symlink()}
    assert seen == {"control": (user.pw_uid, "0o700"), "images": (user.pw_uid, "0o700"),
                    "one": (user.pw_uid, "0o600"), "api.db": (user.pw_uid, "0o600")}
    assert outside.stat().st_uid == 0 and outside.stat().st_mode & 0o044
    assert not control_plane._handed_over(user) and len(ended) == 2
