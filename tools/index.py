# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the front page of the docs, with the title and first sentence of each page:
`python -m tools.index >docs/index.md`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HEAD = """# Documentation of Magnetar

For everyone who uses, operates or changes Magnetar: all pages, in groups. To see it run, begin with
[one host](start/one-host.md).
"""
#: Folders in their order, with their titles and a sentence about their pages.
GROUPS = {
    "start": ("Start", "Tutorials for readers who have not used Magnetar before. Each ends with something that runs."),
    "howto": ("How-to guides", "One task on each page, for users and operators who know what they want to do."),
    "reference": ("Reference", "Tables of all modules, roles, settings, APIs and limits, to look things up."),
    "explanation": ("Explanation", "How Magnetar works, and why, for readers who want to understand it."),
    "decisions": ("Decisions", "Choices that are hard to change: context, choice and costs of each."),
    ".": ("Development", "How to change Magnetar."),
}


def index_page() -> str:
    """Return the whole page in Markdown. A group without pages is left out."""
    return HEAD + "".join(group_section(folder, *words) for folder, words in GROUPS.items() if group_pages(folder))


def group_pages(folder: str) -> list[Path]:
    """Return the pages of a folder: tutorials in the order of reading, decisions by number, others by title."""
    found = [path for path in (DOCS / folder).glob("*.md") if path != DOCS / "index.md"]
    tutorials = ["one-host", "live-migration", "cloud-with-ovn"]
    if folder == "start":
        return sorted(found, key=lambda path: (path.stem not in tutorials, (*tutorials, path.stem).index(path.stem)))
    return sorted(found, key=lambda path: path.name if folder == "decisions" else page_summary(path)[0].lower())


def group_section(folder: str, title: str, kind: str) -> str:
    """Return the section of a group: a table of its pages."""
    rows = []
    for path in group_pages(folder):
        name, sentence = page_summary(path)
        rows.append(f"| [{name}]({path.relative_to(DOCS)}) | {sentence} |\n")
    return f"\n## {title}\n\n{kind}\n\n| Page | About |\n|---|---|\n{''.join(rows)}"


def page_title(path: Path) -> str:
    """Return the title of a page: its first line."""
    with path.open(encoding="utf-8") as page:
        line = page.readline()
    if not line.startswith("# "):
        raise SystemExit(f"{path} has no title: its first line must begin with `# `.")
    return line[2:].strip()


def page_summary(path: Path) -> tuple[str, str]:
    """Return a page's title and the first sentence of its first paragraph, without links, ready for a table."""
    text = path.read_text(encoding="utf-8").partition("\n")[2]
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text)]
    paragraphs = [block for block in blocks
                  if block[:1] not in ("", *"#|`<!-*") and not block.startswith(("Written by", "Printed by"))]
    words = " ".join(paragraphs[0].split()) if paragraphs else ""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
    sentence = re.split(r"(?<=[.:?!]) (?=[A-Z`*])|: ", words)[0].rstrip(":.") + "."
    sentence = sentence.removeprefix("This page is ")
    return page_title(path).replace("|", "\\|"), (sentence[:1].upper() + sentence[1:]).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(index_page())
