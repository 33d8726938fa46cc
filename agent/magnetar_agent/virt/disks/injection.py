# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written into a guest's disk before its first start, by libguestfs.

The host reads nothing of the disk: that does the kernel of libguestfs's appliance, a virtual machine of its own without
a network. It, and the program that drives it (``guest_files``), run as QEMU's user without any capability, with limits
of memory and time; what they have to write they read from a file without a name. The appliance is built of the host's
packages by the agent itself, as root: who has broken out of a guest cannot change it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.virt.tools.process import run, unnamed
from magnetar_core.errors import HypervisorError

from . import qemu_img

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from magnetar_agent.host.storage import Disk, Injection

#: The Python for which distributions have the module guestfs.
PYTHON = "/usr/bin/python3"
PROGRAM = Path(__file__).with_name("guest_files.py")
#: What changes when that Python gets a module, or what a module needs: folders of modules, and the list of libraries.
SEARCHED = ("/usr/lib/python3*/*-packages", "/usr/lib64/python3*/*-packages", "/usr/local/lib/python3*/*-packages",
            "/etc/ld.so.cache")
#: Where libguestfs's packages have what its appliance is built of.
PARTS = ("/usr/lib/*/guestfs/supermin.d", "/usr/lib64/guestfs/supermin.d", "/usr/lib/guestfs/supermin.d")
#: Seconds that an injection may take, under KVM and under emulation, where an appliance boots slowly, and the building
#: of the appliance.
TIMEOUT, EMULATED, BUILDING = 120.0, 600.0, 300.0
_KVM, _MODULES = Path("/dev/kvm"), Path("/lib/modules")


class Injections:
    """The part of ``LocalHypervisor`` that writes into guests' file systems. The appliance lies in *state_dir*."""

    def __init__(self, state_dir: Path) -> None:
        self._appliance = state_dir / "appliance"
        self._building = threading.Lock()
        self._can_inject = False
        self._without_module: Mapping[str, int] | None = None  # as ``_searched`` was when there was none

    def qemu_user(self) -> tuple[int, int]:
        """User and group that QEMU runs with."""
        raise NotImplementedError

    def permit(self, paths: Iterable[Path]) -> None:
        """See ``Disks.permit``."""
        raise NotImplementedError

    def inject(self, disk: Disk, given: Injection, kvm: bool) -> Mapping[str, str]:
        """``guest_files``, with the disk by descriptors (``qemu_img.Nodes``)."""
        if disk.remote is not None:
            raise HypervisorError(f"Nothing is written into the disk {disk.path}: it is in Ceph, for whose key the "
                                  "program that does it has no right.")
        if lacks := self.lacks_injection():
            raise HypervisorError(f"Nothing can be written into the disk {disk.path}: {lacks}.")
        appliance, user = self._built(), self.qemu_user()
        format = "luks" if disk.key and disk.format == "raw" else disk.format
        # Not root's, where all may use KVM: that group reads more than a disk.
        groups = [group] if kvm and _KVM.exists() and (group := _KVM.stat().st_gid) else []
        with qemu_img.Nodes(user, disk.key) as nodes, ExitStack() as held:
            node = nodes.source(disk.path, format, write=True)
            job = {"appliance": str(appliance), "kvm": kvm, "node": node, "options": nodes.options,
                   "files_held": nodes.files, "folder": _folder(held, user),
                   "partition": given.partition, "key": None, "password": None,
                   "metadata": None, "files": None, **given.named()}
            program, task = (unnamed(held, content) for content in (PROGRAM.read_bytes(), json.dumps(job).encode()))
            said = run([PYTHON, "-I", f"/proc/self/fd/{program}", str(task)], f"write into the disk {disk.path}",
                       TIMEOUT if kvm else EMULATED, user, [program, task, *nodes.files], groups)
        return _failed(disk.path, said, given)

    def lacks_injection(self) -> str:
        """Looks again until there is nothing that lacks."""
        if not self._can_inject:
            if _parts() is None:
                return "libguestfs is not installed (libguestfs0)"
            if not (os.environ.get("SUPERMIN_KERNEL") or any(Path("/boot").glob("vmlinu?-*"))):
                return "there is no kernel in /boot for libguestfs's appliance"
            if not (os.environ.get("SUPERMIN_MODULES") or any(_MODULES.glob("*/modules.dep"))):
                return ("there are no kernel modules in /lib/modules for libguestfs's appliance, or the agent's unit "
                        "hides them (ProtectKernelModules)")
            if not self._has_module():
                return f"{PYTHON} has no module guestfs (python3-guestfs)"
            self._can_inject = True
        return ""

    def _has_module(self) -> bool:
        """Asks that Python, which is a process and would be one at each heartbeat: again only when something has come
        to where it looks for modules."""
        searched = _searched()
        if searched == self._without_module:
            return False
        try:
            run([PYTHON, "-I", "-c", "import guestfs"], "import the module guestfs")
        except HypervisorError as error:
            if "No module named" in error.message:  # else it was no time or memory that lacked
                self._without_module = searched
            return False
        return True

    def _built(self) -> Path:
        """The appliance, built anew when packages of the host that it is made of have changed."""
        with self._building:
            make_folder(self._appliance.parent)
            lock = self._appliance.with_name("appliance.lock")
            run(["supermin", "--build", "--if-newer", "--lock", str(lock), "--copy-kernel", "-f", "ext2",
                 "--host-cpu", platform.machine(), str(_parts()), "-o", str(self._appliance)],
                "build libguestfs's appliance", BUILDING)
            # By this name libguestfs knows one that it does not build itself.
            (self._appliance / "README.fixed").touch()
            self._appliance.chmod(0o750)
            self.permit([self._appliance])
        return self._appliance


def _searched() -> dict[str, int]:
    """That Python, and what ``SEARCHED`` names, with the times of their last changes in ns."""
    found: dict[str, int] = {}
    for path in (Path(PYTHON), *(path for one in SEARCHED for path in Path("/").glob(one[1:]))):
        with suppress(OSError):
            found[str(path)] = path.stat().st_mtime_ns
    return found


def _parts() -> Path | None:
    return next((found for one in PARTS for found in sorted(Path("/").glob(one[1:]))), None)


def _folder(held: ExitStack, user: tuple[int, int]) -> str:
    """A folder of the *user*'s, which goes with all that is in it, also when the program was killed."""
    made = tempfile.mkdtemp(prefix="magnetar-inject-")
    held.callback(shutil.rmtree, made, ignore_errors=True)
    os.chown(made, *user)
    return made


def _failed(path: Path, said: str, given: Injection) -> dict[str, str]:
    """What the program says; it has read what a guest's image has, so nothing is taken for granted."""
    try:
        answer: Any = json.loads(said[:65536])
        error, failed = answer.get("error"), answer.get("failed", {})
        if error:
            return dict.fromkeys(given.named(), _shown(error))
        return {str(name): _shown(why) for name, why in failed.items()}
    except (ValueError, AttributeError):
        raise HypervisorError(f"libguestfs does not say what it has written into the disk {path}.") from None


def _shown(said: object) -> str:
    """What may be in a log and in an answer."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(said)[:400])
