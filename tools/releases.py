# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases so far and their commits, in `changelogs/releases.yml`: a clone may lack tags. Tests run programs of the
previous release beside today's."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = "changelogs/releases.yml"
#: Folders of a release's tree by the package that each contains, as they are linked for PYTHONPATH.
PACKAGES = {"magnetar_agent": "agent/magnetar_agent", "magnetar_control": "control/magnetar_control",
            "magnetar_core": "plugins/module_utils/core"}


def released_commits() -> dict[str, str]:
    """Return the commit of each release by version, oldest first."""
    releases: dict[str, Any] | None = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))
    return {version: str(release["commit"]) for version, release in (releases or {}).items()}


def add_release(version: str, commit: str, date: str) -> None:
    """Add a release to the file. *date*: as in 2026-11-30."""
    with (ROOT / FILE).open("a", encoding="utf-8") as file:
        file.write(f'"{version}": {{commit: "{commit}", date: {date}}}\n')


def unpack_release(version: str, folder: Path) -> Path | None:
    """Unpack the tree of a release below *folder*, unless it is there, and return the folder to use as PYTHONPATH, from
    which its packages are imported. Return ``None`` if the clone lacks the commit, as a shallow one may."""
    tree = folder / version
    if not tree.is_dir():
        archive = subprocess.run(["git", "archive", released_commits()[version], *PACKAGES.values()], check=False,
                                 cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if archive.returncode:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            subprocess.run(["tar", "-x", "-C", part], check=True, input=archive.stdout)
            link_packages(tree, Path(part) / "src", version)
            with contextlib.suppress(OSError):  # another process was faster
                Path(part).rename(tree)
    return tree / "src"


def link_packages(tree: Path, folder: Path, version: str) -> Path:
    """Make *folder*, and return it: a PYTHONPATH with the packages of *tree*, which call themselves *version*."""
    description = folder / f"magnetar-{version}.dist-info"
    description.mkdir(parents=True, exist_ok=True)
    (description / "METADATA").write_text(f"Metadata-Version: 2.1\nName: magnetar\nVersion: {version}\n")
    for package, place in PACKAGES.items():
        link = folder / package
        link.unlink(missing_ok=True)
        link.symlink_to(tree.resolve() / place)
    return folder
