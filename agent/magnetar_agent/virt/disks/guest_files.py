# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that writes into a guest's file system in libguestfs's appliance, without access to the agent.

``injection`` runs it with the system's Python, which has the module guestfs, as QEMU's user without any capability. It
serves the disk to the appliance with ``qemu-nbd``, so only the appliance's kernel reads the untrusted file system. Its
argument is the descriptor of a job (JSON; see ``injection.Injections.inject``); it prints ``{"failed": {what: why}}``,
or ``{"error": why}`` when nothing could be written.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: MiB of memory of the appliance, and bytes of address space for each program here.
MEMORY, ADDRESS_SPACE = 512, 4 * 2**30
#: The most bytes of each file that the appliance, or data read from it, leaves on the host meanwhile.
FILE = 256 * 2**20
#: Seconds until ``qemu-nbd`` must listen, and that it may take to write its cached data.
READY, LAST_WORDS = 20.0, 60.0
#: The largest /etc/passwd, /etc/shadow and list of keys that are read from a guest.
READ_MAX = 2**20
KEYS, RC_LOCALS = "/root/.ssh/authorized_keys", ("/etc/rc.local", "/etc/rc.d/rc.local")
MARK = "# Added by Magnetar: keys that were injected get their SELinux context"


class NotWritable(Exception):
    """Raised when the disk has no suitable file system or file to write to. The message is the reason."""


def main() -> None:
    """Read an injection job as JSON from the file descriptor that the first command line argument names, run the job,
    and print the result as JSON."""
    job = json.loads(Path(f"/proc/self/fd/{sys.argv[1]}").read_bytes())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    os.environ["XDG_RUNTIME_DIR"] = job["folder"]  # for libguestfs's sockets
    try:
        report: dict[str, Any] = {"failed": _in_folder(job, Path(job["folder"]))}
    except (NotWritable, RuntimeError, OSError) as error:
        report = {"error": _plain(error)}
    print(json.dumps(report))


def _in_folder(job: dict[str, Any], folder: Path) -> dict[str, str]:
    socket = folder / "disk.sock"
    server = _serve(job, folder, socket)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))  # except for the disk's own file
    try:
        failed = _with_appliance(job, folder, socket)
        # qemu-nbd ends when the appliance has released the disk, and has written everything by then.
        if server.wait(LAST_WORDS):
            raise NotWritable(f"qemu-nbd ended with status {server.returncode}")
    except subprocess.TimeoutExpired:
        raise NotWritable("qemu-nbd does not end") from None
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    return failed


def _serve(job: dict[str, Any], folder: Path, socket: Path) -> subprocess.Popen[bytes]:
    """Start qemu-nbd, which serves the disk of *job* on the unix socket *socket* to one client, and return its process.
    Raises ``NotWritable`` if qemu-nbd does not listen in time."""
    listens, output_file = folder / "pid", folder / "said"
    with output_file.open("wb") as words:
        server = subprocess.Popen(  # noqa: S603 (a list of the agent's; no shell)
            ["setpriv", "--pdeathsig", "KILL", "--", "qemu-nbd", f"--socket={socket}", f"--pid-file={listens}",  # noqa: S607
             "--cache=writeback", "--discard=unmap", *job["options"], job["node"]],
            stdin=subprocess.DEVNULL, stdout=words, stderr=words, pass_fds=job["files_held"])
    end = time.monotonic() + READY
    while not listens.exists():
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            raise NotWritable(
                f"qemu-nbd: {output_file.read_text(errors='replace').strip()[:300] or 'it does not listen'}")
        time.sleep(0.02)
    return server


def _with_appliance(job: dict[str, Any], folder: Path, socket: Path) -> dict[str, str]:
    import guestfs  # type: ignore[import-not-found]  # the system's, where the setting asks for it

    guest = guestfs.GuestFS(python_return_dict=True, close_on_exit=False)
    try:
        guest.set_path(job["appliance"])
        guest.set_backend("direct")
        guest.set_tmpdir(str(folder))
        guest.set_cachedir(str(folder))
        guest.set_memsize(MEMORY)
        guest.set_network(False)
        if not job["kvm"]:
            guest.set_backend_setting("force_tcg", "1")
        guest.add_drive_opts("", format="raw", protocol="nbd", server=[f"unix:{socket}"], cachemode="writeback")
        guest.launch()
        mount_file_systems(guest, job["partition"])
        failed = write_injected_parts(guest, job)
        guest.shutdown()  # raises for data that could not be written
        return failed
    finally:
        guest.close()


def mount_file_systems(guest: Any, partition: int) -> None:
    """Mount the file systems of the attached disk in *guest*, a libguestfs handle. *partition*: 0 for a disk without
    partitions; 1 or more for this partition; -1 for all file systems of the operating system on the disk. Raises
    ``NotWritable`` if -1 does not find exactly one operating system, or it is not Linux."""
    if partition >= 0:
        guest.mount(f"/dev/sda{partition or ''}", "/")
        return
    roots = guest.inspect_os()
    if len(roots) != 1:
        raise NotWritable("no operating system is found on it" if not roots else "several operating systems are on it")
    kind = guest.inspect_get_type(roots[0])
    if kind != "linux":
        raise NotWritable(f"its operating system is {kind}, and not Linux")
    for place, device in sorted(guest.inspect_get_mountpoints(roots[0]).items(),
                                key=lambda mount_point: len(mount_point[0])):
        guest.mount(device, place)


def write_injected_parts(guest: Any, job: dict[str, Any]) -> dict[str, str]:
    """Write the SSH key, metadata, password and files of *job* into the mounted disk. *guest*: a libguestfs handle.
    Returns ``{part: reason}`` for the parts (key, metadata, password, files) that could not be written."""
    failed = {}
    for name, writes in (("key", _key), ("metadata", _metadata), ("password", _password), ("files", _files)):
        if job[name]:
            try:
                writes(guest, job[name])
            except (NotWritable, RuntimeError) as error:
                failed[name] = _plain(error)
    return failed


def _key(guest: Any, key: str) -> None:
    """Append the SSH public key *key* to root's authorized_keys on the mounted disk, unless it is there already.
    *guest*: a libguestfs handle."""
    guest.mkdir_p("/root/.ssh")
    guest.chown(0, 0, "/root/.ssh")
    guest.chmod(0o700, "/root/.ssh")
    present_keys = _read(guest, KEYS) if guest.is_file(KEYS, followsymlinks=True) else b""
    if key.encode() not in present_keys.splitlines():
        begin = b"" if not present_keys or present_keys.endswith(b"\n") else b"\n"
        _check(guest, KEYS)
        guest.write_append(KEYS, begin + key.encode() + b"\n")
    guest.chown(0, 0, KEYS)
    guest.chmod(0o600, KEYS)
    if guest.exists("/etc/selinux"):
        _relabel(guest)


def _relabel(guest: Any) -> None:
    """Add a command to the guest's rc.local that sets the SELinux context of root's SSH keys at boot: it cannot be set
    here, because the libguestfs appliance has no SELinux policy."""
    path = next((candidate for candidate in RC_LOCALS if guest.is_file(candidate, followsymlinks=True)), None)
    script = _read(guest, path) if path else b"#!/bin/sh\n"
    if MARK.encode() in script:
        return
    path = path or RC_LOCALS[bool(guest.is_dir("/etc/rc.d", followsymlinks=True))]
    lines = [line for line in script.decode(errors="surrogateescape").splitlines() if line.strip() != "exit 0"]
    text = "\n".join([*lines, MARK, "restorecon -RF /root/.ssh 2>/dev/null || :", ""])
    _write(guest, path, text.encode(errors="surrogateescape"))
    guest.chmod(0o755, path)


def _metadata(guest: Any, metadata: dict[str, str]) -> None:
    _write(guest, "/meta.js", json.dumps(metadata).encode())


def _password(guest: Any, hashed: str) -> None:
    if not any(line.startswith(b"root:") for line in _read(guest, "/etc/passwd").splitlines()):
        raise NotWritable("/etc/passwd has no user root")
    _write(guest, "/etc/shadow", replace_root_password(_read(guest, "/etc/shadow"), hashed.encode()))


def replace_root_password(text: bytes, hashed: bytes) -> bytes:
    """Replace the password hash of root in *text*, the content of /etc/shadow, by *hashed*, and return the new text.
    Raises ``NotWritable`` if there is no user root."""
    lines = text.split(b"\n")
    for number, line in enumerate(lines):
        fields = line.split(b":")
        if fields[0] == b"root" and len(fields) > 1:
            lines[number] = b":".join([fields[0], hashed, *fields[2:]])
            return b"\n".join(lines)
    raise NotWritable("/etc/shadow has no user root")


def _files(guest: Any, files: list[list[str]]) -> None:
    for path, content in files:
        _write(guest, path if path.startswith("/") else f"/{path}", base64.b64decode(content))


def _read(guest: Any, path: str) -> bytes:
    """Return the content of the file *path* on the mounted disk. Raises ``NotWritable`` if it is too large or not a
    regular file."""
    _check(guest, path)
    if guest.filesize(path) > READ_MAX:
        raise NotWritable(f"{path} is larger than {READ_MAX} bytes")
    return bytes(guest.read_file(path))


def _write(guest: Any, path: str, content: bytes) -> None:
    _check(guest, path)
    guest.write(path, content)


def _check(guest: Any, path: str) -> None:
    """Raise ``NotWritable`` if *path* on the mounted disk exists and is not a regular file."""
    if guest.exists(path) and not guest.is_file(path, followsymlinks=True):
        raise NotWritable(f"{path} is not a file")


def _plain(error: Exception) -> str:
    """Return the text of *error* on one line, at most 400 characters long."""
    return " ".join(str(error).split())[:400].rstrip(".") or type(error).__name__


if __name__ == "__main__":
    main()
