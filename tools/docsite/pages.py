# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of docs/, prepared for the site: links out of docs/ lead to the repository, and each folder has a page that
lists its pages."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import yaml

from tools.index import GROUPS, page_title

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
#: Folders of docs/ in the order of the menu, with their titles and a sentence about their pages.
SECTIONS = {folder: words for folder, words in GROUPS.items() if folder != "."}
#: A fence or a code span, which stay as they are, or the target of a link.
_LINK = re.compile(r"^[ ]*(?P<fence>```+|~~~+).*?^[ ]*(?P=fence)[ ]*$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
                   r"|\]\((?P<target>[^()\s]+)\)", re.MULTILINE | re.DOTALL)
#: An entry of the menu in antsibull-docs' index. The page's title begins with the name, and repeats its description.
_COLLECTION_PAGE = re.compile(r"^(    )(\w+)(_(?:module|inventory|role))$", re.MULTILINE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|#|//")


class BrokenLink(Exception):
    """A page links to a file that does not exist."""


def rewrite_links(text: str, page: Path, root: Path = ROOT) -> str:
    """Return the *text* of a page below docs/ of *root*, with links to files outside docs/ changed to links to the
    repository. Raises ``BrokenLink``."""

    def replaced(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or _SCHEME.match(target):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        file = Path(os.path.normpath(page.parent / path))
        if file.is_relative_to(root / "docs") and not file.is_dir():
            return match[0]  # Sphinx checks these
        if not file.exists() or not file.is_relative_to(root):
            raise BrokenLink(f"{page.relative_to(root)}: {target} does not exist.")
        kind = "tree" if file.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{file.relative_to(root)}{hash_sign}{anchor})"

    return _LINK.sub(replaced, text)


def contents(names: Iterable[str], hidden: bool = False) -> str:
    """Return a table of contents of the pages *names*, for the menu; *hidden*: not on the page itself."""
    return "\n".join(["```{toctree}", *([":hidden:"] if hidden else []), ":maxdepth: 1", "", *names, "```", ""])


def shorten_menu(index: str) -> str:
    """Return the index page of antsibull-docs with one word for each module, plugin and role in the menu."""
    return _COLLECTION_PAGE.sub(r"\1\2 <\2\3>", index)


def section_page(folder: Path, title: str, about: str, first: Iterable[str] = ()) -> str:
    """Return the page of a section: *title*, the text *about* it, and a list of the pages in *folder* by title. The
    pages *first* come before all others."""
    pages = {str(path.relative_to(folder).with_suffix("")): page_title(path).replace("`", "")
             for path in folder.rglob("*.md")}
    return f"# {title}\n\n{about}\n\n{contents([*first, *sorted(pages, key=lambda name: pages[name].casefold())])}"


def stage_pages(stage: Path, first: dict[str, list[str]], root: Path = ROOT) -> None:
    """Copy docs/ to the folder *stage*, with links rewritten, and add the pages of sections and the menu. *first*: by
    section, generated pages that its list begins with. Raises ``BrokenLink``.
    """
    for file in sorted(path for path in (root / "docs").rglob("*") if path.is_file()):
        copy = stage / file.relative_to(root / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            copy.write_text(rewrite_links(file.read_text(encoding="utf-8"), file, root), encoding="utf-8")
        else:
            shutil.copyfile(file, copy)
    for name, (title, about) in SECTIONS.items():
        folder = stage / name
        if folder.is_dir():
            page = section_page(folder, title, about, first.get(name, ()))
            (folder / "index.md").write_text(page, encoding="utf-8")
    _add_menu(stage)


def _add_menu(stage: Path) -> None:
    """Add the menu to the root page, which begins as docs/index.md."""
    index = stage / "index.md"
    sections = [name for name in SECTIONS if (stage / name).is_dir()]
    text = index.read_text(encoding="utf-8") if index.exists() else "# Magnetar\n"
    names = sorted(path.relative_to(stage).with_suffix("") for path in stage.rglob("*.md") if path != index)
    pages = [str(name) for name in names if name.parts[0] not in SECTIONS]
    index.write_text(f"{text}\n{contents([*(f'{name}/index' for name in sections), *pages], hidden=True)}",
                     encoding="utf-8")
