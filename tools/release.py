# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds a release: the collection with its bill of materials, the Python package as sdist and wheel, the release
notes, checksums, and `release.yml`, which names the version and its commit.

    python -m tools.release dist
    python -m tools.release dist --tag
    python -m tools.release --next 0.2.0

The same commit gives the same files. `--next` records the commit as released, and raises the version.
`--rehearse` builds from uncommitted files too, as `./check collection` does.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools import layout, lock, release_notes, releases, sbom

ROOT = Path(__file__).resolve().parents[1]
#: Names of the files about the release.
DESCRIPTION, CHECKSUMS, NOTES = "release.yml", "SHA256SUMS", "RELEASE_NOTES.rst"


class NotReady(Exception):
    """There can be no release of the tree as it is; the message names each reason."""


def git_output(*words: str) -> str:
    """Return what a git command prints about the project."""
    return subprocess.run(["git", *words], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def release_version() -> str:
    """Return the version in galaxy.yml. Raises ``NotReady`` unless pyproject.toml has the same."""
    version = str(yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"])
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if version != package:
        raise NotReady(f"galaxy.yml has version {version} and pyproject.toml {package}. Write the same in both.")
    return version


def release_problems(version: str, rehearse: bool) -> Iterator[str]:
    """Yield why there can be no release of *version*: locks, release notes, uncommitted files, a tag on another commit.
    *rehearse*: accept uncommitted files and the tag.
    """
    yield from lock.lock_problems()
    for name, text in release_notes.rendered_notes().items():
        if (ROOT / name).read_text(encoding="utf-8") != text:
            yield f"{name} is not as the fragments say. Run `python -m tools.release_notes` and commit it."
    if rehearse:
        return
    if changed := git_output("status", "--porcelain"):
        yield f"There are uncommitted files. Commit them, or give --rehearse:\n{changed}"
    if git_output("tag", "--list", f"v{version}") and git_output(
            "rev-list", "-n1", f"v{version}") != git_output("rev-parse", "HEAD"):
        yield f"The tag v{version} is on another commit. Raise the version in galaxy.yml and pyproject.toml."


def build_release(folder: Path, rehearse: bool = False) -> dict[str, Any]:
    """Build all files of the release in *folder*, which must not exist or be empty. Return the content of release.yml.
    *rehearse*: accept uncommitted files. Raises ``NotReady``, or ``CalledProcessError`` after the message of the
    program that failed."""
    version = release_version()
    problems = list(release_problems(version, rehearse))
    if folder.is_dir() and any(folder.iterdir()):
        problems.append(f"{folder} is not empty. Files of another build would be taken for the release's.")
    if problems:
        raise NotReady("\n".join(problems))
    folder.mkdir(parents=True, exist_ok=True)
    commit, moment = git_output("log", "-1", "--format=%H %ct").split()
    with layout.collection_copy() as copy, _fixed_times(moment):
        _build_collection(copy, folder)
        shutil.copy(copy / sbom.FILE, folder)
        (copy / sbom.FILE).unlink()
        _build_package(copy, folder)
    for path in folder.glob("*.tar.gz"):
        set_times(path, int(moment))
    (folder / NOTES).write_text(notes_of_version(version), encoding="utf-8")
    description = {"version": version, "commit": commit, "rehearsal": rehearse,
                   "files": sorted(path.name for path in folder.iterdir())}
    (folder / DESCRIPTION).write_text(yaml.safe_dump(description, sort_keys=False), encoding="utf-8")
    (folder / CHECKSUMS).write_text(checksum_lines(folder), encoding="utf-8")
    return description


@contextlib.contextmanager
def _fixed_times(moment: str) -> Iterator[None]:
    """Let archives that are built within the context have the time *moment*, seconds since 1970, in place of now."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = moment
    try:
        yield
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]
        if before is not None:
            os.environ["SOURCE_DATE_EPOCH"] = before


def _build_collection(copy: Path, folder: Path) -> None:
    """Build the archive of the collection in *folder*, from the *copy*, to which the bill of materials is added."""
    (copy / sbom.FILE).write_text(sbom.sbom_text(), encoding="utf-8")
    subprocess.run([Path(sys.executable).with_name("ansible-galaxy"), "collection", "build", "--output-path", folder,
                    copy], check=True)


def _build_package(copy: Path, folder: Path) -> None:
    """Build sdist and wheel of the *copy* in *folder*. What the build prints is shown only if it fails."""
    done = subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        done.check_returncode()


def set_times(path: Path, moment: int) -> None:
    """Give all files in a tar.gz archive the time *moment* and the owner root, so that two builds are the same."""
    new = path.with_suffix(".new")
    with (tarfile.open(path) as archive, new.open("wb") as raw,
          gzip.GzipFile("", "wb", fileobj=raw, mtime=moment) as packed,
          tarfile.open(fileobj=packed, mode="w") as target):
        for member in archive:
            member.mtime, member.uid, member.gid, member.uname, member.gname = moment, 0, 0, "root", "root"
            member.pax_headers = {}
            target.addfile(member, archive.extractfile(member) if member.isreg() else None)
    new.replace(path)


def notes_of_version(version: str) -> str:
    """Return the section of CHANGELOG.rst about *version*."""
    text = (ROOT / release_notes.NOTES).read_text(encoding="utf-8")
    found = re.search(rf"^v{re.escape(version)}\n=+\n.*?(?=^v\d\S*\n=+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise NotReady(f"CHANGELOG.rst has no section v{version}. Run `python -m tools.release_notes`.")
    return found[0].strip() + "\n"


def checksum_lines(folder: Path) -> str:
    """Return a line for each file of *folder* as ``sha256sum --check`` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
                   for path in sorted(folder.iterdir()) if path.name != CHECKSUMS)


def start_version(version: str) -> None:
    """Record the current commit as the release of the version in galaxy.yml, and write the next *version* there and in
    pyproject.toml. Raises ``NotReady`` for uncommitted files, a version that is not higher, or one that is released."""
    current = release_version()
    problems = []
    if changed := git_output("status", "--porcelain"):
        problems.append(f"There are uncommitted files. Commit them first:\n{changed}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or _numbers(version) <= _numbers(current):
        problems.append(f"{version} is not a version above {current}, such as 0.2.0.")
    if current in releases.released_commits():
        problems.append(f"{releases.FILE} has {current} already.")
    if problems:
        raise NotReady("\n".join(problems))
    commit, date = git_output("log", "-1", "--format=%H %cs").split()
    releases.add_release(current, commit, date)
    for name, before, after in (("galaxy.yml", f"version: {current}\n", f"version: {version}\n"),
                                ("pyproject.toml", f'version = "{current}"\n', f'version = "{version}"\n')):
        path = ROOT / name
        path.write_text(path.read_text(encoding="utf-8").replace(before, after, 1), encoding="utf-8")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def main() -> int:
    """Run the command line; write the files to the given folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the files are written; made when it is missing")
    parser.add_argument("--rehearse", action="store_true", help="build from uncommitted files too")
    parser.add_argument("--tag", action="store_true", help="then tag the commit with the version")
    parser.add_argument("--next", metavar="VERSION", help="after a release: record it, and raise the version")
    options = parser.parse_args()
    if options.tag and options.rehearse:
        parser.error("a rehearsal is not tagged")
    if (options.folder is None) == (options.next is None):
        parser.error("give a folder for the files of a release, or --next VERSION after it")
    try:
        if options.next:
            start_version(options.next)
            print(f"{releases.FILE}, galaxy.yml and pyproject.toml are written. Run `python -m tools.release_notes`, "
                  "and commit.")
            return 0
        description = build_release(options.folder.resolve(), options.rehearse)
    except NotReady as error:
        print(f"There is no release yet:\n{error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"{Path(error.cmd[0]).name} failed, see above; there is no release.", file=sys.stderr)
        return error.returncode
    version = description["version"]
    if options.tag and not git_output("tag", "--list", f"v{version}"):
        git_output("tag", "--annotate", "--message", f"Release {version}", f"v{version}")
    print(f"Release {version} of {description['commit'][:12]}: {', '.join(description['files'])}, in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
