# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation site: pages for Sphinx, and the check of links in the finished site."""

from __future__ import annotations

from pathlib import Path

import pytest
from furo.navigation import get_navigation_tree
from sphinx.application import Sphinx
from sphinx.environment.adapters.toctree import global_toctree_for_doc

from tools.docsite import links, menu, pages

SETTINGS = Path(menu.__file__).parent
FENCE = "```text\n[a](../README.md)\n```\n"


@pytest.fixture
def tree(tmp_path):
    for name, text in {"README.md": "# R\n", "docs/howto/b.md": f"# The `B`\n\n[readme](../../README.md#r)\n\n{FENCE}",
                       "docs/howto/a.md": "# Zebra\n\n[b](b.md), [up](../../docs), `[x](../../no)`\n",
                       "docs/howto/data.yml": "a: 1\n", "docs/howto/in/c.md": "# Yes\n",
                       "docs/more.md": "# More\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_links_out_of_docs_lead_to_the_repository(tree):
    pages.stage_pages(tree / "stage", {"howto": ["made/index"]}, tree)
    page = (tree / "stage/howto/b.md").read_text(encoding="utf-8")
    assert f"[readme]({pages.REPOSITORY}/blob/main/README.md#r)" in page
    assert FENCE in page
    other = (tree / "stage/howto/a.md").read_text(encoding="utf-8")
    assert "[b](b.md)" in other
    assert f"[up]({pages.REPOSITORY}/tree/main/docs)" in other
    assert "`[x](../../no)`" in other
    assert (tree / "stage/howto/data.yml").exists()


def test_the_menu_has_all_pages_by_title(tree):
    pages.stage_pages(tree / "stage", {"howto": ["made/index"]}, tree)
    section = (tree / "stage/howto/index.md").read_text(encoding="utf-8")
    assert section.startswith("# How-to guides\n")
    assert "\nmade/index\nb\nin/c\na\n" in section
    root = (tree / "stage/index.md").read_text(encoding="utf-8")
    assert "\nhowto/index\nmore\n" in root


def test_the_menu_has_short_names_of_modules():
    names = ("flavor_module", "flavor_info_module", "servers_inventory", "agent_role")
    index = "\n".join([".. toctree::", "    :hidden:", "", *(f"    {name}" for name in names), ""])
    assert pages.shorten_menu(index).splitlines()[3:] == [
        "    flavor <flavor_module>", "    flavor_info <flavor_info_module>", "    servers <servers_inventory>",
        "    agent <agent_role>"]


def test_a_root_page_of_docs_is_kept(tree):
    (tree / "docs/index.md").write_text("# Welcome\n\nText.\n", encoding="utf-8")
    pages.stage_pages(tree / "stage", {}, tree)
    root = (tree / "stage/index.md").read_text(encoding="utf-8")
    assert root.startswith("# Welcome\n\nText.\n")
    assert ":hidden:" in root


def test_a_link_to_nothing_is_an_error(tree):
    (tree / "docs/more.md").write_text("# More\n\n[x](../none.md)\n", encoding="utf-8")
    with pytest.raises(pages.BrokenLink, match=r"docs/more\.md: \.\./none\.md does not exist"):
        pages.stage_pages(tree / "stage", {}, tree)


def test_links_of_the_finished_site(tmp_path):
    (tmp_path / "a.html").write_text('<p id="here"></p><a href="#here"></a><a href="b.html#there"></a>'
                                     '<a href="https://example.org/x"></a><img src="no.png">'
                                     '<script src="https://cdn.example.org/x.js"></script>', encoding="utf-8")
    (tmp_path / "b.html").write_text('<a href="a.html"></a><a href="gone.html"></a>', encoding="utf-8")
    assert links.link_problems(tmp_path) == [
        "a.html links to b.html#there: the page has no such anchor.",
        "a.html links to no.png, which does not exist.",
        "a.html loads https://cdn.example.org/x.js, which is not part of the site.",
        "b.html links to gone.html, which does not exist."]


def furo_menu(builder, page):
    """The menu of a page as Sphinx and Furo create it."""
    tree = global_toctree_for_doc(builder.env, page, builder, tags=builder.tags, collapse=False, titles_only=True,
                                  maxdepth=-1, includehidden=True)
    return get_navigation_tree(builder.render_partial(tree)["fragment"])


def test_each_page_has_the_menu_that_furo_would_create(tree):
    (tree / "docs/howto/b.md").write_text('# The `B` & "more"\n', encoding="utf-8")
    stage, site = tree / "stage", tree / "site"
    pages.stage_pages(stage, {}, tree)
    app = Sphinx(stage, SETTINGS, site, tree / "doctrees", "html", status=None, warningiserror=True)
    app.build()
    expected = {page: furo_menu(app.builder, page) for page in app.env.all_docs}
    assert {"index", "howto/index", "howto/b", "howto/in/c", "more"} <= {*expected}
    for page, text in expected.items():
        assert f'<div class="sidebar-tree">\n  {text}\n</div>' in (site / f"{page}.html").read_text(encoding="utf-8")
    assert "current-page" in expected["howto/b"] != expected["howto/in/c"]
