# SPDX-License-Identifier: GPL-3.0-or-later
"""Platforms of hosts: which packages the roles install there, and what they do for SELinux and libvirt's daemons."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.roles.agent import play, tasks
from tests.support.roles.release import ROOT, release

pytestmark = pytest.mark.slow

COMMON = ROOT / "roles/common"
DEBIAN = {"distribution": "Debian", "distribution_version": "13.1", "distribution_major_version": "13",
          "os_family": "Debian"}
ROCKY = {"distribution": "Rocky", "distribution_version": "9.6", "distribution_major_version": "9",
         "os_family": "RedHat"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of programs that come before this machine's. Each program made by `program` writes its words to
    the file ``said`` there.
    """
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin")
    return folder


def program(folder: Path, name: str, script: str = "") -> None:
    """Write the shell *script* of a program that notes its words."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> {shlex.quote(str(folder / "said"))}\n{script}\n')
    path.chmod(0o755)


def said(folder: Path) -> list[str]:
    path = folder / "said"
    return path.read_text().splitlines() if path.exists() else []


def on(facts: dict[str, str], *wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks *wanted*, after one that gives the host these facts."""
    return [{"name": "Facts", "ansible.builtin.set_fact": {**facts, "cacheable": True}}, *wanted]


def packages(folder: Path, facts: dict[str, str], *profiles: str) -> tuple[bool, str]:
    """Run the platform part of the role common in check mode."""
    found = yaml.safe_load((COMMON / "tasks/main.yml").read_text())
    variables = yaml.safe_load((COMMON / "vars/main.yml").read_text())
    return play(folder, on(facts, *found), "--check", role_path=str(COMMON), common_profiles=[*profiles], **variables)


def test_packages_of_rocky_linux(tmp_path: Path, programs: Path) -> None:
    """Those that are there are found by rpm, and the others would be installed; Debian's names are not among them."""
    program(programs, "rpm", "echo 'qemu-kvm installed'; echo 'package nftables is not installed'; exit 1")
    good, output = packages(tmp_path, ROCKY, "agent")
    assert good, output
    (asked,) = said(programs)
    assert {"qemu-kvm", "edk2-ovmf", "nftables", "python3.11"} <= {*asked.split()}
    assert not {"ovmf", "tini", "python3-venv"} & {*asked.split()}
    assert "localhost is Rocky 9.6. The roles were not tested on it." in output.replace("\n", " ")
    missing = output.partition("Packages that would be installed")[2]
    assert '"nftables"' in missing and '"qemu-kvm"' not in missing


def test_packages_of_debian(tmp_path: Path, programs: Path) -> None:
    program(programs, "dpkg-query", "echo 'ovmf installed'; exit 1")
    good, output = packages(tmp_path, DEBIAN, "agent")
    assert good, output
    assert "ovmf" in said(programs)[0] and "edk2-ovmf" not in said(programs)[0]
    assert "were not tested" not in output


@pytest.mark.parametrize(("facts", "profile", "message"), [
    (ROCKY, "ovn", "Nobody has listed packages of Rocky for ovn: see"),
    (DEBIAN, "nothing", "Nobody has listed packages of Debian for nothing: see"),
    ({**ROCKY, "distribution_version": "8.10", "distribution_major_version": "8"}, "agent", "and Rocky Linux 9"),
    ({**ROCKY, "distribution": "Fedora"}, "agent", "and Rocky Linux 9"),
])
def test_what_is_refused(tmp_path: Path, programs: Path, facts: dict[str, str], profile: str, message: str) -> None:
    good, output = packages(tmp_path, facts, "agent", profile)
    assert not good
    assert message in " ".join(output.split())


# SELinux ----------------------------------------------------------------------------------------------------------
SERVERS = "/var/lib/magnetar(/.*)?"


def labels(folder: Path, programs: Path, *known: str, enabled: bool = True) -> tuple[list[str], str]:
    """Run the tasks for SELinux where these folders have labels; return the calls of its programs."""
    program(programs, "selinuxenabled", f"exit {0 if enabled else 1}")
    listed = "; ".join(f"echo {shlex.quote(f'{path} all files system_u:object_r:virt_image_t:s0')}" for path in known)
    program(programs, "semanage", f'[ "$2" != --list ] || {{ :; {listed or ":"}; }}')
    program(programs, "restorecon")
    good, output = play(folder, tasks("selinux.yml"), agent_installed={"stat": {"exists": True}})
    assert good, output
    return [line for line in said(programs) if not line.startswith("selinuxenabled") and "--list" not in line], output


def test_folders_get_a_label_once(tmp_path: Path, programs: Path) -> None:
    assert labels(tmp_path, programs)[0] == [f"semanage fcontext --add --type virt_image_t {SERVERS}",
                                             "restorecon -R /var/lib/magnetar"]
    (programs / "said").unlink()
    calls, output = labels(tmp_path, programs, SERVERS)
    assert calls == [] and "changed=0" in output


def test_no_labels_without_selinux(tmp_path: Path, programs: Path) -> None:
    assert labels(tmp_path, programs, enabled=False)[0] == []


def test_daemons_that_libvirtd_replaces() -> None:
    variables = yaml.safe_load((ROOT / "roles/agent/vars/main.yml").read_text())
    matches = re.compile(variables["agent_daemon_units"]).match
    assert all(map(matches, ("virtqemud.socket", "virtqemud-ro.socket", "virtproxyd-admin.socket",
                             "virtnetworkd.service")))
    assert not any(map(matches, ("virtlogd.socket", "virtlockd.socket", "libvirtd.service", "virtqemud.socket.d")))


# Python -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("version", "path"), [((3, 9), "/usr/bin/python3.11"), ((3, 11), "/usr/bin/python3"),
                                               ((3, 13), "/usr/bin/python3")])
def test_the_python_of_the_agent(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], path: str) -> None:
    monkeypatch.setattr(release.sys, "version_info", version)
    assert release.interpreter() == path


@pytest.mark.parametrize("there", [True, False])
def test_the_libvirt_module_is_compiled_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            there: bool) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(release, "run", lambda *words: calls.append([str(word) for word in words]) or "")
    site = tmp_path / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (tmp_path / "requirements").mkdir()
    if there:
        (site / "libvirt.py").touch()
    release.compile_libvirt(tmp_path, ("--no-index", "--find-links", "/srv/wheels"))
    assert len(calls) == (0 if there else 1)
    for words in calls:
        assert {"--require-hashes", "--no-build-isolation", "--no-index"} <= {*words}
        assert Path(words[-1]).read_text().startswith("libvirt-python==")
