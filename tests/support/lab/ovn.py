# SPDX-License-Identifier: GPL-3.0-or-later
"""A real OVN on hosts of a `bare.Site`: the central on one of them, Open vSwitch and ovn-controller on all. No process
of it runs on the machine itself, so it ends with the hosts. The machine's kernel needs no module: Open vSwitch forwards
in a process (datapath netdev), between hosts by geneve over a second link, whose address lies on a bridge of its own.
Hosts reach the southbound database by TLS, with the certificates of their agents, whose common name is the host's in
OVN; RBAC says what each may write. The northbound database is at a unix socket of the central's host only.

    with bare.Site(folder, ["bare1", "bare2"], packed=["bare1", "bare2"], ovn=True, pki=…) as site:
        site.play("magnetar.compute.agents")
        with Ovn(site) as ovn:
            ovn.nb("ls-add", "net")

`Guests` types into the guests' serial consoles, and reads their output.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from tests.support.lab import guest
from tests.support.lab.agent import eventually
from tests.support.lab.bare import checksums
from tests.support.lab.hosts import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.support.lab.bare import BareHost, Site

#: Beginning of the addresses on the hosts' second links, which carry tunnels.
TUNNELS = "10.79"
SOUTHBOUND = 6642
KEYS = "/etc/magnetar/tls/agent.key", "/etc/magnetar/tls/agent.pem", "/etc/magnetar/tls/ca.pem"
START = "--detach --no-chdir --log-file --pidfile"
#: Types a line at a terminal, which QEMU reads as long as somebody has it open, and waits for the guest's answer.
TYPE = 'exec 3<>"$1"; printf "%s\\n" "$2" >&3; timeout 20 grep -a -m 1 "GUEST reply" <&3; sleep 0.2'

NEW = """
mkdir -p /run/ovn /var/lib/ovn /var/log/ovn
cd /var/lib/ovn
ovsdb-tool create nb.db /usr/share/ovn/ovn-nb.ovsschema
ovsdb-tool create sb.db /usr/share/ovn/ovn-sb.ovsschema
"""
DATABASES = """
cd /var/lib/ovn
ovsdb-server nb.db --remote=punix:/run/ovn/ovnnb_db.sock \
    --remote=db:OVN_Northbound,NB_Global,connections --unixctl=/run/ovn/ovnnb_db.ctl \
    --log-file=/var/log/ovn/nb.log --pidfile=/run/ovn/ovnnb_db.pid --detach --no-chdir
ovsdb-server sb.db --remote=punix:/run/ovn/ovnsb_db.sock --unixctl=/run/ovn/ovnsb_db.ctl \
    --remote=db:OVN_Southbound,SB_Global,connections --private-key=db:OVN_Southbound,SSL,private_key \
    --certificate=db:OVN_Southbound,SSL,certificate --ca-cert=db:OVN_Southbound,SSL,ca_cert \
    --log-file=/var/log/ovn/sb.log --pidfile=/run/ovn/ovnsb_db.pid --detach --no-chdir
"""
CENTRAL = f"""
ovn-nbctl init
ovn-sbctl init
ovn-sbctl set-ssl {" ".join(KEYS)}
ovn-sbctl set-connection role=ovn-controller pssl:{SOUTHBOUND}:0.0.0.0
ovn-northd {START}
"""
#: Kills the processes by their pids.
KILL = """
for one in ovnnb_db ovnsb_db ovn-northd; do kill -KILL $(cat /run/ovn/$one.pid); rm /run/ovn/$one.pid; done
rm -f /run/ovn/ovn*.sock
"""
SWITCH = f"ovs-vswitchd unix:/run/openvswitch/db.sock {START}"
CONTROLLER = f"ovn-controller unix:/run/openvswitch/db.sock {START}"
HOST = f"""
name=$1 central=$2 tunnel=$3
mkdir -p /run/openvswitch /etc/openvswitch /var/log/openvswitch /run/ovn /var/log/ovn
ip link set eth1 up
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /etc/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock {START}
ovs-vsctl --no-wait init
ovs-vsctl --no-wait set-ssl {" ".join(KEYS)}
ovs-vsctl --no-wait set open_vswitch . external-ids:system-id=$name external-ids:hostname=$name \
    external-ids:ovn-remote=ssl:$central:{SOUTHBOUND} external-ids:ovn-encap-type=geneve \
    external-ids:ovn-encap-ip=$tunnel external-ids:ovn-bridge-datapath-type=netdev
{SWITCH}
ovs-vsctl add-br br-phy -- set bridge br-phy datapath_type=netdev -- add-port br-phy eth1
ip address add $tunnel/24 dev br-phy
ip link set br-phy up
{CONTROLLER}
"""
PHYSICAL = """
ip link set eth2 up
ovs-vsctl add-br br-ext -- set bridge br-ext datapath_type=netdev -- add-port br-ext eth2 -- \
    set open_vswitch . external-ids:ovn-bridge-mappings=$1:br-ext
"""


#: The program with which libvirt connects guests, and its replacement that kills the controller before.
VSCTL = "/usr/bin/ovs-vsctl"
BEFORE_PLUGGING = f"""#!/bin/sh
case "$*" in *add-port*) kill -KILL $(cat /run/ovn/ovn-controller.pid) && rm /run/ovn/ovn-controller.pid ;; esac
exec {VSCTL}.real "$@"
"""

#: Prints a host's switch and tracked connections, and the end of its controller's log.
TOLD = """
ovs-vsctl show
ovs-appctl dpctl/dump-conntrack | tail -n 60
ovs-appctl dpctl/dump-flows | tail -n 60
ovs-vsctl get bridge br-int external_ids
tail -n 40 /var/log/ovn/ovn-controller.log
"""


class Ovn:
    """A running OVN; see the module. `nb` and `sb` run ovn-nbctl and ovn-sbctl on the host *central*. *physical*: the
    name of a physical network that all hosts have, over a third link to the site's own bridge.
    """

    def __init__(self, site: Site, central: str = "", physical: str = "") -> None:
        self.site, self.central, self.physical = site, site.hosts[central or site.names[0]], physical
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with self._undo:
            self.start()
            if self.physical:
                checksums(self.central.bridge)
            for at, host in enumerate(self.site.hosts.values(), 1):
                self._link(host, "tun", "eth1")
                host.run(["sh", "-ec", HOST, "sh", host.name, self.central.address,
                          f"{TUNNELS}.{host.address.split('.')[2]}.{at}"])  # fmt: skip
                if self.physical:
                    self._link(host, "ext", "eth2")
                    host.run(["sh", "-ec", PHYSICAL, "sh", self.physical])
            self._undo = self._undo.pop_all()
        return self

    def _link(self, host: BareHost, name: str, inner: str) -> None:
        self._undo.callback(command, "ip", "link", "delete", host.link(name, inner))

    def start(self, *, new: bool = True) -> None:
        """Start the central's processes, with *new* databases or the existing ones."""
        self.central.run(["sh", "-ec", (NEW if new else "") + DATABASES + CENTRAL])

    def kill(self) -> None:
        """Kill the central's processes."""
        self.central.run(["sh", "-ec", KILL])

    def kill_controller(self, host: str) -> None:
        """Kill a host's ovn-controller."""
        path = "/run/ovn/ovn-controller.pid"
        self.site.hosts[host].run(["sh", "-ec", f"kill -KILL $(cat {path}); rm {path}"])

    def start_controller(self, host: str) -> None:
        """Start a host's ovn-controller again."""
        self.site.hosts[host].run(["sh", "-ec", CONTROLLER])

    def kill_switch(self, host: str) -> None:
        """Kill a host's ovs-vswitchd."""
        path = "/run/openvswitch/ovs-vswitchd.pid"
        self.site.hosts[host].run(["sh", "-ec", f"kill -KILL $(cat {path}); rm {path}"])

    def start_switch(self, host: str) -> None:
        """Start a host's ovs-vswitchd again."""
        self.site.hosts[host].run(["sh", "-ec", SWITCH])

    @contextmanager
    def killed_while_plugging(self, host: str) -> Iterator[None]:
        """Within the context, kill a host's ovn-controller once, just before libvirt connects a guest to Open vSwitch.
        """
        run = self.site.hosts[host].run
        run(["sh", "-ec", f"mv {VSCTL} {VSCTL}.real; cat >{VSCTL}; chmod 755 {VSCTL}"], stdin=BEFORE_PLUGGING.encode())
        try:
            yield
        finally:
            run(["mv", f"{VSCTL}.real", VSCTL])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def nb(self, *words: str) -> str:
        """Return the output of ovn-nbctl, after all hosts have applied the change."""
        return self.central.run(["ovn-nbctl", "--timeout=120", "--wait=hv", *words]).stdout.strip()

    def sb(self, *words: str) -> str:
        """Return the output of ovn-sbctl."""
        return self.central.run(["ovn-sbctl", "--timeout=60", *words]).stdout.strip()

    def chassis(self, port: str) -> str:
        """Return the name of the host to which the port is bound; "" when it is not bound."""
        return self.sb("--bare", "--columns=name", "list", "chassis", self.bound(port)) if self.bound(port) else ""

    def told(self) -> str:
        """Return the state of the southbound database and of the hosts as text, for the message of a failed test."""
        words = [("show",), *(("list", table) for table in ("port_binding", "mac_binding", "chassis_private"))]
        return "\n".join([*(self.sb(*one) for one in words), *(
            f"{host.name}:\n{host.run(['sh', '-c', TOLD], check=False).stdout}" for host in self.site.hosts.values())])

    def bound(self, port: str) -> str:
        """Return the uuid of the chassis to which the port is bound."""
        return self.sb("--bare", "--columns=chassis", "find", "port_binding", f"logical_port={port}")


class Guests:
    """The consoles of guests; see the module. Guests are servers of the lab's ramdisk, addressed by host and id."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def console(self, host: str, id: str) -> str:
        """Return the text of the guest's console log on this host."""
        path = f"/var/lib/magnetar/servers/{id}/console.log"
        return self.site.hosts[host].run(["cat", path], check=False).stdout

    def ask(self, host: str, id: str, words: str) -> dict[str, Any]:
        """Type a command into the guest's serial console, and return its answer (see guest.replies)."""
        terminal = self.site.hosts[host].run(["virsh", "-c", "qemu:///system", "ttyconsole", id]).stdout.strip()
        before = len(guest.replies(self.console(host, id)))

        def answer() -> list[dict[str, Any]]:
            self.site.hosts[host].run(["sh", "-c", TYPE, "sh", terminal, words], check=False)
            return guest.replies(self.console(host, id))[before:]

        found: list[dict[str, Any]] = eventually(answer, f"{id} answers {words!r}")
        return found[0]

    def sh(self, host: str, id: str, script: str) -> str:
        """Return the output of a script in the guest."""
        return str(self.ask(host, id, f"sh {script}")["output"])

    def leased(self, host: str, id: str, mac: str, address: str) -> None:
        """Wait until the guest has its address from DHCP."""
        eventually(lambda: f"nic eth0 mac={mac} ip={address}" in guest.markers(self.console(host, id)),
                   f"{id}: a lease")
