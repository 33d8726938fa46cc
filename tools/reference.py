# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of the control plane's settings: `python tools/reference.py >docs/configuration.md`."""

from __future__ import annotations

import sys

from magnetar_control.settings import FILE, describe

HEAD = f"""# Settings of the control plane

Written by `python tools/reference.py` from `control/settings.py`; a test compares them.

`magnetar serve`, `api` and `conductor` read one YAML file, `{FILE}` unless `--config` names another.
All settings may be left out. `magnetar config` checks the file and shows what holds; passwords in URLs are hidden.
The roles [api and conductor](cells.md) write the file; their variables `api_settings` and `conductor_settings` take
these names. Times are seconds, sizes MiB where nothing else is said.

| Setting | Type | Default | Meaning |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for row in describe():
        cells = (f"`{row['name']}`", row["type"].replace("|", "or").replace(" or None", ""),
                 f"`{row['default']}`" if row["default"] not in ("", "{}") else "", row["doc"].replace("|", "\\|"))
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
