# SPDX-License-Identifier: GPL-3.0-or-later
"""Injection of files into a guest's disk before its first start, with libguestfs.

The host reads nothing of the disk: only the kernel of libguestfs's appliance does, a separate virtual machine without a
network. The appliance and the program that drives it (``guest_files``) run as QEMU's user without any capability, with
limits of memory and time; they read their input from a file without a name. The agent builds the appliance from the
host's packages as root: an attacker who has broken out of a guest cannot change it.
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

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.virt.tools.process import run_program, unnamed_file
from magnetar_core.errors import HypervisorError

from . import qemu_img

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from magnetar_agent.host.storage import Disk, Injection

#: The Python for which distributions package the module guestfs.
PYTHON = "/usr/bin/python3"
PROGRAM = Path(__file__).with_name("guest_files.py")
#: Paths that change when ``PYTHON`` gets a module or a library for one: folders of modules, and the list of libraries.
SEARCHED = ("/usr/lib/python3*/*-packages", "/usr/lib64/python3*/*-packages", "/usr/local/lib/python3*/*-packages",
            "/etc/ld.so.cache")
#: The folder in which libguestfs's packages have the parts of its appliance.
PARTS = ("/usr/lib/*/guestfs/supermin.d", "/usr/lib64/guestfs/supermin.d", "/usr/lib/guestfs/supermin.d")
#: Seconds that an injection may take, under KVM and under emulation, where an appliance boots slowly, and seconds to
#: build the appliance.
TIMEOUT, EMULATED, BUILDING = 120.0, 600.0, 300.0
_KVM, _MODULES = Path("/dev/kvm"), Path("/lib/modules")


class Injections:
    """The methods of ``LocalHypervisor`` that write into guests' file systems with libguestfs. *state_dir*: folder for
    the libguestfs appliance."""

    def __init__(self, state_dir: Path) -> None:
        self._appliance = state_dir / "appliance"
        self._building = threading.Lock()
        self._can_inject = False
        self._without_module: Mapping[str, int] | None = None  # ``_searched`` at the last check without the module

    def qemu_user(self) -> tuple[int, int]:
        """Return the ids of the user and group that QEMU runs with."""
        raise NotImplementedError

    def permit(self, paths: Iterable[Path]) -> None:
        """Give QEMU's group read access to all files in *paths*, recursively; see ``Disks.permit``."""
        raise NotImplementedError

    def inject(self, disk: Disk, injection: Injection, kvm: bool) -> Mapping[str, str]:
        """Write the SSH key, metadata, password and files in *injection* to the file systems on *disk*. Return ``{part:
        reason}`` for the parts (key, metadata, password, files) that could not be written. *kvm*: whether the
        libguestfs appliance may use KVM."""
        if disk.remote is not None:
            raise HypervisorError(f"Nothing is written into the disk {disk.path}: it is in Ceph, for whose key the "
                                  "program that does it has no right.")
        if lacks := self.lacks_injection():
            raise HypervisorError(f"Nothing can be written into the disk {disk.path}: {lacks}.")
        appliance, user = self._built(), self.qemu_user()
        format = "luks" if disk.key and disk.format == "raw" else disk.format
        # Not root's group, where all may use KVM: that group can read more than a disk.
        groups = [group] if kvm and _KVM.exists() and (group := _KVM.stat().st_gid) else []
        with qemu_img.Nodes(user, disk.key) as nodes, ExitStack() as stack:
            node = nodes.source(disk.path, format, write=True)
            job = {"appliance": str(appliance), "kvm": kvm, "node": node, "options": nodes.options,
                   "files_held": nodes.files, "folder": _folder(stack, user),
                   "partition": injection.partition, "key": None, "password": None,
                   "metadata": None, "files": None, **injection.parts()}
            program, task = (unnamed_file(stack, content) for content in (PROGRAM.read_bytes(),
                                                                          json.dumps(job).encode()))
            output = run_program([PYTHON, "-I", f"/proc/self/fd/{program}", str(task)],
                                 f"write into the disk {disk.path}",
                                 TIMEOUT if kvm else EMULATED, user, [program, task, *nodes.files], groups)
        return _failed(disk.path, output, injection)

    def lacks_injection(self) -> str:
        """Return a text that names the first requirement of ``inject`` that this host lacks, such as libguestfs; "" if
        it has all."""
        if not self._can_inject:
            if _parts() is None:
                return "libguestfs is not installed (python3-guestfs brings it)"
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
        """Return whether the system's Python has the module guestfs. A negative result is cached until the module
        folders change, because the check starts a process."""
        searched = _searched()
        if searched == self._without_module:
            return False
        try:
            run_program([PYTHON, "-I", "-c", "import guestfs"], "import the module guestfs")
        except HypervisorError as error:
            if "No module named" in error.message:  # otherwise time or memory was missing
                self._without_module = searched
            return False
        return True

    def _built(self) -> Path:
        """Return the folder of the libguestfs appliance. Build the appliance if it is missing or if packages that it
        contains have changed."""
        with self._building:
            make_state_folder(self._appliance.parent)
            lock = self._appliance.with_name("appliance.lock")
            run_program(["supermin", "--build", "--if-newer", "--lock", str(lock), "--copy-kernel", "-f", "ext2",
                         "--host-cpu", platform.machine(), str(_parts()), "-o", str(self._appliance)],
                        "build libguestfs's appliance", BUILDING)
            # libguestfs recognises by this name an appliance that it does not build itself.
            (self._appliance / "README.fixed").touch()
            self._appliance.chmod(0o750)
            self.permit([self._appliance])
        return self._appliance


def _searched() -> dict[str, int]:
    """Return ``{path: modification time in ns}`` of the system's Python and its module folders, to detect that a module
    was installed."""
    times: dict[str, int] = {}
    for path in (Path(PYTHON), *(path for pattern in SEARCHED for path in Path("/").glob(pattern[1:]))):
        with suppress(OSError):
            times[str(path)] = path.stat().st_mtime_ns
    return times


def _parts() -> Path | None:
    return next((folder for pattern in PARTS for folder in sorted(Path("/").glob(pattern[1:]))), None)


def _folder(stack: ExitStack, user: tuple[int, int]) -> str:
    """Return the path of a new temporary folder owned by *user* (uid, gid). It is removed when *stack* closes."""
    made = tempfile.mkdtemp(prefix="magnetar-inject-")
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    os.chown(made, *user)
    return made


def _failed(path: Path, output: str, injection: Injection) -> dict[str, str]:
    """Return ``{part: reason}`` for the parts of *injection* that could not be written, parsed from the *output* of
    ``guest_files``. The output is not trusted, because that program reads the guest's disk. *path*: the disk, for
    errors."""
    try:
        answer: Any = json.loads(output[:65536])
        error, failed = answer.get("error"), answer.get("failed", {})
        if error:
            return dict.fromkeys(injection.parts(), _printable_text(error))
        return {str(name): _printable_text(why) for name, why in failed.items()}
    except (ValueError, AttributeError):
        raise HypervisorError(f"libguestfs does not say what it has written into the disk {path}.") from None


def _printable_text(text: object) -> str:
    """Return *text* without unprintable characters and at most 400 characters long, for logs and API responses."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:400])
