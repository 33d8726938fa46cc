# SPDX-License-Identifier: GPL-3.0-or-later
"""TPMs of domains, implemented by swtpm: their state, and the secret that encrypts it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.virt.disks.disks import atomic_file
from magnetar_core.errors import HypervisorError

#: The folder of libvirt's TPM states: it has a folder for each domain, with a folder for each version of TPM.
SWTPM = Path("/var/lib/libvirt/swtpm")
VERSIONS = ("tpm1.2", "tpm2")
#: The most bytes of a file: far more than swtpm writes.
MOST = 16 << 20
_FILE = re.compile(r"tpm(?:1\.2|2)/[a-z0-9][a-z0-9.-]*")
_XML = """<secret ephemeral="yes" private="yes"><uuid>{uuid}</uuid>
<usage type="vtpm"><name>{uuid}</name></usage></secret>"""


class Tpms:
    """The methods of ``LocalHypervisor`` for the state of emulated TPMs (swtpm)."""

    def save_tpm(self, uuid: str, path: Path) -> None:
        """Save the TPM state files of the domain *uuid* as the tar archive *path*. If there are none, remove *path*."""
        with _convert_tpm_errors(uuid):
            _save(uuid, path)

    def load_tpm(self, uuid: str, path: Path) -> None:
        """Replace the TPM state files of the domain *uuid* by those in the tar archive *path*. Do nothing if *path*
        does not exist."""
        if path.exists():
            with _convert_tpm_errors(uuid):
                _load(uuid, path)


def _save(uuid: str, path: Path) -> None:
    with _opened(uuid) as files:
        if not files:
            path.unlink(missing_ok=True)
            return
        with atomic_file(path) as part, tarfile.open(part, "w") as archive:
            part.chmod(0o600)
            for name, descriptor in files:
                _add(archive, name, descriptor)


@contextmanager
def _opened(uuid: str) -> Iterator[list[tuple[str, int]]]:
    """Yield pairs (name in the archive, open descriptor) of the TPM state files of the domain *uuid*. Symbolic links
    are not followed, because a guest that has broken into swtpm could create them."""
    with ExitStack() as stack:
        files = []
        for version in VERSIONS:
            try:
                folder = os.open(SWTPM / uuid / version, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            stack.callback(os.close, folder)
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - of a descriptor
                if _FILE.fullmatch(f"{version}/{name}"):
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                    stack.callback(os.close, file)
                    files.append((f"{version}/{name}", file))
        yield files


def _add(archive: tarfile.TarFile, name: str, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST:
        raise HypervisorError(f"{name} of a TPM is no file that swtpm writes. An operator must look after it in "
                              f"{SWTPM}.")
    info = tarfile.TarInfo(name)
    info.size = status.st_size
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        archive.addfile(info, file)


def _load(uuid: str, path: Path) -> None:
    new = SWTPM / f"{uuid}.new"
    shutil.rmtree(new, ignore_errors=True)
    make_state_folder(new)
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() and _FILE.fullmatch(member.name) else None
            if content is None:
                raise HypervisorError(f"What came of the TPM of the domain {uuid} has a part {member.name!r}, "
                                      "which no TPM has. Repeat the migration.")
            (new / member.name).parent.mkdir(mode=0o700, exist_ok=True)
            with (new / member.name).open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                shutil.copyfileobj(content, file)
                file.flush()
                os.fsync(file.fileno())
    forget_tpm(uuid)
    new.rename(SWTPM / uuid)


@contextmanager
def _convert_tpm_errors(uuid: str) -> Iterator[None]:
    """Convert an ``OSError`` inside the ``with`` block to a ``HypervisorError`` about the TPM of the domain *uuid*."""
    try:
        yield
    except OSError as error:
        raise HypervisorError(f"What is in the TPM of the domain {uuid} cannot be reached: {error}. See whether the "
                              f"agent may write to {SWTPM}, and whether there is room.") from error


def forget_tpm(uuid: str) -> None:
    """Remove the TPM state files of the domain *uuid*, if there are any."""
    with _convert_tpm_errors(uuid), suppress(FileNotFoundError):
        shutil.rmtree(SWTPM / uuid)


@contextmanager
def unlocked_tpm(conn: Any, uuid: str, secret: str | None) -> Iterator[None]:
    """Define *secret*, which decrypts the domain's TPM state, as a libvirt secret during the ``with`` block. ``None``:
    the domain has no TPM. libvirt stores the secret only in memory."""
    if secret is None:
        yield
        return
    lend_tpm_secret(conn, uuid, secret)
    try:
        yield
    finally:
        take_back_tpm_secret(conn, uuid)


def lend_tpm_secret(conn: Any, uuid: str, secret: str) -> None:
    """Define *secret*, which decrypts the TPM state of the domain *uuid*, as a libvirt secret. ``take_back_tpm_secret``
    removes it."""
    conn.secretDefineXML(_XML.format(uuid=uuid)).setValue(secret.encode())


def take_back_tpm_secret(conn: Any, uuid: str) -> None:
    """Remove the libvirt secret of the domain's TPM. A missing secret is ignored."""
    with suppress(libvirt.libvirtError):  # another start of the same domain was faster
        conn.secretLookupByUUIDString(uuid).undefine()
