# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes ``RETURN`` of the modules: `python -m tools.returns`.

ansible-core up to 2.19 reads ``RETURN`` only as literal text in the module's file, so the text is printed there from
the declarations: entries of a ``ResourceModule`` or an ``InfoModule``, the contents of a kind's entry, and ``error``.
A module's further entries are written by hand in its file, and stay as they are.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MODULES = ROOT / "plugins/modules"
COLLECTION = "ansible_collections.magnetar.compute.plugins"
#: The literal of a module's file.
LITERAL = re.compile(r'^RETURN = r"""\n?(.*?)"""$', re.DOTALL | re.MULTILINE)
#: One entry of RETURN: its name and its lines.
ENTRY = re.compile(r"^(\w+):.*\n(?:(?: .*)?\n)*", re.MULTILINE)
ACRONYMS = {"ip": "IP", "ips": "IPs", "qos": "QoS", "rbac": "RBAC"}
WIDTH = 120
REQUEST = "req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11"
ERROR = {
    "description": "The failure in a form for programs: V(code) names its kind, V(details) has the values.",
    "returned": "on failure", "type": "dict",
    "sample": {"code": "invalid-field", "details": {"field": "name", "rule": "is required"}, "request_id": REQUEST}}


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def return_entries(module: Any) -> dict[str, Any]:
    """Return the entries of ``RETURN`` that derive from the declarations of *module*, by name."""
    resource, info = (importlib.import_module(f"{COLLECTION}.module_utils.modules.{name}") for name in ("resource",
                                                                                                        "info"))
    entries = {}
    if isinstance(module, resource.ResourceModule):
        entries = _resource_entries(module)
    elif isinstance(module, info.InfoModule):
        kind = module.kind
        entries = {kind.plural: {
            "description": kind.report_doc or f"The matching {label(kind.plural)}; empty when there are none.",
            "returned": "on success", "type": "list", "elements": "dict", "contains": resource_contents(kind)}}
    return {**entries, "error": ERROR}


def _resource_entries(module: Any) -> dict[str, Any]:
    kind, in_cloud = module.kind, module.kind in _kinds().CLOUD_KINDS
    options = {option.name for option in module.options}
    alternative = "a list or a running operation" if "servers" in options else "a running operation"
    description = f"The {label(kind.noun)} after the task; in check mode, as it would be."
    if "state" in options - {field.name for field in kind.settable()}:
        description += (f" With O(state={module.removed}), the last known {label(kind.noun)}, or V(null) if there was "
                        "none.")
    return {
        kind.noun: {
            "description": description,
            "returned": f"on success, unless {alternative} is returned", "type": "dict",
            "contains": resource_contents(kind)},
        "actions": {
            "description": "The steps that were done, in order; in check mode, the predicted steps.",
            "returned": "on success", "type": "list", "elements": "str", "sample": list(kind.sample_actions)},
        "changes": {
            "description": "Path of each field that changed to its V(old) and V(new) value. Secrets are hidden.",
            "returned": "on success", "type": "dict", "sample": _sample_changes(module)},
        "operation": {
            "description": "The operation that continues after the task.",
            "returned": "when O(wait=false) and the work takes longer than a moment", "type": "dict",
            "sample": {"id": "0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10", "status": "running"}},
        "request_id": {
            "description": f"Name of the request in the logs of the {'API' if in_cloud else 'agent'}.",
            "returned": f"when the {'API' if in_cloud else 'agent'} has answered", "type": "str", "sample": REQUEST},
    }


def label(noun: str) -> str:
    """Return a kind's noun or plural as words for a sentence."""
    return " ".join(ACRONYMS.get(word, word) for word in noun.split("_"))


def _sample_changes(module: Any) -> dict[str, Any]:
    """Return the sample for ``changes`` in the documentation of *module*: the sample that its kind declares, otherwise
    the change of the first field that has a sample."""
    changes = module.kind.sample_changes
    if not changes:
        field = next(field for field in module.kind.own if field in module.fields and field.sample is not None
                     and field.name not in ("id", "name"))
        changes = {field.name: (None, field.sample)}
    return {name: {"old": old, "new": new} for name, (old, new) in changes.items()}


def resource_contents(kind: Any) -> dict[str, Any]:
    """Return the ``contains`` entry of a resource: meaning, type and sample of each field."""
    return {field.name: _field_entry(field) for field in kind.fields if "show" in field.on}


def _field_entry(field: Any) -> dict[str, Any]:
    """Return the entry of one field. In its text, references to options become plain words, because the options belong
    to the module that sets the field.
    """
    shape = field.value.option()
    types = {name: shape[name] for name in ("type", "elements") if name in shape}
    sample_value = field.sample[0] if types.get("elements") == "raw" and field.sample else field.sample
    types = {name: "dict" if type_name == "raw" and isinstance(sample_value, dict) else type_name for name,
             type_name in types.items()}
    sample = {} if field.sample is None else {"sample": field.sample}
    return {"description": re.sub(r"\b[OV]\(([^)]*)\)", r"C(\1)", field.doc), **types, **sample}


def _kinds() -> Any:
    return importlib.import_module(f"{COLLECTION}.module_utils.core.kinds")


def entry_text(name: str, entry: dict[str, Any]) -> str:
    """Return the entry *name* as YAML, on as few lines as fit. In an entry with ``contains``, each key and each field
    of ``contains`` begins a new line."""
    if "contains" not in entry:
        return _flow(name, entry)
    lines = [_flow(key, value, "  ") for key, value in entry.items() if key != "contains"]
    fields = [_flow(field, field_entry, "    ") for field, field_entry in entry["contains"].items()]
    return "".join((f"{name}:\n", *lines, "  contains:\n", *fields))


def _flow(key: str, value: Any, indent: str = "") -> str:
    """Return a key with its value in YAML's flow style; in block style if a word is too long for flow style. Each line
    begins with *indent*. PyYAML may exceed its width by a word, so the width is reduced until all lines have at most
    *WIDTH* characters."""
    for width in range(WIDTH - len(indent), WIDTH // 2, -5):
        lines = _yaml({key: value}, width, flow=True)[1:-1].split("\n")
        if all(len(indent + line) <= WIDTH for line in lines):
            break
    else:
        lines = _yaml({key: value}, WIDTH - len(indent), flow=False).split("\n")
    return "".join(f"{indent}{line}\n" for line in lines)


def _yaml(value: Any, width: int, flow: bool) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, allow_unicode=True,
                         width=width)).rstrip("\n")


def updated_module(path: Path) -> str:
    """Return the text of the module's file at *path* with a new ``RETURN``."""
    text = path.read_text(encoding="utf-8")
    module = getattr(importlib.import_module(f"{COLLECTION}.modules.{path.stem}"), "MODULE", None)
    literal = LITERAL.search(text)
    if module is None or literal is None:  # it has no agent: all of its text is written by hand
        return text
    declared = return_entries(module)
    by_noun = {kind.noun: kind for kind in (*_kinds().KINDS, *_kinds().CLOUD_KINDS)}
    texts = {}
    for entry in ENTRY.finditer(literal[1]):
        content = yaml.safe_load(entry[0])[entry[1]]
        if entry[1] in by_noun and "contains" in content:
            content["contains"] = resource_contents(by_noun[entry[1]])
            texts[entry[1]] = entry_text(entry[1], content)
        else:
            texts[entry[1]] = entry[0]
    texts.update({name: entry_text(name, entry) for name, entry in declared.items()})
    return text[:literal.start()] + 'RETURN = r"""\n' + "".join(texts.values()) + '"""' + text[literal.end():]


def main() -> None:
    """Write the modules that changed."""
    sys.path.insert(0, str(ROOT / ".cache"))
    for path in sorted(MODULES.glob("[a-z]*.py")):
        text = updated_module(path)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
