# SPDX-License-Identifier: GPL-3.0-or-later
"""A fresh Debian machine with a clone of this repository, as a user has one who starts with `./quickstart`.

It is a bare lab host: the OS packages come through the package proxy, and Python's from a folder of wheels, which its
pip configuration names.
"""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.support.lab.bare import BRIDGE, NETWORK, BareHost, PackageProxy, free
from tests.support.lab.hosts import CHECKOUT, QEMU_CONF, command, release_bridge

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The folder of the clone on the machine.
CLONE = "/srv/magnetar"


class FreshMachine(BareHost):
    """A lab host for a developer: it has the wheels of the development environment, and settings of libvirt for a
    container, which apt keeps when it installs libvirt.
    """

    locks = ("dev",)

    def _files(self) -> dict[str, str]:
        return {**super()._files(), "etc/libvirt/qemu.conf": QEMU_CONF,
                "etc/apt/apt.conf.d/91lab": 'DPkg::Options {"--force-confdef"; "--force-confold";};\n'}

    def clone(self) -> None:
        """Copy the files of this checkout that git knows or would add to `CLONE`, without caches and environments."""
        listed = command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=CHECKOUT)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in filter(None, listed.split("\0")):
                if os.path.lexists(CHECKOUT / name):
                    archive.add(CHECKOUT / name, arcname=f"{CLONE}/{name}".lstrip("/"), recursive=False)
        self.run(["tar", "-x", "-f", "-", "-C", "/", "--no-same-owner"], stdin=packed.getvalue())

    def exists(self, *paths: str) -> list[str]:
        """Return those of the *paths* that exist on the machine."""
        shown = self.run(["sh", "-c", 'for path; do [ ! -e "$path" ] || echo "$path"; done', "sh", *paths]).stdout
        return shown.splitlines()


@contextmanager
def fresh_machine(release: int) -> Iterator[FreshMachine]:
    """Run a fresh machine with Debian *release* and a clone within the context."""
    with ExitStack() as undo:
        number = free()
        undo.callback(release_bridge, f"{BRIDGE}{number}")
        proxy = undo.enter_context(PackageProxy(f"{NETWORK}.{number}.1"))
        name = f"fresh{release}"
        machine = undo.enter_context(FreshMachine(name, [name], number, "", proxy.port, release=release))
        machine.clone()
        yield machine
