# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the lab's guest of aarch64 from Debian packages: a disk that boots by UEFI (GRUB, kernel and ramdisk in one
file system without a partition table). It says on its serial console (`guest.markers`) what it is and has, answers what
is typed there with `GUEST said …`, and goes when its power button is pressed. 512 MiB of memory will do.

Only apt is asked for anything, with lists of its own; root is not needed.
"""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

from magnetar_agent.virt.disks import vfat
from tests.support.lab import guest

CACHE = guest.CACHE.with_name("guest-arm")
DISK = "disk.qcow2"
KERNEL = "linux-image-cloud-arm64"
#: Packages of aarch64, and packages of this machine that build GRUB's image.
PACKAGES = ("busybox-static", "grub-efi-arm64-bin")
TOOLS = ("grub-common", "libc6", "libdevmapper1.02.1", "liblzma5", "libpcre2-8-0", "libselinux1", "libudev1")
MODULES = ("virtio_pci", "virtio_blk", "sd_mod", "sr_mod", "virtio_scsi", "virtio_net", "virtio-rng", "evdev",
           "tpm_tis")  # fmt: skip
#: Kernel and ramdisk in /boot of the file system that GRUB was loaded from.
CONFIG = "linux /vmlinuz console=ttyAMA0 quiet panic=0\ninitrd /initrd\nboot\n"
INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec </dev/console >/dev/console 2>&1
while read -r module options; do insmod "/modules/$module" $options; done </modules/order
mount -t securityfs securityfs /sys/kernel/security
echo "GUEST machine=$(uname -m) cpus=$(grep -c ^processor /proc/cpuinfo)"
echo "GUEST part=$(sed -n '/CPU part/{s/.*: //p;q}' /proc/cpuinfo)"
echo "GUEST efi=$([ -d /sys/firmware/efi ] && echo yes) product=$(cat /sys/class/dmi/id/product_version)"
echo "GUEST interrupts=$(sed -n '/GICv3/{s/.*/GICv3/p;q}' /proc/interrupts)"
echo "GUEST disks=$(cd /sys/block; echo [svh]*)"
echo "GUEST nic=$(cat /sys/class/net/eth0/address)"
echo "GUEST iommus=$(cd /sys/class/iommu; echo *) groups=$(ls /sys/kernel/iommu_groups | wc -l)"
echo "GUEST tpm=$(cat /sys/class/tpm/tpm0/tpm_version_major)"
cards=
for card in /sys/bus/pci/devices/*; do cards="$cards $(cat $card/device)"; done
echo "GUEST cards=$cards"
acpid -f -c /etc/acpi -l /dev/null &
echo "GUEST ready"
while read -r line; do echo "GUEST said $line"; done </dev/ttyAMA0
exec sleep 86400
"""


def build() -> dict[str, Path]:
    """Return the guest's files, `disk`. It is created when it does not exist or is older than its inputs."""
    return guest.kept(CACHE, {"disk": DISK}, guest.inputs_key(Path(__file__).resolve()), make)


def make(work: Path) -> dict[str, Path]:
    """Create the disk in the folder `work`, and return it."""
    tree, tools = unpacked(work)
    release = next((tree / "lib/modules").iterdir()).name
    files = {"vmlinuz": (tree / f"boot/vmlinuz-{release}").read_bytes(),
             "initrd": gzip.compress(guest.archive(root(tree, release, work / "root")), compresslevel=6, mtime=0),
             "EFI/BOOT/BOOTAA64.EFI": grub(tree, tools, work)}  # fmt: skip
    raw, image = work / "disk.raw", work / DISK
    with raw.open("w+b") as file:
        vfat.write_vfat(file, "LAB-ARM", files)
        file.truncate(vfat.SIZE)
    guest.run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image)
    return {"disk": image}


def unpacked(work: Path) -> tuple[Path, Path]:
    """Return the trees with the unpacked packages: those of aarch64, and those of this machine."""
    tree, tools, config = work / "tree", work / "tools", work / "apt.conf"
    for folder in ("debs", "own", "state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    config.write_text(f'APT::Architecture "arm64"; APT::Architectures {{"arm64";}}; Acquire::Languages "none"; '
                      f'Dir::State "{work}/state"; Dir::State::status "/dev/null"; Dir::Cache "{work}/cache"; '
                      'APT::Sandbox::User "root";\n')  # fmt: skip
    other = ["env", f"APT_CONFIG={config}"]
    guest.run(*other, "apt-get", "update")
    image = re.search(r"Depends: (linux-image-\S+)", guest.run(*other, "apt-cache", "depends", KERNEL))
    assert image, f"apt knows no package {KERNEL} of arm64"
    guest.run(*other, "apt-get", "download", image[1], *PACKAGES, cwd=work / "debs")
    guest.run("apt-get", "-o", "APT::Sandbox::User=root", "download", *TOOLS, cwd=work / "own")
    for folder, target in (("debs", tree), ("own", tools)):
        guest.merged(target)
        for deb in sorted((work / folder).glob("*.deb")):
            guest.run("dpkg-deb", "-x", deb, target)
    return tree, tools


def root(tree: Path, release: str, place: Path) -> Path:
    """Create the file system of the ramdisk, without device nodes, and return it."""
    for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "proc", "sys", "dev", "modules", "etc", "run"):
        (place / folder).mkdir(parents=True)
    shutil.copy(tree / "bin/busybox", place / "bin/busybox")
    shutil.copytree(guest.ROOTFS / "etc/acpi", place / "etc/acpi")
    (place / "lab").mkdir()
    shutil.copy(guest.ROOTFS / "lab/down", place / "lab/down")
    (place / "init").write_text(INIT)
    (place / "init").chmod(0o755)
    (place / "modules/order").write_text(guest.modules(tree / "lib/modules" / release, place / "modules", MODULES))
    return place


def grub(tree: Path, tools: Path, work: Path) -> bytes:
    """Build GRUB as a UEFI program that starts the guest without a menu."""
    script, image = work / "grub.cfg", work / "grub.efi"
    script.write_text(CONFIG)
    guest.run(*guest.loader(tools), tools / "usr/bin/grub-mkimage", "-O", "arm64-efi",
              "-d", tree / "usr/lib/grub/arm64-efi", "-p", "/", "-c", script, "-o", image, "fat", "linux")  # fmt: skip
    return image.read_bytes()
