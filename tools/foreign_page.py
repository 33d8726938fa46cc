# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the page about options of openstack.cloud: ``python -m tools.reference openstack-cloud
>docs/reference/openstack-cloud.md``."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = "ansible_collections.magnetar.compute.plugins"
HEAD = """# Options and modules of openstack.cloud

For authors of playbooks written for `openstack.cloud`: the names of modules that differ here, and the options that are
converted or refused. [Run playbooks written for openstack.cloud](../howto/run-playbooks-for-openstack-cloud.md) says
how to begin.

```yaml
- magnetar.compute.compute_flavor: {cloud: mycloud, name: small, ram: 512, vcpus: 1, rxtx_factor: 1.0}
```

All other options of the modules have the names of openstack.cloud, as options or as aliases.

## Modules

| In openstack.cloud | Here |
|---|---|
"""
REFUSED = """
## Refused options

A task with such an option fails, names the option and the reason, and changes nothing.

| Module | Option | Accepted | Reason |
|---|---|---|---|
"""
CONVERTED = """
## Converted options

| Module | Option | Meaning |
|---|---|---|
"""
FOOT = """
`python -m tools.reference openstack-cloud` prints this page from `plugins/module_utils/foreign` and
`meta/runtime.yml`. A test compares them.
"""


def foreign_page() -> str:
    """Return the whole page in Markdown."""
    routing = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))["plugin_routing"]["modules"]
    renamed = [f"| `{name}` | `{route['redirect'].rpartition('.')[2]}` |"
               for name, route in routing.items() if "redirect" in route]
    refused, converted = [], []
    for name, option in foreign_options(routing):
        if hasattr(option, "reason"):
            accepted = ", ".join(f"`{_text(value)}`" for value in option.harmless)
            refused.append(f"| `{name}` | `{option.option}` | {accepted} | {option.reason} |".replace("|  |", "| |"))
        else:
            meaning = re.sub(r"[OVC][(]([^)]*)[)]", r"`\1`", option.doc.partition(". ")[2].removesuffix("."))
            converted.append(f"| `{name}` | `{option.option}` | {meaning} |")
    parts = (HEAD, "\n".join(renamed), "\n", REFUSED, "\n".join(refused), "\n", CONVERTED, "\n".join(converted), "\n",
             FOOT)
    return "".join(parts)


def foreign_options(routing: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each module with each of its options of openstack.cloud. *routing*: the modules of
    ``meta/runtime.yml``."""
    sys.path.insert(0, str(ROOT / ".cache"))
    for name, route in routing.items():
        if "redirect" not in route:
            module = importlib.import_module(f"{COLLECTION}.modules.{name}").MODULE
            yield from ((name, option) for option in module.foreign)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
