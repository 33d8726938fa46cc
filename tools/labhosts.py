# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps bare Debian hosts running for `./quickstart`, until it gets SIGTERM: labhosts.py [--ovn] FOLDER NAME…

They are the hosts of the lab tests. FOLDER/inventory.yml is Ansible's inventory of them, FOLDER/ready exists once they
are up. With `--ovn` there is one host, which magnetar.compute.site turns into a whole cloud on OVN; its eth1 leads to
this machine, for floating IPs. Needs the Python of `.venv`, and root.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.lab import bare, hosts


class Kept(bare.Site):
    """A lab site whose controller uses the checkout itself as the collection."""

    def _collection(self) -> None:
        """Build no archive: the checkout is used."""


def end_by_signal(_number: int, _frame: object) -> None:
    """Exit by an exception, so that hosts, mounts and the bridge are removed."""
    sys.exit(0)


#: Groups of the one host that has all of a cloud, and variables of its roles.
GROUPS = ("magnetar", "magnetar_api", "magnetar_network", "magnetar_cells")
#: The first networks of its projects avoid the range of this machine's own cloud, because routes lead to that.
OVN = {"api_settings": {"network_cidr": "10.60.0.0/16"}, "agent_ovn": True, "agent_ovn_datapath": "netdev",
       "agent_ovn_bridge_mappings": {"public": "br-public"}, "network_northbound": True}


def cloud_groups(name: str) -> dict[str, object]:
    """Return the inventory's groups of the host *name*; the group cell1 is a child of the last one."""
    groups: dict[str, object] = {group: {"hosts": {name: {}}} for group in GROUPS[:-1]}
    return {**groups, GROUPS[-1]: {"children": {"cell1": {"hosts": {name: {}}}}}}


def main(folder: Path, names: list[str], ovn: bool) -> int:
    """Start the hosts *names*, create FOLDER/ready, and wait for SIGTERM."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_by_signal)
    try:
        with ExitStack() as stack:
            site = stack.enter_context(Kept(folder, names, cloud_groups(names[0]), **OVN) if ovn
                                       else Kept(folder, names))
            for host in site.hosts.values() if ovn else ():
                stack.callback(hosts.command, "ip", "link", "delete", host.link("ext", "eth1"))
                bare.checksums(host.bridge)
            (folder / "ready").write_text(" ".join(names), encoding="utf-8")
            while True:
                signal.pause()
    except hosts.LabError as error:
        print(f"labhosts: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        (folder / "ready").unlink(missing_ok=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("labhosts", description=__doc__)
    parser.add_argument("--ovn", action="store_true", help="the first is to have a whole cloud on OVN")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    sys.exit(main(options.folder, options.names, options.ovn))
