# SPDX-License-Identifier: GPL-3.0-or-later
"""Renews requirements/: each package that is installed, with its version and the hashes of its files.

    python -m tools.lock             the newest versions that pyproject.toml allows
    python -m tools.lock --keep      only what pyproject.toml asks for and the locks do not have
    python -m tools.lock --check     say whether the locks fit pyproject.toml; asks nobody

There is a lock for each extra of pyproject.toml. That of `dev` has them all, and the others have its versions.
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
#: The distribution's package serves, linked into the environment: there is no wheel of it.
OF_THE_DISTRIBUTION = {"libvirt-python"}
PYTHONS, MACHINES = ("3.11", "3.12", "3.13"), ("x86_64", "aarch64")
HEAD = "# SPDX-License-Identifier: GPL-3.0-or-later\n# Written by `python -m tools.lock`; do not edit.\n"
WORDS = ("pip", "compile", "--quiet", "--universal", "--python-version", PYTHONS[0], "--fork-strategy", "fewest",
         "--only-binary", ":all:", "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links")


@dataclass(frozen=True)
class Pin:
    """A package of a lock: its one version, when it is needed, hashes (hex, SHA-256), and which packages need it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]


def needed() -> dict[str, list[Requirement]]:
    """What pyproject.toml asks for, by lock; what builds the project is in each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, build = project["project"]["optional-dependencies"], project["build-system"]["requires"]
    wanted = {name: [*build, *words] for name, words in extras.items()}
    wanted["dev"] = [*build, *(word for words in extras.values() for word in words)]
    return {name: [one for one in map(Requirement, words) if one.name not in OF_THE_DISTRIBUTION]
            for name, words in wanted.items()}


def read(name: str) -> dict[str, Pin]:
    """The packages of a lock by their canonical names; ValueError for a line that is none, and for a name twice."""
    found: dict[str, Pin] = {}
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    for entry in re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)[1:]:
        match = re.match(r"([a-z0-9-]+)==([^\s;]+)(?: ; ([^\\\n]+?))?(?: \\)?\n", entry)
        if not match:
            raise ValueError(f"requirements/{name}.txt: {entry.splitlines()[0]!r} is no package with its version.")
        if match[1] in found:
            raise ValueError(f"requirements/{name}.txt has {match[1]} twice: a lock has one version of each.")
        hashes = tuple(re.findall(r"^    --hash=sha256:([0-9a-f]{64})(?: \\)?$", entry, re.MULTILINE))
        via = re.findall(r"^    #(?: via|  ) ([a-z0-9-]+)$", entry, re.MULTILINE)
        found[match[1]] = Pin(match[1], match[2], match[3] or "", hashes, tuple(via))
    return found


def problems() -> list[str]:
    """Why the locks do not fit pyproject.toml, none when they do."""
    wanted = needed()
    files = {path.stem for path in FOLDER.glob("*.txt")}
    found = [f"requirements/{name}.txt is there for no extra." for name in sorted(files - {*wanted})]
    found += [f"requirements/{name}.txt is missing." for name in sorted({*wanted} - files)]
    if found:
        return found
    every = read("dev")
    for name, requirements in wanted.items():
        pins = read(name)
        for one in requirements:
            pin = pins.get(canonicalize_name(one.name))
            if pin is None or not one.specifier.contains(pin.version, prereleases=True):
                found.append(f"{name}: pyproject.toml asks for {one}, the lock has {pin.version if pin else 'none'}.")
        for pin in pins.values():
            if not pin.hashes:
                found.append(f"{name}: {pin.name} has no hash.")
            if pin.name not in every or every[pin.name].version != pin.version:
                found.append(f"{name}: {pin.name} {pin.version} is not what requirements/dev.txt has.")
    return found


def _always(marker: str) -> bool:
    """True when the marker holds wherever the locks must be good."""
    return all(Marker(marker).evaluate({
        "python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine,
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
        "platform_python_implementation": "CPython"}) for python in PYTHONS for machine in MACHINES)


def plain(text: str) -> str:
    """A lock as uv writes it, without markers that always hold and without where a version was settled."""
    text = re.sub(r" ; ([^\\\n]+?)(?=(?: \\)?$)", lambda found: "" if _always(found[1]) else found[0], text,
                  flags=re.MULTILINE)
    text = re.sub(r"^    #(?: via)? +-[cr] .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^    # via\n(?!    #)", "", text, flags=re.MULTILINE)


def _compile(name: str, folder: Path, *words: str | Path, keep: bool) -> str:
    """The text of a lock, by uv, which asks the package index."""
    file = folder / f"{name}.txt"
    if keep and (FOLDER / file.name).exists():
        file.write_bytes((FOLDER / file.name).read_bytes())  # uv keeps the versions that it finds there
    given = "".join(f"{one}\n" for one in needed()[name])
    subprocess.run([Path(sys.executable).with_name("uv"), *WORDS, *words, "--output-file", file, "-"], check=True,
                   cwd=ROOT, input=given, text=True, stdout=subprocess.DEVNULL,
                   env={key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"})
    return HEAD + plain(file.read_text(encoding="utf-8"))


def renew(*, keep: bool) -> None:
    """Write all locks, or none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = {"dev": _compile("dev", folder, keep=keep)}
        versions = folder / "versions"
        versions.write_text("\n".join(re.findall(r"^[a-z0-9-]+==\S+", made["dev"], re.MULTILINE)), encoding="utf-8")
        for one in needed():
            if one != "dev":
                made[one] = _compile(one, folder, "--constraint", versions, keep=keep)
    FOLDER.mkdir(exist_ok=True)
    for one, text in made.items():
        (FOLDER / f"{one}.txt").write_text(text, encoding="utf-8")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep versions that pyproject.toml allows")
    parser.add_argument("--check", action="store_true", help="change nothing, and fail when the locks do not fit")
    given = parser.parse_args()
    if not given.check:
        renew(keep=given.keep)
    found = problems()
    if found:
        print("\n".join([*found, "`python -m tools.lock --keep` adds what is missing; without --keep it renews all."]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
