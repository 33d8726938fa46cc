# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of the control plane's settings and filters:
`python -m tools.reference >docs/configuration.md`."""

from __future__ import annotations

import re
import sys

from magnetar_control.scheduler.filters import FILTERS
from magnetar_control.settings_file import FILE, describe

HEAD = f"""# Settings of the control plane

Written by `python -m tools.reference` from `settings.py` and `scheduler/filters.py` of `control/magnetar_control`; a
test compares them.

`magnetar serve`, `api` and `conductor` read one YAML file, `{FILE}` unless `--config` names another.
All settings may be left out. `magnetar config` checks the file and shows what holds; passwords in URLs are hidden.
The roles [api and conductor](cells.md) write the file; their variables `api_settings` and `conductor_settings` take
these names. Times are seconds, sizes MiB where nothing else is said.

| Setting | Type | Default | Meaning |
|---|---|---|---|
"""
FILTER_HEAD = """
## Filters

A host may get a server when all of these pass it, in this order. `enabled_filters` names those that may be left out,
see [how a server finds its host](scheduler.md).

| Filter | Passes when |
|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for row in describe():
        cells = (f"`{row['name']}`", row["type"].replace("|", "or").replace(" or None", ""),
                 f"`{row['default']}`" if row["default"] not in ("", "{}") else "", row["doc"].replace("|", "\\|"))
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return HEAD + "\n".join(rows) + "\n" + FILTER_HEAD + filters()


def filters() -> str:
    """A row for each filter; what it passes is said by the function that decides it."""
    told: dict[str, str] = {}
    for one in FILTERS:
        words = re.sub(r" \((spec )?row [^)]*\)", "", " ".join((one.passes.__doc__ or "").split()))
        told.setdefault(one.name, words.replace("|", "\\|"))
    return "".join(f"| {name} | {words} |\n" for name, words in told.items())


if __name__ == "__main__":
    sys.stdout.write(page())
