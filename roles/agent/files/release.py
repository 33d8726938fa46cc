# SPDX-License-Identifier: GPL-3.0-or-later
"""Install a release of the agent on a host: a virtual environment, and a link to the one in use.

    release.py install FOLDER ARCHIVE DIGEST [EXTRAS [WHEELS]]
                                                 create FOLDER/releases/DIGEST from the archive, and use it; with a
                                                 folder WHEELS no package index is used; it is removed afterwards
    release.py back FOLDER                       use the previous release again

FOLDER/bin is a link into the release in use, and is changed in one step; running processes keep the files that they
started with. The previous release stays, all others are removed. Dependencies are installed from the archive's lock
files, only as wheels of these versions and hashes. Standard library only: it runs on a fresh Debian.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

PYTHON = "/usr/bin/python3"
#: The Python of agents on a distribution whose own is too old: Rocky Linux 9 has 3.9.
NEWER_PYTHON = "/usr/bin/python3.11"
#: Debian's own libvirt module, which pip could only compile.
LIBVIRT = ("libvirt.py", "libvirt_qemu.py", "libvirt_lxc.py", "libvirtaio.py", "libvirtmod*.so", "libvirt_python-*")
#: The module's source for a distribution that has it for its own, older Python only: pip compiles it.
LIBVIRT_SOURCE = ("libvirt-python==11.3.0 "
                  "--hash=sha256:4cd31e625e8fefbbe168faedb38cb7fa2da3fa7394326eed29dc46e7ca511979")
STAMP = "magnetar.stamp"
PIP = ("install", "-q", "--disable-pip-version-check", "--no-cache-dir")
#: Installs the packages of locks in an environment; gets it, and the locks.
Installer = Callable[..., None]


def run(*words: object) -> str:
    """Run a command and return its output. If it fails, exit the program with the output as message."""
    arguments = [str(word) for word in words]
    # A fixed list of words, no shell.
    done = subprocess.run(arguments, check=False, text=True, stdout=subprocess.PIPE,  # noqa: S603
                          stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def read(path: Path) -> str:
    """Return the text of a file, "" if the file is missing."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def link_libvirt(environment: Path) -> None:
    """Link Debian's libvirt module, and its metadata for pip, into the virtual *environment*, where there is one."""
    site = next(iter((environment / "lib").glob("python3*/site-packages")))
    for pattern in LIBVIRT:
        for source in Path("/usr/lib/python3/dist-packages").glob(pattern):
            if not (site / source.name).exists():
                (site / source.name).symlink_to(source)


def interpreter() -> str:
    """Return the path of the Python that runs the agent: the distribution's own, unless it is too old."""
    return PYTHON if sys.version_info >= (3, 11) else NEWER_PYTHON


def compile_libvirt(release: Path, source: Sequence[str]) -> None:
    """Install the libvirt module from its source in the environment *release*, unless it has one: the distribution's.
    *source*: arguments of pip. It needs a compiler, and the headers of Python and libvirt.
    """
    if any((release / "lib").glob("python3*/site-packages/libvirt.py")):
        return
    lock = release / "requirements/libvirt.txt"
    lock.write_text(f"{LIBVIRT_SOURCE}\n", encoding="utf-8")
    # Built by the setuptools of the lock; a build environment of its own would fetch another.
    run(release / "bin/pip", *PIP, *source, "--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary",
        "libvirt-python", "-r", lock)


def locks(archive: str, extras: str, folder: Path) -> list[Path]:
    """Extract the lock files of the *extras* from the archive to *folder*; return their paths."""
    folder.mkdir(parents=True)
    found = []
    with tarfile.open(archive) as packed:
        for extra in extras.split(","):
            name = f"magnetar/requirements/{extra}.txt"
            content = packed.extractfile(name) if name in packed.getnames() else None
            if content is None:
                sys.exit(f"{archive} has no lock of {extra}: extras are agent and control.")
            found.append(folder / f"{extra}.txt")
            found[-1].write_bytes(content.read())
    return found


def sources(wheels: str) -> tuple[str, ...]:
    """Return arguments of pip that name where packages come from: the folder *wheels*, or an index if that is ""."""
    return ("--no-index", "--find-links", wheels) if wheels else ()


def by_pip(release: Path, *locks: Path, wheels: str = "") -> None:
    """Install the packages of *locks* in the environment *release*: from the folder *wheels*, or from an index if that
    is ""."""
    locked = (word for lock in locks for word in ("-r", lock))
    run(release / "bin/pip", *PIP, *sources(wheels), "--require-hashes", "--only-binary", ":all:", *locked)


def make(release: Path, archive: str, digest: str, extras: str, wheels: str = "",
         installer: Installer | None = None) -> None:
    """Create the environment *release*, unless it exists. Its stamp is written last: one without it is created
    again."""
    if read(release / STAMP) == digest:
        return
    shutil.rmtree(release, ignore_errors=True)
    run(interpreter(), "-m", "venv", release)
    link_libvirt(release)
    (installer or partial(by_pip, wheels=wheels))(release, *locks(archive, extras, release / "requirements"))
    if "agent" in extras.split(","):
        compile_libvirt(release, sources(wheels))
    # Built by the setuptools of the lock; a build environment of its own would fetch another.
    run(release / "bin/pip", *PIP, "--no-index", "--no-deps", "--no-build-isolation", archive)
    (release / STAMP).write_text(digest, encoding="utf-8")


def point(link: Path, target: str) -> None:
    """Make *link* a symbolic link to *target* in one step; a folder with the name of the link is removed."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)  # an environment made by a script of 0.1.0
    spare = link.with_name(f".{link.name}.new")
    spare.unlink(missing_ok=True)
    spare.symlink_to(target)
    spare.replace(link)


def used(link: Path) -> str:
    """Return the digest in the path that *link* points to; "" if it is no link."""
    return link.readlink().parts[1] if link.is_symlink() else ""


def use(folder: Path, name: str) -> None:
    """Make the release *name* the one in use, and the current one the previous one."""
    current = used(folder / "bin")
    if current and current != name:
        point(folder / "previous", f"releases/{current}")
    point(folder / "bin", f"releases/{name}/bin")
    (folder / STAMP).write_text(read(folder / "releases" / name / STAMP), encoding="utf-8")


def install(folder: Path, archive: str, digest: str, extras: str = "agent", wheels: str = "",
            installer: Installer | None = None) -> None:
    """Create the release and use it; remove all releases except this and the previous one. *extras*: agent, control, or
    both with a comma."""
    name = digest[:16]
    make(folder / "releases" / name, archive, digest, extras, wheels, installer)
    use(folder, name)
    kept = {name, used(folder / "previous")}
    for other in (folder / "releases").iterdir():
        if other.name not in kept:
            shutil.rmtree(other)
    if wheels:
        shutil.rmtree(wheels)


def back(folder: Path) -> None:
    """Use the previous release again."""
    name = used(folder / "previous")
    if not name or not (folder / "releases" / name).is_dir():
        sys.exit("There is no release before this one.")
    use(folder, name)


def main(words: list[str]) -> int:
    """Run the command in *words*: ``install`` or ``back`` with its arguments."""
    os.umask(0o022)  # noqa: TID251 - nothing else runs in this process
    if len(words) in (4, 5, 6) and words[0] == "install":
        install(Path(words[1]), *words[2:])
    elif len(words) == 2 and words[0] == "back":
        back(Path(words[1]))
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
