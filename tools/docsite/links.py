# SPDX-License-Identifier: GPL-3.0-or-later
"""A check of a finished site: each link leads to a file and an anchor that exist, and no page loads files of other
sites. Sphinx checks only the links of its pages; this check includes what themes and other tools write.
"""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes that make a browser load something, by element.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
#: Names of ``rel`` with which a browser loads nothing.
NOT_LOADED = {"canonical", "next", "prev", "index", "search", "author", "license"}


class Page(HTMLParser):
    """The anchors, links and loaded files of one HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchors, links and loaded files of one element."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        name = LOADED.get(tag)
        if name and name in values and not NOT_LOADED & {*values.get("rel", "").split()}:
            self.loaded.append(values[name])


def link_problems(site: Path) -> list[str]:
    """Return a sentence for each broken link of the site, and for each file that a page loads from another site."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    files = {str(path) for path in site.rglob("*") if path.is_file()}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site)
        problems += [f"{name} loads {target}, which is not part of the site." for target in page.loaded
                     if urlsplit(target).netloc]
        for target in {*page.links, *page.loaded}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = os.path.normpath(path.parent / unquote(parts.path)) if parts.path else str(path)
            if file not in files:
                problems.append(f"{name} links to {target}, which does not exist.")
            elif parts.fragment and (other := pages.get(Path(file))) and unquote(parts.fragment) not in other.anchors:
                problems.append(f"{name} links to {target}: the page has no such anchor.")
    return sorted({*problems})
