# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what resources contain into RETURN of the modules, from their kinds' fields: `python -m tools.samples`.
Nothing else of a module changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from magnetar_core.fields import SHOW, Field, Kind
from magnetar_core.kinds import CLOUD_KINDS, KINDS

MODULES = Path(__file__).parents[1] / "plugins/modules"


class _Dumper(yaml.SafeDumper):
    """Lists stand deeper than their key, as in the rest of the documentation; nothing is an alias."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def contains(kind: type[Kind]) -> dict[str, Any]:
    """What answers show of a resource: meaning, type and sample of each field."""
    return {field.name: _entry(field) for field in kind.fields if SHOW in field.on}


def _entry(field: Field) -> dict[str, Any]:
    """One field; options that its text names are those of the module that sets it, so they are plain words here."""
    shape = field.value.option()
    types = {name: shape[name] for name in ("type", "elements") if name in shape}
    seen = field.sample[0] if types.get("elements") == "raw" and field.sample else field.sample
    types = {name: "dict" if word == "raw" and isinstance(seen, dict) else word for name, word in types.items()}
    sample = {} if field.sample is None else {"sample": field.sample}
    return {"description": re.sub(r"\b[OV]\(([^)]*)\)", r"C(\1)", field.doc), **types, **sample}


def written(text: str) -> str:
    """A module's *text* with what its entries of resources are to contain."""
    start = text.find('RETURN = r"""') + 1
    for kind in (*KINDS, *CLOUD_KINDS):
        for name in (kind.noun, kind.plural):
            entry = re.compile(rf"^{name}:\n(?:  .*\n)*?(  (?:sample|contains):\n(?:    .*\n)+)", re.MULTILINE)
            found = entry.search(text, start)
            if found:
                block = yaml.dump({"contains": contains(kind)}, Dumper=_Dumper, sort_keys=False, width=108,
                                  allow_unicode=True)
                text = text[:found.start(1)] + re.sub("^", "  ", block.rstrip(), flags=re.MULTILINE) + "\n" + (
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
