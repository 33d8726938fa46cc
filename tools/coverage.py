# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints docs/reference/api-coverage.md: the served part of Nova's API, from the route table, and the missing part. It
also updates the newest microversion on all other pages.

The missing part comes from the table of Nova's operations (`--table`, a file next to the project); without it that part
of the page stays unchanged.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from magnetar_control.api.nova import removed
from magnetar_control.api.nova.operation import ApiOperation
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.versions import NEWEST

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/api-coverage.md"
#: Where other pages name the served microversions.
RANGE = re.compile(r"(microversions 2\.1 to 2\.)\d+", re.IGNORECASE)
TABLE = ROOT.parent / "shared/conformance/compute-api.yaml"
REMOVED = "## What Nova has removed"
MISSING = "## What is missing"
HEAD = f"""# API coverage

For users and developers of clients of the Compute API. After this page you know every served operation, its
microversions and its policy rule, and every operation that Nova has removed.

```sh
openstack --os-compute-api-version 2.{NEWEST} server list
```

Microversions are 2.1 to 2.{NEWEST}. Other requests get Nova's answers:

| Request | Answer |
|---|---|
| a path in neither table below | 404 |
| another method of a path | 405 |
| another action of a server | 400 |
| a path below `/v2` | as at 2.1, without headers of versions. Unknown fields and blanks around names are dropped |

`python tools/coverage.py` prints this page from the route table.

## What is served

| operation | method and path | since | until | rule |
|---|---|---|---|---|
"""


def served_table(operations: Sequence[ApiOperation] = OPERATIONS) -> str:
    """Return the table of the served operations."""
    rows = []
    for operation in sorted(operations, key=lambda operation: (operation.path, operation.method, operation.action or "",
                                                               operation.since)):
        action = f" `{operation.action}`" if operation.action else ""
        until = "" if operation.until >= NEWEST else f"2.{operation.until}"
        rows.append(
            f"| {operation.name} | {operation.method} `{operation.path}`{action} | 2.{operation.since} | {until} | "
            f"{operation.policy or ''} "
            "|")
    return HEAD + "\n".join(rows) + "\n"


def removed_table() -> str:
    """Return the table of the paths that answer 410 (Gone)."""
    rows = [f"| `{path}` | "
            f"{', '.join(f'`{method}`' if path.endswith('/action') else method for method in methods.split())} |"
            for path, methods in removed.REMOVED.items()]
    return "\n".join([REMOVED, "", "These answer 410 at every microversion to every valid token, as in Nova.", "",
                      "| path | methods or actions |", "|---|---|", *rows]) + "\n"


def missing_table(table: Iterable[dict[str, Any]], operations: Sequence[ApiOperation] = OPERATIONS) -> str:
    """Return a Markdown table of the operations of Nova's API that are not served, by area. *table*: all operations of
    Nova; *operations*: the served ones."""
    have = {operation.name for operation in operations}
    unserved_operations = [unserved for unserved in table if unserved["id"] not in have
                           and not unserved["class"].startswith("removed")
                           and unserved["area"] != "versions"]
    if not unserved_operations:
        return f"{MISSING}\n\nNothing.\n"
    lines = [MISSING, "", "| area | class | operations |", "|---|---|---|"]
    for (area, kind), rows in groupby(sorted(unserved_operations,
                                             key=lambda unserved: (unserved["area"], unserved["class"])),
                                      key=lambda unserved: (unserved["area"], unserved["class"])):
        lines.append(f"| {area} | {kind} | {', '.join(sorted(unserved['id'] for unserved in rows))} |")
    return "\n".join(lines) + "\n"


def coverage_page(table: Path) -> str:
    """Return the whole page in Markdown."""
    if table.exists():
        missing_part = missing_table(yaml.safe_load(table.read_text(encoding="utf-8"))["operations"])
    else:
        missing_part = MISSING + PAGE.read_text(encoding="utf-8").partition(
            MISSING)[2] if PAGE.exists() else MISSING + "\n"
    return served_table() + "\n" + removed_table() + "\n" + missing_part


def with_newest(text: str) -> str:
    """Return the *text* of a page with the newest microversion as the end of each range of served microversions that
    the page names."""
    return RANGE.sub(rf"\g<1>{NEWEST}", text)


def updated_pages(table: Path = TABLE) -> dict[Path, str]:
    """Return the pages to write, with their content: the coverage page, and pages with an outdated newest
    microversion.
    """
    pages = {path: with_newest(path.read_text(encoding="utf-8"))
             for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    pages[PAGE] = coverage_page(table)
    return {path: text for path, text in pages.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text}


def main() -> int:
    """Write the pages, or check that they are up to date."""
    parser = argparse.ArgumentParser("coverage", description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="the table of Nova's operations")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 when a page would change")
    options = parser.parse_args()
    pages = updated_pages(options.table)
    if options.check:
        return bool(pages)
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
