# SPDX-License-Identifier: GPL-3.0-or-later
"""A libvirtd for one test, which may stop and kill it, because nothing else on this machine uses it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import libvirt

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

#: Mounts empty folders over those of this machine's libvirtd. They persist while libvirtd restarts, as on a host.
FOLDERS = """
mkdir -p /run/libvirt
for folder in /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /etc/libvirt; do
    mkdir -p $folder && mount -t tmpfs none $folder || exit 1
done
printf '%s\\n' 'stdio_handler = "file"' 'security_driver = "none"' 'namespaces = []' 'cgroup_controllers = []' \
    'remember_owner = 0' >/etc/libvirt/qemu.conf
echo ready
exec sleep infinity
"""


class OwnLibvirtd:
    """A libvirtd with its socket in *folder*, in mount and network namespaces of its own; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"qemu+unix:///system?socket={folder}/libvirt-sock"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "libvirtd.conf").write_text(
            f'unix_sock_dir = "{folder}"\nauth_unix_rw = "none"\nunix_sock_rw_perms = "0700"\n'
            'log_outputs = "4:stderr"\n')
        self._namespaces = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "slave", "sh", "-c", FOLDERS], stdout=subprocess.PIPE)
        assert self._namespaces.stdout is not None
        assert self._namespaces.stdout.readline() == b"ready\n"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.process is not None and self.process.poll() is None:
                self._destroy_guests()
        finally:
            self.kill()
            self._namespaces.kill()
            self._namespaces.wait()

    def start(self) -> None:
        """Start libvirtd, and wait until it answers."""
        self.process = subprocess.Popen(
            ["nsenter", f"--target={self._namespaces.pid}", "--mount", "--net", "libvirtd", "-f",
             self.folder / "libvirtd.conf", "-p", self.folder / "pid"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers, "libvirtd answers", passing=(libvirt.libvirtError,), pause=0.2)

    def kill(self) -> None:
        """Kill libvirtd; guests keep running."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        connection = libvirt.open(self.uri)
        connection.close()
        return True

    def _destroy_guests(self) -> None:
        connection = libvirt.open(self.uri)
        for domain in connection.listAllDomains():
            with suppress(libvirt.libvirtError):
                domain.destroy()
        connection.close()
