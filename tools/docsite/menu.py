# SPDX-License-Identifier: GPL-3.0-or-later
"""The menu that Furo shows on each page: all pages of the site.

Sphinx and Furo create it for each page from the start, which took half of the CPU of a build. Here it is created once;
each page gets a copy with its own links and marks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from furo.navigation import get_navigation_tree
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.util.osutil import relative_uri

#: An entry up to its end or the list of its children, as Furo writes it where it is not marked.
_ENTRY = re.compile(r'<li class="(?P<level>[^"]+)"><a class="reference internal" href="(?P<target>[^"]+)">'
                    r'(?P<title>.*?)</a>(?:<input (?P<label>aria-label="[^"]*") (?P<box>.*?)<ul>)?', re.DOTALL)


def whole_menu(builder: StandaloneHTMLBuilder) -> str:
    """Return the menu as it is on the front page: no entry is marked, and links start at the site's root folder."""
    tree = global_toctree_for_doc(builder.env, builder.config.root_doc, builder, tags=builder.tags, collapse=False,
                                  titles_only=True, maxdepth=-1, includehidden=True)
    return str(get_navigation_tree(builder.render_partial(tree)["fragment"]))


def page_menu(menu: str, target: str, above: frozenset[str]) -> str:
    """Return the *menu* for the page *target*, with its links and marks. *above*: the targets of the menu entries above
    the page, which are expanded.
    """

    def entry(match: re.Match[str]) -> str:
        here = match["target"] == target
        if not here and match["target"] not in above:
            return match[0].replace(f'href="{match["target"]}"', f'href="{relative_uri(target, match["target"])}"', 1)
        first, *more = match["level"].split()
        level = " ".join([first, "current", *more, *(["current-page"] if here else [])])
        link = 'class="current reference internal" href="#"' if here else (
            f'class="reference internal" href="{relative_uri(target, match["target"])}"')
        children = ""
        if match["label"]:
            marked = "<ul>" if here else '<ul class="current">'
            children = f'<input {match["label"]} checked="" {match["box"]}{marked}'
        return f'<li class="{level}"><a {link}>{match["title"]}</a>{children}'

    copy = _ENTRY.sub(entry, menu)
    return copy.replace("<ul>", '<ul class="current">', 1) if above else copy


def targets_above(builder: StandaloneHTMLBuilder, page: str) -> frozenset[str]:
    """Return the targets of the menu entries above *page*."""
    parents: Mapping[str, Any] = builder.relations
    above = []
    while page in parents and (page := parents[page][0]):
        above.append(builder.get_target_uri(page))
    return frozenset(above)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the menu to the events of the Sphinx build: one handler runs before Furo's handler, which has the
    priority 500, and one after it."""
    menus: list[str] = []

    def create(_app: Sphinx, builder: StandaloneHTMLBuilder) -> None:
        menus.append(whole_menu(builder))

    def leave_out(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
        context["toctree"] = lambda **_options: ""

    def insert(_app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
        builder = app.builder
        context["furo_navigation_tree"] = page_menu(menus[-1], builder.get_target_uri(page),
                                                    targets_above(builder, page))

    app.connect("write-started", create)
    app.connect("html-page-context", leave_out, priority=400)
    app.connect("html-page-context", insert, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
