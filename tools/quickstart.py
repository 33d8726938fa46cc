# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets up this machine as a host and boots two real servers by a playbook. `--down` removes what it made."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import machine

GUEST = machine.CACHE / "guest"
KEY = machine.CACHE / "quickstart-key"


NEXT = f"""
Two servers run on this machine. What to try next:

  magnetar --help                                             the agent's command
  curl --unix-socket {machine.SOCKET} http://localhost/v1/server
  virsh -c qemu:///system list                                the domains behind the servers
  tail -f /var/lib/magnetar/servers/*/console.log             what the guests say

  source .venv/bin/activate; export ANSIBLE_COLLECTIONS_PATH=$PWD/.cache
  ansible-doc magnetar.compute.server                         every option, with examples
  ansible localhost -m magnetar.compute.server_info           what runs
  ansible localhost -m magnetar.compute.server -a 'name=quick-1 state=paused' --check --diff

  ./quickstart --down                                         remove all of it
"""


def play(name: str) -> None:
    """Run a playbook with the development environment."""
    words = [machine.VENV / "bin/ansible-playbook", machine.ROOT / "playbooks" / name,
             "-e", f"guest_disk={GUEST / 'disk.qcow2'}", "-e", f"public_key_file={KEY}.pub"]  # fmt: skip
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(machine.CACHE), "ANSIBLE_LOCALHOST_WARNING": "false",
                   "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false", "LC_ALL": "C.UTF-8"}
    with machine.step(f"playbooks/{name}"):
        if subprocess.run(words, check=False, cwd=machine.ROOT, env=environment).returncode:
            raise machine.Failed("The playbook failed: its message is above. `./quickstart` may be run again.")


def up() -> None:
    """Every step, each of which does nothing when there is nothing to do."""
    machine.install_packages("agent", "test")
    machine.development_environment()
    fresh = machine.agent_environment()
    machine.group()
    machine.libvirt()
    machine.agent(fresh)
    with machine.step("Guest image"):
        machine.run(machine.PYTHON, machine.ROOT / "tests/lab/guest.py", "--out", GUEST)
        if not KEY.exists():
            machine.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY)
    play("quickstart.yml")
    print(NEXT)


def work() -> int:
    """The command line."""
    parser = argparse.ArgumentParser("quickstart", description=__doc__)
    parser.add_argument("--down", action="store_true", help="remove all that was made; OS packages stay")
    given = parser.parse_args()
    machine.need_root()
    if not given.down:
        up()
        return 0
    if machine.VENV.exists() and (machine.AGENT_VENV / "bin/magnetar").exists():
        machine.libvirt()
        machine.agent(fresh=False)
        play("quickstart_down.yml")
        left = [name for name in machine.run("virsh", "-c", "qemu:///system", "list", "--all", "--name").split()
                if name.startswith("magnetar-")]  # fmt: skip
        if left:
            raise machine.Failed(f"Other servers are left: {', '.join(left)}. Remove them first; their disks would be "
                                 "lost.")
    machine.down()
    print("Removed. The OS packages of bindep.txt stay installed: other things may need them by now.")
    return 0


sys.exit(machine.main(work))
