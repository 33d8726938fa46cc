# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints a reference page: `python -m tools.reference >docs/reference/configuration.md` the settings and filters of the
control plane, `python -m tools.reference NAME >docs/reference/NAME.md` the page agent, commands, errors or
openstack-cloud.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from magnetar_control.scheduler.filters import FILTERS
from magnetar_control.settings_file import FILE, describe_settings

from .agent_settings_page import agent_settings_page
from .commands_page import commands_page
from .errors_page import errors_page
from .foreign_page import foreign_page
from .index import page_title

ROOT = Path(__file__).resolve().parents[1]
HEAD = f"""# Settings of the control plane

For operators who write the settings file of the control plane. After this page you know every setting of
`magnetar serve`, `api` and `conductor`, with its type and default, and every filter of the scheduler.

```yaml
# {FILE}, or the file that --config names
host_down_after: 30
ram_allocation_ratio: 1.0
```

`magnetar config` checks the file and prints all values, without the passwords in URLs. All settings are optional. The
roles [api and conductor](../howto/run-many-cells.md) write the file from their variables `api_settings` and
`conductor_settings`. Times are in seconds and sizes in MiB unless the text says otherwise.

SIGHUP makes a service read its file again. Settings with *reload* then take effect; the log names the others that have
changed, which need a restart. API processes of a service with [several](api-processes.md) take all settings except
`listen`.

| Setting | Type | Default | SIGHUP | Meaning |
|---|---|---|---|---|
"""
FILTER_HEAD = """
## Filters

A host may get a server when all filters pass it, in this order. `enabled_filters` names the optional ones, see
[Limits, filters and weights](scheduling.md).

| Filter | Passes when |
|---|---|
"""
FOOT = """
`python -m tools.reference` prints this page from `settings.py` and `scheduler/filters.py` of
`control/magnetar_control`. A test compares them.
"""
#: A page that a text names, such as docs/howto/mount-a-share.md.
PAGE = re.compile(r"docs/([\w-]+)/([\w-]+\.md)")


def settings_page() -> str:
    """Return the whole page in Markdown."""
    rows = []
    for row in describe_settings():
        cells = (f"`{row['name']}`", row["type"].replace("|", "or").replace(" or None", ""),
                 f"`{row['default']}`" if row["default"] not in ("", "{}") else "",
                 row["reload"], PAGE.sub(page_link, row["doc"].replace("|", "\\|")))
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return HEAD + "\n".join(rows) + "\n" + FILTER_HEAD + filter_rows() + FOOT


def page_link(mention: re.Match[str]) -> str:
    """Return the link from this page to the page that *mention* matches; its text is the page's title."""
    target = mention[2] if mention[1] == "reference" else f"../{mention[1]}/{mention[2]}"
    return f"[{page_title(ROOT / mention[0])}]({target})"


def filter_rows() -> str:
    """Return a table row for each scheduler filter, with the docstring of its function."""
    descriptions: dict[str, str] = {}
    for filter_rule in FILTERS:
        words = re.sub(r" \((spec )?row [^)]*\)", "", " ".join((filter_rule.passes.__doc__ or "").split()))
        descriptions.setdefault(filter_rule.name, words.replace("|", "\\|"))
    return "".join(f"| {name} | {words} |\n" for name, words in descriptions.items())


PAGES = {"configuration": settings_page, "agent": agent_settings_page, "commands": commands_page, "errors": errors_page,
         "openstack-cloud": foreign_page}

if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1] if sys.argv[1:] else "configuration"]())
