# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the documentation site in `.cache/site`: `python -m tools.docsite`.

It has the pages of docs/, pages of modules and roles by antsibull-docs, and the APIs. A warning is an error. Open
`.cache/site/index.html` in a browser; a server is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import layout
from tools.docsite import api_pages, links, pages

CACHE = layout.ROOT / ".cache"
SITE = CACHE / "site"
#: Where antsibull-docs writes the pages of modules and roles, below the folder of pages.
COLLECTION = "reference/collection"


def write_collection_pages(folder: Path) -> bool:
    """Write pages of all modules, plugins and roles. Return whether antsibull-docs finds no error."""
    folder.mkdir(parents=True)
    with layout.collection_copy() as copy:
        good = not subprocess.run(
            ["antsibull-docs", "collection", "--use-current", "--squash-hierarchy", "--fail-on-error",
             "--no-add-antsibull-docs-version", "--dest-dir", folder, "magnetar.compute"], check=False,
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(copy.parents[2])}).returncode
    if good:
        index = folder / "index.rst"
        index.write_text(pages.shorten_menu(index.read_text(encoding="utf-8")), encoding="utf-8")
    return good


def build_html(stage: Path, site: Path) -> bool:
    """Build the site in *site* from the folder of pages *stage*. Return whether Sphinx gave no warning."""
    return not subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html",
         "-d", site.with_name("doctrees"), "-c", Path(__file__).parent, stage, site],
        check=False, cwd=layout.ROOT).returncode


def build_site(site: Path = SITE) -> int:
    """Build the site in the folder *site*. Return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        stage, built = Path(name) / "pages", Path(name) / "site"
        try:
            pages.stage_pages(stage, {"reference": ["Modules and roles <collection/index>", "api/index"]})
        except pages.BrokenLink as error:
            print(error)
            return 1
        api_pages.write_api_pages(stage / "reference/api", stage / "downloads")
        if not write_collection_pages(stage / COLLECTION) or not build_html(stage, built):
            return 1
        shutil.copytree(stage / "downloads", built, dirs_exist_ok=True)
        problems = links.link_problems(built)
        if problems:
            print("\n".join(problems))
            return 1
        shutil.rmtree(site, ignore_errors=True)
        site.parent.mkdir(exist_ok=True)
        shutil.copytree(built, site)
    print(f"The site is in {site}: {len([*site.rglob('*.html')])} pages.")
    return 0


if __name__ == "__main__":
    sys.exit(build_site())
