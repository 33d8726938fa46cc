# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders CHANGELOG.rst and changelogs/changelog.yaml from the fragments: `python -m tools.release_notes`.

The entry of the version in galaxy.yml is rewritten. It keeps its date, and gets all fragments that no older version
has, and the modules that are new since that version. With `--check` nothing is written: the status is 1 where a
fragment is invalid, or a file is out of date.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from antsibull_changelog.cli import run as run_antsibull_changelog

ROOT = Path(__file__).resolve().parents[1]
NOTES, DATA = "CHANGELOG.rst", "changelogs/changelog.yaml"


def release_entry(version: str, releases: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of *version* in changelog.yaml. *releases*: all entries of the file so far."""
    older = [entry for name, entry in releases.items() if name != version]
    fragments = {path.name for path in (ROOT / "changelogs/fragments").glob("*.yml")}
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("[a-z]*.py")}
    fragments -= {name for entry in older for name in entry.get("fragments", ())}
    modules -= {module["name"] for entry in older for module in entry.get("modules", ())}
    date = releases.get(version, {}).get("release_date", dt.datetime.now(dt.UTC).date().isoformat())
    return {"fragments": sorted(fragments), "release_date": date, "modules": [
        {"name": name, "namespace": "", "description": short_description(name)} for name in sorted(modules)]}


def short_description(module: str) -> str:
    """Return the short description in a module's documentation."""
    text = (ROOT / f"plugins/modules/{module}.py").read_text(encoding="utf-8")
    found = re.search(r'^DOCUMENTATION = r?"""(.*?)"""', text, re.DOTALL | re.MULTILINE)
    assert found, module
    return str(yaml.safe_load(found[1])["short_description"])


def rendered_notes() -> dict[str, str]:
    """Return the text of each file, by name. antsibull-changelog runs in a folder of its own: it copies everything next
    to galaxy.yml when it runs.
    """
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    data = yaml.safe_load((ROOT / DATA).read_text(encoding="utf-8")) if (ROOT / DATA).exists() else {}
    releases = data.get("releases", {})
    releases = {**releases, version: release_entry(version, releases)}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copy(ROOT / "galaxy.yml", copy)
        shutil.copytree(ROOT / "changelogs", copy / "changelogs")
        (copy / DATA).write_text(yaml.safe_dump({"ancestor": None, "releases": releases}), encoding="utf-8")
        subprocess.run([Path(sys.executable).with_name("antsibull-changelog"), "generate", "--refresh-fragments",
                        "without-archives"], check=True, cwd=copy)
        return {name: (copy / name).read_text(encoding="utf-8") for name in (NOTES, DATA)}


def stale_files(texts: dict[str, str]) -> list[str]:
    """Return the names of the files that differ from *texts*."""
    return [name for name, text in texts.items()
            if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text]


def valid_fragments() -> bool:
    """Print the errors in the fragments. Return whether all are valid by the rules of `ansible-test sanity`. As there,
    Sphinx is hidden from the check: with Sphinx, it starts a Sphinx application for each text of a fragment, which
    takes three times the CPU, and accepts directives that the changelog of a collection cannot have.
    """
    names = sorted(path.name for path in (ROOT / "changelogs/fragments").iterdir())
    strange = [name for name in names if name.startswith(".") or not name.endswith(".yml")]
    for name in strange:
        print(f"changelogs/fragments/{name}: a fragment is a file NAME.yml.", file=sys.stderr)
    sys.modules["sphinx"] = None  # type: ignore[assignment]
    with contextlib.chdir(ROOT):
        return run_antsibull_changelog(["antsibull-changelog", "lint"]) == 0 and not strange


def main() -> int:
    """Write the files, or with `--check` compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a fragment is invalid, or "
                        "a file is out of date")
    check = parser.parse_args().check
    if check and not valid_fragments():
        return 1
    texts = rendered_notes()
    stale = stale_files(texts)
    if check and stale:
        print(f"Out of date: {', '.join(stale)}. Run `python -m tools.release_notes`.", file=sys.stderr)
        return 1
    for name in stale:
        (ROOT / name).write_text(texts[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
