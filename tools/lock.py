# SPDX-License-Identifier: GPL-3.0-or-later
"""Renews requirements/: each installed package, with its version and the hashes of its files.

    python -m tools.lock             the newest versions that pyproject.toml allows
    python -m tools.lock --keep      add only requirements that the locks do not have yet
    python -m tools.lock --check     check that the locks fit pyproject.toml, without the package index

There is a lock for each extra of pyproject.toml. The lock of `dev` has all packages, and the others have its versions.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
#: The distribution's package is used, linked into the environment: there is no wheel of it.
OF_THE_DISTRIBUTION = {"libvirt-python"}
PYTHONS, MACHINES = ("3.11", "3.12", "3.13"), ("x86_64", "aarch64")
HEAD = "# SPDX-License-Identifier: GPL-3.0-or-later\n# Written by `python -m tools.lock`; do not edit.\n"
WORDS = ("pip", "compile", "--quiet", "--universal", "--python-version", PYTHONS[0], "--fork-strategy", "fewest",
         "--only-binary", ":all:", "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links")


@dataclass(frozen=True)
class Pin:
    """A package of a lock: its version, the marker that says where it is installed, the hashes of its files (SHA-256,
    hex), and the packages that need it.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]


def needed_requirements() -> dict[str, list[Requirement]]:
    """Return, by lock, its requirements in pyproject.toml; each lock includes the build requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, build = project["project"]["optional-dependencies"], project["build-system"]["requires"]
    requirements = {name: [*build, *words] for name, words in extras.items()}
    requirements["dev"] = [*build, *(requirement for words in extras.values() for requirement in words)]
    return {name: [parsed for parsed in map(Requirement, words) if parsed.name not in OF_THE_DISTRIBUTION]
            for name, words in requirements.items()}


def read_lock(name: str) -> dict[str, Pin]:
    """Return the packages of a lock by their canonical names. Raises ValueError for an invalid line, and for a repeated
    name.
    """
    pins: dict[str, Pin] = {}
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    for entry in re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)[1:]:
        match = re.match(r"([a-z0-9-]+)==([^\s;]+)(?: ; ([^\\\n]+?))?(?: \\)?\n", entry)
        if not match:
            raise ValueError(f"requirements/{name}.txt: {entry.splitlines()[0]!r} is no package with its version.")
        if match[1] in pins:
            raise ValueError(f"requirements/{name}.txt has {match[1]} twice: a lock has one version of each.")
        hashes = tuple(re.findall(r"^    --hash=sha256:([0-9a-f]{64})(?: \\)?$", entry, re.MULTILINE))
        via = re.findall(r"^    #(?: via|  ) ([a-z0-9-]+)$", entry, re.MULTILINE)
        pins[match[1]] = Pin(match[1], match[2], match[3] or "", hashes, tuple(via))
    return pins


def lock_problems() -> list[str]:
    """Return the reasons why the locks do not fit pyproject.toml; empty when they do."""
    requirements_by_lock = needed_requirements()
    files = {path.stem for path in FOLDER.glob("*.txt")}
    problems = [f"requirements/{name}.txt is there for no extra." for name in sorted(files - {*requirements_by_lock})]
    problems += [f"requirements/{name}.txt is missing." for name in sorted({*requirements_by_lock} - files)]
    if problems:
        return problems
    every = read_lock("dev")
    for name, requirements in requirements_by_lock.items():
        pins = read_lock(name)
        for requirement in requirements:
            pin = pins.get(canonicalize_name(requirement.name))
            if pin is None or not requirement.specifier.contains(pin.version, prereleases=True):
                problems.append(
                    f"{name}: pyproject.toml asks for {requirement}, the lock has {pin.version if pin else 'none'}.")
        for pin in pins.values():
            if not pin.hashes:
                problems.append(f"{name}: {pin.name} has no hash.")
            if pin.name not in every or every[pin.name].version != pin.version:
                problems.append(f"{name}: {pin.name} {pin.version} is not what requirements/dev.txt has.")
    return problems


def _always(marker: str) -> bool:
    """Return whether the environment marker is true on all platforms of the locks."""
    return all(Marker(marker).evaluate({
        "python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine,
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
        "platform_python_implementation": "CPython"}) for python in PYTHONS for machine in MACHINES)


def simplify_lock(text: str) -> str:
    """Return the *text* of a lock that uv has written, without markers that are always true, and without comments about
    the source of a version.
    """
    text = re.sub(r" ; ([^\\\n]+?)(?=(?: \\)?$)", lambda match: "" if _always(match[1]) else match[0], text,
                  flags=re.MULTILINE)
    text = re.sub(r"^    #(?: via)? +-[cr] .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^    # via\n(?!    #)", "", text, flags=re.MULTILINE)


def _compile(name: str, folder: Path, *words: str | Path, keep: bool) -> str:
    """Return the text of the lock *name* that uv computes with the package index. *keep*: existing versions stay."""
    file = folder / f"{name}.txt"
    if keep and (FOLDER / file.name).exists():
        file.write_bytes((FOLDER / file.name).read_bytes())  # uv keeps the versions that it finds there
    requirements = "".join(f"{requirement}\n" for requirement in needed_requirements()[name])
    subprocess.run([Path(sys.executable).with_name("uv"), *WORDS, *words, "--output-file", file, "-"], check=True,
                   cwd=ROOT, input=requirements, text=True, stdout=subprocess.DEVNULL,
                   env={key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"})
    return HEAD + simplify_lock(file.read_text(encoding="utf-8"))


def renew_locks(*, keep: bool) -> None:
    """Write all locks, or none if one fails. *keep*: existing versions stay."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = {"dev": _compile("dev", folder, keep=keep)}
        versions = folder / "versions"
        versions.write_text("\n".join(re.findall(r"^[a-z0-9-]+==\S+", made["dev"], re.MULTILINE)), encoding="utf-8")
        for lock in needed_requirements():
            if lock != "dev":
                made[lock] = _compile(lock, folder, "--constraint", versions, keep=keep)
    FOLDER.mkdir(exist_ok=True)
    for lock, text in made.items():
        (FOLDER / f"{lock}.txt").write_text(text, encoding="utf-8")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep versions that pyproject.toml allows")
    parser.add_argument("--check", action="store_true", help="change nothing, and fail when the locks do not fit")
    options = parser.parse_args()
    if not options.check:
        renew_locks(keep=options.keep)
    problems = lock_problems()
    if problems:
        print("\n".join([*problems,
                         "`python -m tools.lock --keep` adds what is missing; without --keep it renews all."]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
