# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin guest: ansible-playbook for real, over an agent whose guest runs programs of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from magnetar_core.errors import GuestRefused
from magnetar_core.http.client import Client
from magnetar_core.http.guest_commands import PIECE
from tests.support.agent.guest_programs import LocalGuest
from tests.support.modules.playbook import run_playbook

pytestmark = pytest.mark.slow


@pytest.fixture
def guest(agent, tmp_path):
    """The guest of a running server web1, with a guest agent."""
    with (tmp_path / "disk.raw").open("wb") as stream:
        stream.truncate(1 << 20)
    with Client(agent.endpoint) as client:
        client.ensure("image", "debian", {"source": {"path": str(tmp_path / "disk.raw")}})
        made = client.ensure("server", "web1", {"flavor": {"vcpus": 1, "ram": 64}, "image": "debian"})["resource"]
    agent.hypervisor.talking.add(made["id"])
    (tmp_path / "guest").mkdir()
    guest = LocalGuest(tmp_path / "guest")
    agent.hypervisor.answer_guest = guest
    guest.id = made["id"]
    return guest


@pytest.fixture
def play(agent, guest, tmp_path):
    """``play(*tasks, code=0, **variables)``: the results of the tasks on the host guest1, over the connection."""
    def run(*tasks, code=0, **variables):
        done = run_playbook(tmp_path, "guest1", {
            "ansible_connection": "magnetar.compute.guest", "magnetar_endpoint": agent.endpoint,
            "magnetar_server": "web1", "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(tmp_path / "remote"), **variables}, *tasks)
        run.said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == code, done.stdout + done.stderr

    return run


def test_modules_work(play, guest, tmp_path):
    """Modules with and without pipelining, files in both directions, other users, jobs in the background."""
    (tmp_path / "large").write_bytes(bytes(range(256)) * (PIECE // 100))
    (tmp_path / "page.j2").write_text("{{ ansible_facts.kernel }} of {{ inventory_hostname }}\n")
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    checks = ["ran.stdout == 'hello world'", "ran.changed", "failed.rc == 3", "failed.stderr == 'no'",
              "copied.changed", "not again.changed", "templated.changed", "who.stdout == 'nobody'",
              "me.stdout == 'root'", "later.finished", "pong.ping == 'pong'", "raw.stdout_lines == ['raw']"]
    play({"ansible.builtin.setup": {"gather_subset": ["!all", "min"]}},
         {"ansible.builtin.command": "echo hello world", "register": "ran"},
         {"ansible.builtin.shell": "echo no >&2; exit 3", "register": "failed", "ignore_errors": True},
         {"ansible.builtin.copy": {"src": str(tmp_path / "large"), "dest": f"{tmp_path}/copy"}, "register": "copied"},
         {"ansible.builtin.copy": {"src": str(tmp_path / "large"), "dest": f"{tmp_path}/copy"}, "register": "again"},
         {"ansible.builtin.template": {"src": str(tmp_path / "page.j2"), "dest": f"{tmp_path}/page"},
          "register": "templated"},
         {"ansible.builtin.fetch": {"src": f"{tmp_path}/copy", "dest": f"{tmp_path}/back", "flat": True}},
         {"ansible.builtin.command": "id -un", "register": "me", "vars": {"ansible_pipelining": False}},
         {"ansible.builtin.command": "id -un", "become": True, "become_user": "nobody", "become_method": "su",
          "register": "who", "vars": {"ansible_become_flags": "-s /bin/sh"}},
         {"ansible.builtin.command": "sleep 1", "async": 60, "poll": 1, "register": "later"},
         {"ansible.builtin.ping": {}, "register": "pong"},
         {"ansible.builtin.raw": "echo raw", "register": "raw"},
         {"ansible.builtin.meta": "reset_connection"},
         {"ansible.builtin.wait_for_connection": {"timeout": 60}},
         {"ansible.builtin.assert": {"that": checks}})
    content = (tmp_path / "large").read_bytes()
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "back").read_bytes() == content
    assert (tmp_path / "page").read_text().endswith(" of guest1\n")
    assert guest.open_files == 0 and not list((tmp_path / "remote").glob("ansible-tmp*"))


def test_unreachable_guests(play, agent, guest):
    """What does not answer is unreachable, with the reason and what to do."""
    guest.disabled = {"guest-exec"}
    play({"ansible.builtin.command": "true"}, code=4)
    assert "UNREACHABLE" in play.said and "BLOCK_RPCS" not in play.said and "/etc/sysconfig/qemu-ga" in play.said
    guest.disabled = set()
    agent.hypervisor.talking.clear()
    play({"ansible.builtin.command": "true"}, code=4)
    assert "Install qemu-guest-agent in the guest" in play.said
    play({"ansible.builtin.command": "true"}, code=4, magnetar_server="web9")
    assert "There is no server 'web9' on this host" in play.said
    play({"ansible.builtin.command": "true"}, code=4, magnetar_endpoint="ftp://host")
    assert "unix:///path, https://host" in play.said


def test_a_frozen_guest_is_asked_again(play, agent, guest):
    agent.hypervisor.fail_next("ask_guest_agent", GuestRefused("guest-exec has been disabled: frozen"))
    play({"ansible.builtin.raw": "echo thawed"})


def test_commands_with_much_output(play, guest, tmp_path):
    before = {*Path("/tmp").glob(".ansible-*put-*")}
    play({"ansible.builtin.raw": "head -c 2000000 /dev/zero | tr '\\0' x"})
    assert "x" * 1000 not in play.said
    play({"ansible.builtin.raw": "head -c 3000000 /dev/zero"}, code=2)
    assert "3000000 bytes of output" in play.said
    play({"ansible.builtin.raw": "echo alone; exit 7"}, code=2)
    assert '"rc": 7' in play.said and "alone" in play.said
    assert {*Path("/tmp").glob(".ansible-*put-*")} <= before


def test_commands_that_take_too_long(play, guest):
    play({"ansible.builtin.raw": "sleep 30"}, code=2, ansible_guest_command_timeout=1)
    assert "has not ended within 1 s" in play.said
