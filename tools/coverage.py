# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints docs/reference/api-coverage.md: what of Nova's API is served, from the route table, and what is missing.

What is missing comes from the table of Nova's operations (`--table`, a file beside the project); without it that part
of the page stays as it is.
"""

from __future__ import annotations

import argparse
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
TABLE = ROOT.parent / "shared/conformance/compute-api.yaml"
REMOVED = "## What Nova has removed"
MISSING = "## What is missing"
HEAD = f"""# API coverage

Printed by `python tools/coverage.py` from the route table; do not edit. Microversions 2.1 to 2.{NEWEST}. What is not in
the first two tables answers 404, as a route that does not exist; another method of a route 405; another action of a
server 400, as Nova says of actions that it has not. Below `/v2` everything is as at 2.1, without headers of versions;
what a body may not have is left out there, and so are blanks around names.

## What is served

| operation | method and path | since | until | rule |
|---|---|---|---|---|
"""


def served(operations: Sequence[ApiOperation] = OPERATIONS) -> str:
    """The table of what is served."""
    rows = []
    for one in sorted(operations, key=lambda one: (one.path, one.method, one.action or "", one.since)):
        action = f" `{one.action}`" if one.action else ""
        until = "" if one.until >= NEWEST else f"2.{one.until}"
        rows.append(f"| {one.name} | {one.method} `{one.path}`{action} | 2.{one.since} | {until} | {one.policy or ''} "
                    "|")
    return HEAD + "\n".join(rows) + "\n"


def gone() -> str:
    """The table of what answers 410."""
    rows = [f"| `{path}` | {', '.join(f'`{word}`' if path.endswith('/action') else word for word in those.split())} |"
            for path, those in removed.REMOVED.items()]
    return "\n".join([REMOVED, "", "It answers 410 at each microversion, as in Nova, to everybody who has a token.", "",
                      "| path | methods or actions |", "|---|---|", *rows]) + "\n"


def missing(table: Iterable[dict[str, Any]], operations: Sequence[ApiOperation] = OPERATIONS) -> str:
    """What Nova has besides, by area."""
    have = {one.name for one in operations}
    left = [one for one in table if one["id"] not in have and not one["class"].startswith("removed")
            and one["area"] != "versions"]
    if not left:
        return f"{MISSING}\n\nNothing.\n"
    lines = [MISSING, "", "| area | class | operations |", "|---|---|---|"]
    for (area, kind), rows in groupby(sorted(left, key=lambda one: (one["area"], one["class"])),
                                      key=lambda one: (one["area"], one["class"])):
        lines.append(f"| {area} | {kind} | {', '.join(sorted(one['id'] for one in rows))} |")
    return "\n".join(lines) + "\n"


def page(table: Path) -> str:
    """The whole page."""
    if table.exists():
        rest = missing(yaml.safe_load(table.read_text(encoding="utf-8"))["operations"])
    else:
        rest = MISSING + PAGE.read_text(encoding="utf-8").partition(MISSING)[2] if PAGE.exists() else MISSING + "\n"
    return served() + "\n" + gone() + "\n" + rest


def main() -> int:
    """Write the page, or say whether it is as it should be."""
    parser = argparse.ArgumentParser("coverage", description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="the table of Nova's operations")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 when the page would change")
    given = parser.parse_args()
    wanted = page(given.table)
    if given.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
