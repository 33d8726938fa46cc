# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the samples of resources in RETURN of the modules, from the samples of their kinds' fields: `python -m
tools.samples`. Nothing else of a module changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from magnetar_core.fields import SHOW, Kind
from magnetar_core.kinds import CLOUD_KINDS, KINDS

MODULES = Path(__file__).parents[1] / "plugins/modules"


class _Dumper(yaml.SafeDumper):
    """Lists stand deeper than their key, as in the rest of the documentation; nothing is an alias."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def sample(kind: type[Kind]) -> dict[str, Any]:
    """A resource as answers show it."""
    return {field.name: field.sample for field in kind.fields if SHOW in field.on}


def written(text: str) -> str:
    """A module's *text* with the samples that its entries of resources are to have."""
    start = text.find('RETURN = r"""') + 1
    for kind in (*KINDS, *CLOUD_KINDS):
        for name, value in ((kind.noun, sample(kind)), (kind.plural, [sample(kind)])):
            entry = re.compile(rf"^{name}:\n(?:  .*\n)*?  sample:\n((?:    .*\n)+)", re.MULTILINE)
            found = entry.search(text, start)
            if found:
                block = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
                text = text[:found.start(1)] + re.sub("^", "    ", block.rstrip(), flags=re.MULTILINE) + "\n" + (
                    text[found.end(1):])
    return text


def main() -> None:
    """Write what is not so yet."""
    for path in sorted(MODULES.glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        if written(text) != text:
            path.write_text(written(text), encoding="utf-8")


if __name__ == "__main__":
    main()
