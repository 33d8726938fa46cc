# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets up this machine as a host, with a control plane next to the agent, and boots real servers with a playbook and
with OpenStack's client. With `--site` it also starts a second host with a whole cloud on OVN, and creates servers of
two projects there, which cannot reach each other; one has a floating IP. With `--hosts 2` it also starts two more
hosts, and migrates a running server from the first to the second. `--down` removes everything that it made."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import control_plane
import machine

GUEST = machine.CACHE / "guest"
KEY = machine.CACHE / "quickstart-key"
CLOUD = machine.CLOUD.relative_to(machine.ROOT)


NEXT = f"""
Two servers of this host and one of the cloud run on this machine. What to try next:

  magnetar --help                                             the agent's command
  curl --unix-socket {machine.SOCKET} http://localhost/v1/server
  virsh -c qemu:///system list                                the domains behind the servers
  tail -f /var/lib/magnetar/servers/*/console.log             what the guests say
  magnetar console quick-1                                    the serial console of one; Ctrl-] ends it

  source .venv/bin/activate; export ANSIBLE_COLLECTIONS_PATH=$PWD/.cache
  ansible-doc magnetar.compute.server                         every option, with examples
  ansible localhost -m magnetar.compute.server_info           what runs
  ansible localhost -m magnetar.compute.server -a 'name=quick-1 state=paused' --check --diff

  export OS_CLIENT_CONFIG_FILE={control_plane.CLOUDS} OS_CLOUD=magnetar
  openstack server list; openstack server show cloud-1        the cloud, by OpenStack's client
  openstack server create web --image quickstart --flavor quickstart --wait; openstack console log show web
  openstack console url show cloud-1                          its screen, for a browser
"""


NEXT_HOSTS = f"""
And a server that counts on its console went from the lab host kvm1 to kvm2 while it ran. The role
magnetar.compute.agent has made both hosts of Magnetar. With the lines above for Ansible:

  export ANSIBLE_INVENTORY={machine.HOSTS.relative_to(machine.ROOT)}
  ansible magnetar -b -m magnetar.compute.host_info           what they have
  ansible-playbook magnetar.compute.agents                    the role again: it changes nothing
  ansible-playbook magnetar.compute.drain --limit kvm2        the server goes back: kvm2 is emptied
"""


NEXT_CLOUD = f"""
And the lab host cloud1 is a whole cloud on OVN: the roles of magnetar.compute.site have made its central, databases,
API, conductor and agent. The servers alpha and beta of two projects do not reach each other; the floating IP of alpha
answers this machine.

  export OS_CLIENT_CONFIG_FILE=$PWD/{CLOUD.parent}/clouds.yaml OS_CLOUD=alpha     # or beta, or admin
  openstack server list; openstack floating ip list; openstack security group rule list default
  openstack console log show alpha                            whom it reaches
  ansible -i {CLOUD} magnetar_network -b -a 'ovn-nbctl show'
  ansible-playbook -i {CLOUD} magnetar.compute.site    the roles again: they change nothing
"""


SITE = """
  ./quickstart --site                                         also a host beside this one with a cloud on OVN: networks
                                                              of projects, routers, floating IPs; it takes longest
"""


LAST = """
  ./quickstart --down                                         remove all of it; with --all also what you made
"""


def run_playbook(name: str, *options: object) -> None:
    """Run a playbook of the checkout or the collection with the development environment."""
    path = machine.ROOT / "playbooks" / name
    words = [machine.VENV / "bin/ansible-playbook", path if path.exists() else name, *options,
             "-e", f"guest_disk={GUEST / 'disk.qcow2'}", "-e", f"public_key_file={KEY}.pub"]  # fmt: skip
    # The variables that the closing text suggests for OpenStack's client would send the modules to the cloud, not the
    # agent.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    environment = {**plain, "ANSIBLE_COLLECTIONS_PATH": str(machine.CACHE), "ANSIBLE_LOCALHOST_WARNING": "false",
                   "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false", "LC_ALL": "C.UTF-8",
                   "PYTHONDONTWRITEBYTECODE": ""}  # otherwise each command of the client compiles the client again
    with machine.timed_step(f"playbook {name}"):
        if subprocess.run(words, check=False, cwd=machine.ROOT, env=environment).returncode:
            raise machine.Failed("The playbook failed: its message is above. `./quickstart` may be run again.")


def set_up() -> None:
    """Run every step of the set-up. A step that finds its work done does nothing."""
    machine.install_packages("agent", "console", "test")
    fresh, *_others = machine.run_concurrently(machine.make_environments, make_guest_image, machine.start_libvirt)
    machine.make_group()
    machine.start_agent(fresh)
    control_plane.start_control_plane(fresh)
    run_playbook("quickstart.yml")
    run_playbook("quickstart_cloud.yml")


def make_guest_image() -> None:
    """Create the image of the servers, and an SSH key for them."""
    with machine.timed_step("Guest image"):
        machine.run_checked(machine.PYTHON, machine.ROOT / "tests/support/lab/guest.py", "--out", GUEST)
        if not KEY.exists():
            machine.run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY)


def make_lab_hosts(count: int) -> None:
    """Start bare Debian hosts next to this machine, install them with the role, and migrate a running server between
    the first two.
    """
    machine.install_packages("lab", "test")
    machine.development_environment()
    make_guest_image()
    machine.lab_hosts(machine.HOSTS, [f"kvm{number}" for number in range(1, count + 1)])
    for name in ("magnetar.compute.agents", "quickstart_hosts.yml"):
        run_playbook(name, "-i", machine.HOSTS)


def cloud_on_ovn() -> None:
    """Start a bare Debian host next to this machine, install a whole cloud on it with all roles, and create servers on
    networks of OVN. The cloud is not on this machine itself, which may have an Open vSwitch of other software; and the
    host needs none of the kernel's modules.
    """
    machine.install_packages("lab", "test")
    machine.development_environment()
    make_guest_image()
    machine.lab_hosts(machine.CLOUD, ["cloud1"], "--ovn")
    for name in ("magnetar.compute.site", "quickstart_network.yml"):
        run_playbook(name, "-i", machine.CLOUD)


def quickstart_command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("quickstart", description=__doc__)
    parser.add_argument("--hosts", type=int, default=0, choices=range(2, 9), metavar="2..8",
                        help="also create this number of lab hosts (systemd-nspawn) with the role, and move a running "
                             "server between two of them; another number than before creates all again")
    parser.add_argument("--site", action="store_true",
                        help="also create a lab host with a whole cloud on OVN by the roles, and servers of two "
                             "projects in it, one with a floating IP; it takes longest")
    parser.add_argument("--network", choices=("ovn", "none"), default="none", help="ovn: the same as --site")
    parser.add_argument("--down", action="store_true", help="remove everything that quickstart created; OS packages "
                        "stay")
    parser.add_argument("--all", action="store_true", help="with --down: also your own servers and volumes")
    return parser


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options from *words*; default: the command line."""
    parser = quickstart_command_line()
    options = parser.parse_args(words)
    if options.all and not options.down:
        parser.error("--all belongs to --down")
    options.site = options.site or options.network == "ovn"
    return options


def closing_text(options: argparse.Namespace) -> str:
    """Return the text that ends the output: the result, and commands to try next."""
    return NEXT + (NEXT_CLOUD if options.site else SITE) + NEXT_HOSTS * bool(options.hosts) + LAST


def run_quickstart() -> int:
    """Do what the command line requests."""
    options = parse_options()
    machine.need_root()
    if not options.down:
        set_up()
        if options.site:
            try:
                cloud_on_ovn()
            except machine.Failed as error:
                raise machine.Failed(f"{error}\nThe servers of this machine run: `virsh -c qemu:///system list`. "
                                     "`./quickstart` does without the host for OVN.") from None
        if options.hosts:
            make_lab_hosts(options.hosts)
        print(closing_text(options))
        return 0
    if machine.VENV.exists() and (machine.AGENT_VENV / "bin/magnetar").exists():
        machine.start_libvirt()
        machine.start_agent(fresh=False)
        control_plane.start_control_plane(fresh=False)
        run_playbook("quickstart_down.yml", "-e", f"everything={options.all}")
    control_plane.remove_control_plane()
    machine.remove_installation()
    print("Removed. The OS packages of bindep.txt stay installed: other things may need them by now.")
    return 0


if __name__ == "__main__":
    sys.exit(machine.main(run_quickstart))
