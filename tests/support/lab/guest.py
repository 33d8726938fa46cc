# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the lab's tiny guest from Debian packages, in two forms that boot the same system.

* ``disk.qcow2``: boots by itself from the BIOS (GRUB in the MBR gap, one ext4 partition with kernel and ramdisk);
* ``vmlinuz`` and ``initrd``: the same kernel and ramdisk for a direct kernel boot (with `KERNEL_ARGS`).

Machine: q35 or pc, virtio devices, 96 MiB of memory or more (the kernel itself needs 68). Its kernel, as that of
Debian's cloud images, has no SATA: a config drive must be a virtio disk (or a CD-ROM at virtio-scsi, whose search
costs the BIOS six seconds without KVM).

The guest runs from the ramdisk; its programs are in ``rootfs/`` next to this file. It reports on its serial console in
lines that begin with ``GUEST`` (see `markers` and `replies`). Packages come from apt only; root is not needed.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
ROOTFS = HERE / "rootfs"
CACHE = HERE.parents[2] / ".cache" / "guest"

# Where users of the guest find its parts: name in the result of `build` -> file name.
FILES = {"disk": "disk.qcow2", "kernel": "vmlinuz", "ramdisk": "initrd"}

# What the disk's boot loader passes to the kernel; users of the kernel+ramdisk form pass the same.
# The last five spare work that only costs time without KVM.
KERNEL_ARGS = "console=ttyS0 quiet panic=0 nokaslr mitigations=off tsc=reliable no_timer_check cryptomgr.notests"

KERNEL = "linux-image-cloud-amd64"
PACKAGES = (
    # programs of the guest
    "busybox-static", "lua5.4", "lua-cjson", "lua-socket", "qemu-guest-agent", "radvd",
    # their shared libraries
    "libatomic1", "libc6", "libcap2", "libglib2.0-0", "liblua5.4-0", "libnuma1", "libpcre2-8-0", "libreadline8",
    "libtinfo6", "libudev1", "liburing2",
    # the boot loader, and what its installer needs to run here
    "grub-common", "grub-pc-bin", "libdevmapper1.02.1", "liblzma5", "libselinux1",
)  # fmt: skip
PROGRAMS = ("usr/bin/lua5.4", "usr/sbin/qemu-ga", "usr/sbin/radvd")
# Lua's libraries: where Lua looks for them in the guest (below /usr/lib/lua) -> where the packages have them.
OF_LUA = {"cjson.so": "usr/lib/x86_64-linux-gnu/lua/5.4/cjson.so",
          "socket/core.so": "usr/lib/x86_64-linux-gnu/liblua5.4-socket.so.2.0.0"}  # fmt: skip

# Kernel modules in the order of loading (what they need comes first by itself), with their options.
MODULES = (
    "virtio_pci", "virtio_blk", "sr_mod", "sd_mod", "virtio_scsi", "isofs", "virtio_net", "virtio_console",
    "virtio_balloon", "virtio-rng", "button", "evdev", "pvpanic-pci", "pvpanic-mmio", "virtiofs",
    "8021q",
)  # fmt: skip
MODULE_OPTIONS = {"scsi_mod": "scan=sync"}  # disks are there when the driver is loaded: nothing has to wait for them
SIGNATURE = b"~Module signature appended~\n"

SECTOR = 512
BOOT_START = 2048  # sectors: the usual 1 MiB, with room for GRUB's core image before it
DATA_SIZE = 24 * 2**20
LABEL = "lab-guest"

GUEST_LINE = re.compile(r"GUEST ([^\r\n]*)\r*\n")  # whole lines only: a console log may end in the middle of one


def build(out: Path | str | None = None, force: bool = False) -> dict[str, Path]:
    """Return the guest's files (keys as in `FILES`). They are built when they do not exist or are older than their
    inputs.
    """
    return kept(Path(out) if out else CACHE, FILES, inputs_key(), build_files, force)


def kept(folder: Path, files: Mapping[str, str], key: str, make: Callable[[Path], Mapping[str, Path]],
         force: bool = False) -> dict[str, Path]:
    """Return the `files` in `folder` (name -> path). `make` creates them in a temporary folder (returns name -> path)
    when they do not exist or belong to another `key`. One process creates them at a time; others wait and use the
    result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = {name: folder / file for name, file in files.items()}
    stamp = folder / "key"
    with locked(folder / "lock"):
        fresh = stamp.exists() and stamp.read_text() == key and all(path.exists() for path in result.values())
        if force or not fresh:
            stamp.unlink(missing_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as work:
                for name, made in make(Path(work)).items():
                    made.replace(result[name])
            stamp.write_text(key)
    return result


def inputs_key(*more: Path) -> str:
    """Return a hash of all files in this checkout that determine the guest: this file, ``rootfs/``, and *more* files
    next to it.
    """
    digest = hashlib.sha256()
    for path in [Path(__file__).resolve(), *more, *sorted(p for p in ROOTFS.rglob("*") if p.is_file())]:
        digest.update(f"{path.relative_to(HERE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file *path* within the context."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_files(work: Path) -> dict[str, Path]:
    """Build all files under `work`; return name -> path as in `FILES`."""
    tree = unpack(work)
    release = next((tree / "lib/modules").iterdir()).name
    kernel = work / "vmlinuz"
    shutil.copyfile(tree / f"boot/vmlinuz-{release}", kernel)
    ramdisk = work / "initrd"
    root = guest_root(tree, release, work / "root")
    ramdisk.write_bytes(gzip.compress(archive(root), compresslevel=9, mtime=0))
    return {"kernel": kernel, "ramdisk": ramdisk, "disk": disk(tree, kernel, ramdisk, work)}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its output in English, which is in the error when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def unpack(work: Path) -> Path:
    """Download the packages, and unpack them into one tree without installing them."""
    debs, tree = work / "debs", work / "tree"
    debs.mkdir()
    merged(tree)
    try:
        download(debs)
    except RuntimeError:
        run("apt-get", "update")  # no package lists yet, or lists that name versions which are gone
        download(debs)
    for deb in sorted(debs.glob("*.deb")):
        run("dpkg-deb", "-x", deb, tree)
    return tree


def download(folder: Path) -> None:
    """Download `PACKAGES`, and the kernel image to which the meta package `KERNEL` points, to `folder`."""
    image = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", KERNEL))
    if not image:
        raise RuntimeError(f"apt knows no package {KERNEL}")
    run("apt-get", "-o", "APT::Sandbox::User=root", "download", image[1], *own_names(PACKAGES), cwd=folder)


def own_names(names: Sequence[str]) -> list[str]:
    """Return the names that the packages *names* of Debian 12 have in this machine's release. Since Debian 13,
    libraries whose time values became 64 bits wide have the suffix ``t64``.
    """
    known = run("apt-cache", "policy", *names, *(f"{name}t64" for name in names))
    there = set(re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (?!\(none\))", known, re.MULTILINE))
    return [f"{name}t64" if name not in there and f"{name}t64" in there else name for name in names]


def merged(tree: Path) -> None:
    """Create the folder *tree* with the links that Debian has at its root, so that files of packages are at one path
    whether a package has them in ``bin`` (Debian 12) or in ``usr/bin``.
    """
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")


# The ramdisk


def guest_root(tree: Path, release: str, root: Path) -> Path:
    """Create the guest's file system in `root`, without device nodes."""
    shutil.copytree(ROOTFS, root)
    for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "lib", "lib64", "usr/lib/lua/socket", "modules", "proc", "sys",
                   "dev", "run", "tmp", "root", "var", "disk", "config", "mnt"):  # fmt: skip
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in ETC.items():
        (root / "etc" / name).write_text(text)
    busybox(tree, root)
    programs(tree, root)
    (root / "modules/order").write_text(modules(tree / "lib/modules" / release, root / "modules"))
    return root


ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "shadow": "root:*:19000:0:99999:7:::\n",
    "group": "root:x:0:\n",
    "hosts": "127.0.0.1 localhost\n",
    "mdev.conf": "",
}


def busybox(tree: Path, root: Path) -> None:
    """Install Busybox with a link for each of its commands; commands of this project replace some of them."""
    shutil.copy(tree / "bin/busybox", root / "bin/busybox")
    for name in run(tree / "bin/busybox", "--list").split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "bin/bash").write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
    (root / "bin/bash").chmod(0o755)
    (root / "usr/bin/env").symlink_to("/bin/busybox")
    (root / "init").symlink_to("bin/busybox")
    (root / "var/run").symlink_to("/run")
    for name in ("poweroff", "halt", "reboot", "shutdown"):
        (root / "sbin" / name).symlink_to("/lab/down")
    (root / "sbin/chpasswd").symlink_to("/lab/chpasswd")


def programs(tree: Path, root: Path) -> None:
    """Install `PROGRAMS` with the shared libraries that the loader of the same tree finds for them."""
    for name in PROGRAMS:
        shutil.copy(tree / name, root / name)
        for library in libraries(tree, tree / name):
            shutil.copy(library, root / "lib" / library.name)
    for name, there in OF_LUA.items():
        shutil.copy(tree / there, root / "usr/lib/lua" / name)
    loader = "ld-linux-x86-64.so.2"
    shutil.copy(tree / "lib/x86_64-linux-gnu" / loader, root / "lib64" / loader)


def loader(tree: Path) -> list[str]:
    """Return the beginning of a command line that runs a program of `tree` with the libraries of `tree`."""
    folders = [tree / folder / "x86_64-linux-gnu" for folder in ("lib", "usr/lib")]
    path = ":".join(map(str, folders))
    return [str(folders[0] / "ld-linux-x86-64.so.2"), "--inhibit-cache", "--library-path", path]


def libraries(tree: Path, program: Path) -> list[Path]:
    """Return the shared libraries of a program, all of them from `tree`."""
    found = re.findall(r"(\S+) => (\S+)", run(*loader(tree), "--list", program))
    foreign = [path for name, path in found if not path.startswith(str(tree)) and not name.startswith("/")]
    if foreign:
        raise RuntimeError(f"{program.name} needs {', '.join(foreign)}: add the Debian package to PACKAGES")
    return [Path(path) for name, path in found if not name.startswith("/")]


def modules(source: Path, target: Path, names: tuple[str, ...] = MODULES) -> str:
    """Copy the kernel modules `names` and their dependencies, without those that the kernel itself has; return lines
    `FILE OPTIONS` in the order of loading.
    """
    files = {module_name(path): path for path in source.rglob("*.ko*")}
    built_in = {module_name(Path(line)) for line in (source / "modules.builtin").read_text().splitlines()}
    order: list[str] = []

    def add(name: str) -> None:
        if name in built_in:
            return
        path = files[name]
        file = path.name.removesuffix(".xz")
        if file in order:
            return
        module = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()  # since Debian 13
        for needed in needs(module):
            add(needed.replace("-", "_"))
        (target / file).write_bytes(unsigned(module))
        order.append(file)

    for name in names:
        add(name.replace("-", "_"))
    return "".join(f"{file} {MODULE_OPTIONS.get(file.removesuffix('.ko'), '')}".strip() + "\n" for file in order)


def module_name(path: Path) -> str:
    """Return the name of the kernel module in a file: dashes of the file's name are underscores in it."""
    return path.name.partition(".ko")[0].replace("-", "_")


def needs(module: bytes) -> list[str]:
    """Return the names in a kernel module's `depends=` entry (section .modinfo, strings that end with NUL)."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return found[1].decode().split(",") if found and found[1] else []


def unsigned(module: bytes) -> bytes:
    """Return a kernel module without its signature, whose check would double the time of loading. Layout from the end:
    the marker, 12 bytes `struct module_signature` (the last 4: the signature's length), signature.
    """
    if not module.endswith(SIGNATURE):
        return module
    end = len(module) - len(SIGNATURE)
    length = int.from_bytes(module[end - 4 : end], "big")
    return module[: end - 12 - length]


def archive(root: Path) -> bytes:
    """Return `root` as a cpio archive (newc, the format for the kernel), owned by root, with /dev/console added."""
    parts = [entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1), inode=1)]
    for inode, path in enumerate(sorted(root.rglob("*")), 2):
        name, mode = str(path.relative_to(root)), path.lstat().st_mode
        part = entry(name, mode, content(path, mode), inode=inode)
        # A folder must come before what is in it, and /dev already has something.
        parts.insert(0, part) if name == "dev" else parts.append(part)
    return b"".join([*parts, entry("TRAILER!!!", 0)])


def content(path: Path, mode: int) -> bytes:
    """Return the content of a file in an archive: the target of a link, nothing for a folder."""
    if stat.S_ISLNK(mode):
        return str(path.readlink()).encode()
    return path.read_bytes() if stat.S_ISREG(mode) else b""


def entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0), inode: int = 0) -> bytes:
    """Return the entry of one file in a newc archive: header of hexadecimal numbers, name and data, each padded to 4
    bytes.
    """
    encoded = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


# The disk


def disk(tree: Path, kernel: Path, ramdisk: Path, work: Path) -> Path:
    """Create a disk that boots from the BIOS: MBR, GRUB's core image from sector 1, a boot and a data partition.

    The boot partition has no file system: kernel and ramdisk lie in it one after the other, since GRUB reads plain
    sectors several times faster than files (1.3 s instead of 8 s without KVM).
    """
    kernel_sectors, ramdisk_sectors = filled(kernel.read_bytes()), filled(ramdisk.read_bytes())
    boot = kernel_sectors + ramdisk_sectors
    boot += bytes(-len(boot) % 2**20)
    first, second = len(kernel_sectors) // SECTOR, len(ramdisk_sectors) // SECTOR
    config = f"linux 0+{first} {KERNEL_ARGS}\ninitrd {first}+{second}\nboot\n"
    data, data_start = work / "data", BOOT_START + len(boot) // SECTOR
    run("mke2fs", "-q", "-t", "ext4", "-L", LABEL, "-m", "0", "-E", "lazy_itable_init=0,root_owner=0:0",
        data, f"{DATA_SIZE // 1024}k")  # fmt: skip
    partitions = ((BOOT_START, len(boot) // SECTOR, 0xDA), (data_start, DATA_SIZE // SECTOR, 0x83))
    raw, image = work / "disk.raw", work / "disk.qcow2"
    with raw.open("wb") as file:
        file.write(boot_sector(tree, *partitions))
        file.write(grub_core(tree, config, work))
        file.seek(BOOT_START * SECTOR)
        file.write(boot)
        file.write(data.read_bytes())
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image)
    return image


def filled(data: bytes) -> bytes:
    """Return `data` padded with zeros to whole sectors."""
    return data + bytes(-len(data) % SECTOR)


def boot_sector(tree: Path, *partitions: tuple[int, int, int]) -> bytes:
    """Return GRUB's first sector, which loads sector 1 of its own disk, with partitions as (first sector, sectors,
    type).
    """
    code = (tree / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:440]
    # grub-install does the same for hard disks: two NOPs let GRUB trust the drive number that the BIOS gives.
    code = code[:0x66] + b"\x90\x90" + code[0x68:]
    chs = b"\xfe\xff\xff"
    table = b"".join(
        struct.pack("<B3sB3sII", 0x80 if number == 0 else 0, chs, kind, chs, start, size)
        for number, (start, size, kind) in enumerate(partitions)
    )
    return code + struct.pack("<IH", 0x4C414247, 0) + table.ljust(64, b"\0") + b"\x55\xaa"


def grub_core(tree: Path, config: str, work: Path) -> bytes:
    """Build GRUB's core image with built-in commands that start the guest, so that it shows no menu and does not wait.
    """
    script, core = work / "grub.cfg", work / "core.img"
    script.write_text(config)
    run(*loader(tree), tree / "usr/bin/grub-mkimage", "-O", "i386-pc", "-d", tree / "usr/lib/grub/i386-pc",
        "-p", "(,msdos1)/", "-c", script, "-o", core, "biosdisk", "part_msdos", "linux")  # fmt: skip
    data = core.read_bytes()
    if len(data) > (BOOT_START - 1) * SECTOR:
        raise RuntimeError(f"GRUB's core image of {len(data)} bytes does not fit before the first partition")
    return data


# What the guest says


def markers(console: str) -> list[str]:
    """Return the guest's lines in a console log without the word GUEST: `hostname=web`, `nic eth0 mac=… ip=…`, `ready
    …`.
    """
    return GUEST_LINE.findall(console)


def replies(console: str) -> list[dict[str, Any]]:
    """Return the answers to commands typed into the serial console: `{"disks": […]}`, `{"code": 0, "output": "…"}`."""
    return [json.loads(line.removeprefix("reply ")) for line in markers(console) if line.startswith("reply ")]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the lab's tiny guest from Debian packages.")
    parser.add_argument("--out", type=Path, help=f"folder for {', '.join(FILES.values())} (default: .cache/guest)")
    parser.add_argument("--force", action="store_true", help="build even when nothing changed")
    options = parser.parse_args()
    start = time.monotonic()
    try:
        result = build(options.out, options.force)
    except (OSError, RuntimeError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    for name, path in result.items():
        print(f"{name}\t{path}\t{path.stat().st_size / 2**20:.1f} MiB")
    print(f"kernel arguments\t{KERNEL_ARGS}\nready in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
