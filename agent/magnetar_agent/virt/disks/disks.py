# SPDX-License-Identifier: GPL-3.0-or-later
"""Disk files. A file is written next to its final path as ``.part``, flushed, then renamed, so it is complete or
absent."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host import zeros
from magnetar_agent.host.file_modes import close_file
from magnetar_agent.reconcile.documents import flush_file
from magnetar_agent.virt.tools.process import follow_program, run_program
from magnetar_core.errors import HypervisorError, NoSpace

from . import disk_keys, iso, qcow2, qemu_img, vfat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from magnetar_agent.host.storage import Backing, Disk, DiskKey, DiskSeen, NetworkSource, Progress

#: The suffix of an incomplete file.
PART = ".part"
#: Seconds that QEMU may take to make an encrypted disk: it measures the cost of a key for some seconds of CPU time, and
#: the host may be busy.
ENCRYPTING = 600.0
#: An occasional error of qemu-img before 9.1 on a fast processor: it measures the cost of a key by a clock that may not
#: have moved, and gives up. The most times that qemu-img is run because of this error.
_UNCOUNTED, _UNCOUNTED_TRIES = "Unable to get accurate CPU usage", 20


class Disks:
    """The methods of ``LocalHypervisor`` for disk files. These methods do not use libvirt."""

    def disk(self, path: Path, format: str) -> DiskSeen | None:
        """Return format, size and backing file from the header of the disk file *path*, which may be in use; ``None``
        if it is missing. *format*: the disk's format, which is never detected from its content."""
        return qemu_img.inspect_disk(path, format) if path.exists() else None

    def make_disk(self, path: Path, format: str, size: int, backing: Backing | None = None,
                  label: str | None = None, key: DiskKey | None = None, flushed: bool = True) -> None:
        """Create a disk file of *size* bytes in this *format*.

        - *backing*: the backing file of a qcow2 disk; ``None`` for none.
        - *label*: ``swap`` for a swap area, otherwise the label of an ext4 file system; ``None`` for an empty disk.
        - *key*: the key to encrypt the disk with; ``None`` for no encryption.
        - *flushed*: whether to flush the file to storage."""
        with atomic_file(path, named=False, flushed=flushed) as part:
            if label is not None:
                _labelled(part, format, size, label, key)
            elif key is not None:
                make_encrypted(part, size, key, format, backing)
            else:
                _empty(part, format, size, backing)

    def label_disk(self, path: Path, label: str) -> None:
        """Create a swap area (*label* is ``swap``) or an ext4 file system with this *label* on the existing disk
        *path*. Begin and end of the disk are erased first, so that mkswap and mke2fs find no old signatures there."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            size = zeros.open_file_size(descriptor)
            zeros.write_zeros(descriptor, 0, min(size, zeros.PIECE))
            zeros.write_zeros(descriptor, max(0, size - zeros.PIECE), size)
        finally:
            os.close(descriptor)
        _signed(path, label, path.name)
        flush_file(path)

    def copy_disk(self, source: Path | NetworkSource, source_format: str, path: Path, format: str,
                  progress: Progress, key: DiskKey | None = None) -> None:
        """Copy the disk *source* to the new file *path* with ``qemu-img convert``. *progress*: called with the copied
        and the total bytes; an exception from it aborts the copy. *key*: the key to encrypt the copy with, and to open
        an encrypted source."""
        total = self._copied_size(source, source_format)
        with atomic_file(path) as part:
            if key is not None:
                make_encrypted(part, total, key, format)
                zero = ["--target-is-zero"] if format == "qcow2" else []
                self._convert(source, source_format, part, format, total, progress, *zero, key=key)
            else:
                _empty(part, format, total)
                self._convert(source, source_format, part, format, total, progress, "--target-is-zero")
        progress(total, total)

    def copy_into(self, source: Path | NetworkSource, source_format: str, target: Disk, progress: Progress,
                  blank: bool = False) -> None:
        """Copy the disk *source* to the existing raw disk *target* with ``qemu-img convert -n``. *progress*: see
        ``copy_disk``. *blank*: the target contains only zeros, so zeros are not written."""
        total, more = self._copied_size(source, source_format), ["--target-is-zero"] if blank else []
        self._convert(source, source_format, target.remote or target.path, "raw", total, progress, *more)
        progress(total, total)

    def _convert(self, source: Path | NetworkSource, source_format: str, target: Path | NetworkSource, format: str,
                 total: int, progress: Progress, *more: str, key: DiskKey | None = None) -> None:
        user = self.qemu_user()
        with qemu_img.Nodes(user, key) as nodes:
            options, name = nodes.target(target, format)
            words = [*more, *nodes.options, *options, "--", nodes.source(source, source_format), name]
            follow_program(["qemu-img", "convert", "-p", "-n", *words], f"copy the disk {source}",
                           lambda percent: progress(int(total * percent / 100), total),
                           user=qemu_img.tool_user(user, source, target), files=nodes.files)

    def _copied_size(self, source: Path | NetworkSource, format: str) -> int:
        if isinstance(source, Path) and not source.exists():
            raise HypervisorError(f"The disk {source} cannot be copied: it does not exist.")
        return qemu_img.virtual_disk_size(source, format, self.qemu_user())

    def grow_disk(self, path: Path, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow the disk file *path* to *size* bytes with ``qemu-img resize``. Raises ``HypervisorError`` if it is
        larger already. *key*: the key of an encrypted disk."""
        current = self.disk(path, format)
        if current is None:
            raise HypervisorError(f"The disk {path} cannot be grown: it does not exist.")
        if current.virtual_size > size:
            raise HypervisorError(
                f"The disk {path} has {current.virtual_size} bytes already; it is not shrunk to {size}.")
        if current.virtual_size < size:
            with qemu_img.Nodes(self.qemu_user(), key) as nodes:
                words = [*nodes.options, "--", nodes.source(path, format, write=True)]
                run_program(["qemu-img", "resize", "-q", *words, str(size)], f"grow the disk {path}", user=nodes.user,
                            files=nodes.files)
            flush_file(path)

    def make_iso(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write an ISO 9660 image with *files* (``{path: content}``) atomically to *path*. *label*: the volume label.
        *flushed*: whether to flush the file to storage."""
        with atomic_file(path, named=False, flushed=flushed) as part:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            with os.fdopen(descriptor, "wb") as target:
                iso.write_iso(target, label, files)

    def make_vfat(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write a FAT16 file system image with *files* (``{path: content}``) atomically to *path*. *label*: the volume
        label. *flushed*: whether to flush the file to storage."""
        with atomic_file(path, named=False, flushed=flushed) as part:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            with os.fdopen(descriptor, "wb") as target:
                vfat.write_vfat(target, label, files)

    def permit(self, paths: Iterable[Path]) -> None:
        """Give QEMU's group read access to all files and folders in *paths*, recursively."""
        group = self.qemu_group()
        for top in paths:
            _open_to(top, group)
            for _folder, folders, files, folder_descriptor in os.fwalk(top) if top.is_dir() else ():
                for name in (*folders, *files):
                    _open_to(name, group, folder_descriptor)

    def qemu_group(self) -> int:
        """Return the id of the group that QEMU runs with."""
        raise NotImplementedError

    def qemu_user(self) -> tuple[int, int]:
        """Return the ids of the user and group that QEMU runs with."""
        raise NotImplementedError


@contextmanager
def atomic_file(path: Path, named: bool = True, flushed: bool = True) -> Iterator[Path]:
    """Yield a temporary path for a new file, and rename the file to *path* at the end of the ``with`` block; after an
    error, remove it. *flushed*: flush its content before the rename. *named*: flush the rename too.

    Only owner and group get access to the file. A temporary file of an interrupted attempt is removed first."""
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    try:
        yield part
        close_file(part)
        if flushed:
            flush_file(part)
        os.replace(part, path)  # noqa: PTH105  a Path would make another one, for nothing
        if named:
            flush_file(path.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _refused(path, error) from error
        raise


def direct_io(folder: Path) -> bool:
    """Return whether the file system of *folder* supports O_DIRECT, which QEMU's cache mode none requires."""
    try:
        return _direct_io(folder.stat().st_dev, folder)
    except OSError:
        return True


_SEEN: dict[int, bool] = {}
#: The number of devices that are remembered; when there are more, all are forgotten.
DEVICES = 1000


def _direct_io(device: int, folder: Path) -> bool:
    works = _SEEN.get(device)
    if works is None:
        probe = folder / f".direct-{os.getpid()}-{threading.get_ident()}{PART}"
        try:
            os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600))
            works = True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            works = False
        finally:
            probe.unlink(missing_ok=True)
        if len(_SEEN) >= DEVICES:
            _SEEN.clear()
        _SEEN[device] = works
    return works


def _labelled(part: Path, format: str, size: int, label: str, key: DiskKey | None = None) -> None:
    """Create the disk file *part* of *size* bytes with a swap area (*label* is ``swap``) or an ext4 file system with
    this *label*. *key*: the key to encrypt the disk with; ``None`` for no encryption."""
    raw = part if format == "raw" else part.with_name(part.name + ".raw")
    raw.unlink(missing_ok=True)
    try:
        _sparse(raw, size)
        _signed(raw, label, part.stem)
        if raw != part and key is not None:
            make_encrypted(part, size, key, format)
            with disk_keys.qemu_key_options([key]) as (words, files):
                run_program(["qemu-img", "convert", "-n", *words, "--image-opts", "--target-image-opts",
                             "--target-is-zero", "--", f"driver=raw,file.filename={_escaped(raw)}",
                             f"driver={format},file.filename={_escaped(part)},encrypt.format=luks,"
                             f"encrypt.key-secret={disk_keys.key_object_name(0)}"], f"make the disk {part.stem}",
                            files=files)
        elif raw != part:
            run_program(["qemu-img", "convert", "-f", "raw", "-O", format, "--", str(raw), str(part)],
                        f"make the disk {part.stem}")
    finally:
        if raw != part:
            raw.unlink(missing_ok=True)


def _signed(raw: Path, label: str, name: str) -> None:
    """Create a swap area on the raw disk file *raw* if *label* is ``swap``, otherwise an ext4 file system with this
    label. *name*: the disk's name in error messages."""
    if label == "swap":
        run_program(["mkswap", "--label", "swap", "--", str(raw)], f"make the swap disk {name}")
    else:
        run_program(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", "-L", label.encode()[:16].decode(errors="ignore"),
                     "--", str(raw)], f"make the file system of {name}")


def _escaped(path: Path) -> str:
    """Return *path* with each comma doubled, as QEMU's comma-separated options require."""
    return str(path).replace(",", ",,")


def _empty(part: Path, format: str, size: int, backing: Backing | None = None) -> None:
    """Create the disk file *part* of *size* bytes: empty, or a qcow2 overlay on *backing*."""
    path = backing.path if backing else part
    if not path.is_absolute():
        raise HypervisorError(f"The path {path} of a disk is not absolute.")
    if format == "qcow2":
        qcow2.create_qcow2(part, size, backing)
    elif format == "raw" and backing is None:
        _sparse(part, size)
    else:
        raise HypervisorError(f"The disk {part.stem} cannot be made: only a qcow2 stands on another.")


def make_encrypted(part: Path, size: int, key: DiskKey, format: str = "luks", backing: Backing | None = None) -> None:
    """Create the encrypted disk file *part*: LUKS 1 (AES-256 in XTS mode), or a qcow2 with the same encryption, which
    may have a *backing* file.

    The key derivation uses few iterations, because a random key of 256 bits does not need slow derivation, which would
    delay each opening of the disk by seconds.
    """
    options = {"key-secret": disk_keys.key_object_name(0), "cipher-alg": "aes-256", "cipher-mode": "xts",
               "ivgen-alg": "plain64", "hash-alg": "sha256", "iter-time": "10"}
    if format == "qcow2":
        options = {"encrypt.format": "luks", **{f"encrypt.{name}": value for name, value in options.items()}}
    on = ["-u", "-b", str(backing.path), "-F", backing.format] if backing else []
    with disk_keys.qemu_key_options([key]) as (words, files):
        create = ["qemu-img", "create", "-q", "-f", format, *words, *on, "-o",
                  ",".join(f"{name}={value}" for name, value in options.items()), "--", str(part), str(size)]
        for tries_left in reversed(range(_UNCOUNTED_TRIES)):
            try:
                run_program(create, f"make the disk {part.stem}", ENCRYPTING, files=files)
                break
            except HypervisorError as error:
                if not tries_left or _UNCOUNTED not in str(error):
                    raise
                part.unlink(missing_ok=True)
    part.chmod(0o640)


def _sparse(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _open_to(path: Path | str, group: int, folder: int | None = None) -> None:
    """Change the group of the file *path* to *group* (a gid), with read access. *folder*: descriptor of the folder that
    *path* is relative to. Symbolic links are skipped, and a file that is replaced meanwhile is not affected."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status, inode = os.fstat(descriptor), f"/proc/self/fd/{descriptor}"
        mode = status.st_mode & 0o7777 | (0o050 if stat.S_ISDIR(status.st_mode) else 0o040)
        if stat.S_ISLNK(status.st_mode):
            return
        if status.st_gid != group:
            os.chown(inode, -1, group)
        if mode != status.st_mode & 0o7777:
            Path(inode).chmod(mode)
    finally:
        os.close(descriptor)


def _refused(path: Path, error: OSError) -> HypervisorError | NoSpace:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"The host has no room left to make {path}. Free some, then repeat the call.")
    return HypervisorError(f"The agent could not make {path}: {error.strerror}.")
