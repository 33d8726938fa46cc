# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster of Ceph on a host of a `bare.Site`: a monitor, a manager and an OSD (BlueStore on a file), each a
process that is started by hand, without systemd. Pools keep one copy. It needs 1 GiB of memory, and ends with the host.

All hosts of the site get the pool `POOL`, for servers and volumes: Ceph's configuration, the key of a user who may use
this pool only, the key as a secret of libvirt, and a storage pool of libvirt with the name.

    with bare.Site(folder, ["bare1", "bare2"], packed=["bare1", "bare2"], ceph=True, pki=…) as site, Ceph(site) as ceph:
        site.play("magnetar.compute.agents")
        ceph.rbd("ls")
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from tests.support.lab.bare import Site

POOL, USER = "vms", "magnetar"
PIDS = ("osd", "mgr", "mon")
CONF = """[global]
fsid = {fsid}
mon host = {address}
public network = {address}/32
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
mon allow pool size one = true
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
[mon]
mon data avail warn = 1
mon data avail crit = 1
[osd]
osd objectstore = bluestore
bluestore block size = 8589934592
osd memory target = 939524096
"""
START = """
address=$1 fsid=$2 pool=$3 user=$4
mkdir -p /run/ceph /var/lib/ceph/mon/ceph-a /var/lib/ceph/mgr/ceph-a /var/lib/ceph/osd/ceph-0
cd /var/lib/ceph
admin=/etc/ceph/ceph.client.admin.keyring
ceph-authtool -C mon.key --gen-key -n mon. --cap mon 'allow *'
ceph-authtool -C $admin --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
ceph-authtool mon.key --import-keyring $admin
monmaptool --create --add a $address --fsid $fsid monmap
ceph-mon --mkfs -i a --monmap monmap --keyring mon.key
ceph-mon -i a --pid-file /run/ceph/mon.pid
ceph auth get-or-create mgr.a mon 'allow profile mgr' osd 'allow *' -o mgr/ceph-a/keyring
ceph-mgr -i a --pid-file /run/ceph/mgr.pid
secret=$(ceph-authtool --gen-print-key) osd=$(cat /proc/sys/kernel/random/uuid)
printf '{"cephx_secret": "%s"}' $secret | ceph osd new $osd -i -
ceph-authtool -C osd/ceph-0/keyring -n osd.0 --add-key $secret
ceph-osd -i 0 --mkfs --osd-uuid $osd
ceph-osd -i 0 --pid-file /run/ceph/osd.pid
timeout 120 ceph osd pool create $pool 8
timeout 120 rbd pool init $pool
ceph auth get-or-create client.$user mon 'profile rbd' osd "profile rbd pool=$pool" \\
    -o /etc/ceph/ceph.client.$user.keyring
timeout 120 sh -c "until ceph df | grep -q '^$pool '; do sleep 0.5; done"
"""
#: Script that configures a host for the cluster, as docs/howto/put-servers-on-ceph.md says.
CLIENT = """
uuid=$1 user=$2 pool=$3 address=$4
cd $(mktemp -d)
chmod 600 /etc/ceph/ceph.client.$user.keyring
cat >secret.xml <<END
<secret ephemeral='no' private='yes'><uuid>$uuid</uuid>
<usage type='ceph'><name>client.$user secret</name></usage></secret>
END
cat >pool.xml <<END
<pool type='rbd'><name>$pool</name><source><host name='$address' port='6789'/><name>$pool</name>
<auth type='ceph' username='$user'><secret uuid='$uuid'/></auth></source></pool>
END
v="virsh -q -c qemu:///system"
$v secret-define secret.xml
sed -n 's/.*key = //p' /etc/ceph/ceph.client.$user.keyring >key
$v secret-set-value $uuid --file key
rm key
$v pool-define pool.xml
$v pool-start $pool
$v pool-autostart $pool
"""


class Ceph:
    """A running Ceph cluster on the host *central*, by default the first; see the module."""

    def __init__(self, site: Site, central: str = "") -> None:
        self.site, self.central = site, site.hosts[central or site.names[0]]

    def __enter__(self) -> Self:
        fsid = str(uuid.uuid4())
        conf = CONF.format(fsid=fsid, address=self.central.address)
        for host in self.site.hosts.values():
            host.run(["sh", "-ec", "mkdir -p /etc/ceph; cat >/etc/ceph/ceph.conf"], stdin=conf.encode())
        try:
            self.central.run(["sh", "-ec", START, "sh", self.central.address, fsid, POOL, USER])
            keyring = f"/etc/ceph/ceph.client.{USER}.keyring"
            key = self.central.run(["cat", keyring]).stdout
            for host in self.site.hosts.values():
                host.run(["sh", "-ec", f"cat >{keyring}"], stdin=key.encode())
                host.run(["sh", "-ec", CLIENT, "sh", str(uuid.uuid4()), USER, POOL, self.central.address])
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the cluster's processes, by their ids."""
        for name in PIDS:
            self.central.run(["sh", "-c", f"kill -KILL $(cat /run/ceph/{name}.pid)"], check=False)

    def stop(self, name: str) -> None:
        """Stop one of `PIDS` (SIGSTOP), as if its host were unreachable."""
        self.central.run(["sh", "-ec", f"kill -STOP $(cat /run/ceph/{name}.pid)"])

    def go_on(self, name: str) -> None:
        """Let a stopped process continue."""
        self.central.run(["sh", "-ec", f"kill -CONT $(cat /run/ceph/{name}.pid)"])

    def rbd(self, *words: str, host: str = "") -> str:
        """Return the output of ``rbd`` about the pool, with the credentials of the pool's user."""
        where = self.site.hosts[host] if host else self.central
        return where.run(["rbd", "--id", USER, "-p", POOL, *words]).stdout.strip()

    def images(self) -> set[str]:
        """Return the names of all images in the pool."""
        return set(self.rbd("ls").split())

    def parent(self, name: str) -> str:
        """Return the parent of an image; "" when it has none."""
        found = re.search(rf"parent: {POOL}/(\S+)@", self.rbd("info", name))
        return found[1] if found else ""
