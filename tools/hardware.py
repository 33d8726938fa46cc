# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of servers' ``hardware``: `python -m tools.hardware >docs/reference/hardware.md`."""

from __future__ import annotations

import re
import sys

from magnetar_core.hardware import Spec
from magnetar_core.hardware.cpus import CpuSet, PageSize
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.rows import BOOLEAN, FIELDS, ROWS, RULES, Row
from magnetar_core.values import Boolean, Choices, Integer, ListOf

HEAD = """# Hardware of servers

For operators who write flavors and images. After this page you know every extra spec and image property of hardware:
its values, what it needs, and which ones are refused.

```yaml
- magnetar.compute.flavor:
    name: database
    vcpus: 4
    ram: 8192
    extra_specs:
      hw:cpu_sockets: "1"
      hw:cpu_threads: "2"
      hw:watchdog_action: reset
      quota:disk_write_iops_sec: "500"
- magnetar.compute.server: {name: db1, flavor: database, image: debian, networks: [lan]}

- magnetar.compute.server:   # on a host without a cloud, without a flavor
    name: web1
    vcpus: 2
    ram: 2048
    image: debian
    hardware: {cpu_sockets: 1, cpu_cores: 2, watchdog: reset}
```

The field `hardware` of a server holds everything except its sizes. It comes from the extra specs of the flavor and the
properties of the image. On a host without a cloud, the server's own `hardware` overrides both. A server keeps its
hardware until a resize (values of the flavor) or a rebuild (values of the image). Values that do not fit together are
refused before anything is created.

## What acts

"Both" is the rule when flavor and image set a value. The default is the value in bold.

| Field | Values | Meaning | Extra spec | Image property | Both | Needs | Since |
|---|---|---|---|---|---|---|---|
"""
LIMITS = """
A limit (of topology or video memory) is not a field: it restricts what an image may request. An open topology gets the
fewest threads, then the most sockets.

## Machine types

[Choose the machine type of servers](../howto/choose-a-machine-type.md).

## Architectures

[Run guests of other architectures](../howto/run-other-architectures.md).

## CPUs, NUMA cells and pages of the host

[Give servers dedicated CPUs and large pages](../howto/give-dedicated-cpus.md).

## The CPU of guests

[Choose the CPU of guests](../howto/choose-the-cpu-of-guests.md).

## Memory in files

[Keep guests' memory in files](../howto/keep-guest-memory-in-files.md).

## Persistent memory

[Give servers persistent memory](../howto/give-persistent-memory.md).

## Encrypted memory

[Encrypt the memory of guests](../howto/encrypt-guest-memory.md).

## What is refused

With the setting `specs_without_effect: refuse`, a server of such a flavor or image is refused (400) with the text of
the last column. Values in the second column mean what every server has, and pass.

| Other names | Effect |
|---|---|
| extra specs that begin with `hw:` | refused |
| properties that begin with `hw_` or `img_` | ignored, as in Nova, with a warning in the server's action |
| your own names | pass |

| Extra spec or property | Passes | What is missing |
|---|---|---|
"""
FOOT = """
`python -m tools.hardware` prints this page from `plugins/module_utils/core/hardware`. A test compares them.
"""


def hardware_page() -> str:
    """Return the whole page in Markdown."""
    refused = [row for table in (FLAVOR_SPECS, IMAGE_PROPERTIES) for row in table.rows
               if row.row is None and not row.acts and row.lacks]
    return HEAD + "".join(map(_acts, ROWS)) + LIMITS + "".join(map(_refused, refused)) + FOOT


def _acts(row: Row) -> str:
    field = f"`{row.field}`" if row.field in FIELDS else "field `machine`" if row.field else f"limit of `{row.bounds}`"
    both = RULES[row.rule] if row.spec and row.image else ""
    specs = ", ".join(f"`{spec}`" for spec in (row.spec, *row.aliases) if spec)
    return _line(field, _values(row), re.sub(r"[VC]\(([^)]*)\)", r"`\1`", row.doc), specs,
                 f"`{row.image}`" if row.image else "", both, row.needs, row.since)


def _values(row: Row) -> str:
    """Return the table cell with the values that the field of *row* may have, the default in bold, each with Nova's
    name if it differs."""
    usual = str(row.usual).lower() if isinstance(row.usual, bool) else str(row.usual)
    words = []
    if isinstance(row.value, Boolean):
        words = ["true", "false"]
    elif isinstance(row.value, Choices):
        words = row.value.words()
    elif isinstance(row.value, ListOf):
        return "a list of traits" if isinstance(row.value.item, Choices) else \
            "a list of CPUs" if isinstance(row.value.item, CpuSet) else "a list of numbers"
    elif isinstance(row.value, CpuSet):
        return "CPUs such as `0-3,^2`"
    elif isinstance(row.value, PageSize):
        return "small, large, any, or a size such as `2048` (KiB) or `1GB`"
    elif isinstance(row.value, Integer):
        return f"{row.value.min} to {row.value.max}" + (f" (**{usual}**)" if row.usual is not None else "")
    named = {choice: ", ".join(alias for alias, value in row.words.items() if value == choice) for choice in words}
    return ", ".join((f"**{choice}**" if choice == usual else choice) + (f" ({named[choice]})" if named[choice] else "")
                     for choice in words)


def _refused(row: Spec) -> str:
    usual = "true, false" if row.usual == BOOLEAN else row.usual
    usual = {r"(?i:0|f|false|off|n|no)": "false", r"(?i:1|t|true|on|y|yes)": "true"}.get(usual, usual)
    return _line(f"`{row.name}`", f"`{usual}`" if usual else "", row.lacks)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n".replace("|  |", "| |").replace(
        "|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write(hardware_page())
