# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of planning: steps, the structural difference of two documents, and the result of an ``ensure``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Optional

MASK = "(hidden)"


class Step:
    """A step of a plan. *verb*: the name of the step's operation, such as ``define`` (of the libvirt domain) or
    ``start``. *args*: the operation's arguments. *text*: a description for users.
    """

    __slots__ = ("args", "text", "verb")

    def __init__(self, verb: str, text: str, **args: Any) -> None:
        self.verb, self.text, self.args = verb, text, args

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and (self.verb, self.args) == (other.verb, other.args)

    def __hash__(self) -> int:
        return hash(self.verb)

    def __repr__(self) -> str:
        return "Step(%r, %r)" % (self.verb, self.args)

    def as_dict(self) -> dict[str, str]:
        """Return ``{"verb": str, "text": str}``, as answers and audit logs have it."""
        return {"verb": self.verb, "text": self.text}


def diff_documents(before: Any, after: Any, secrets: Collection[str] = (), path: str = "") -> list[dict[str, Any]]:
    """Return the differences between two JSON values as a list of ``{"path", "old", "new"}``, in order of the paths; a
    value that is missing is ``None``.

    Mappings are compared by keys, all other values as a whole. Values of *secrets* (top-level keys) are masked. *path*:
    the path of the two values, "" at the top level.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        differences: list[dict[str, Any]] = []
        for key in sorted(set(before) | set(after), key=str):
            where = "%s.%s" % (path, key) if path else str(key)
            if path == "" and key in secrets:
                if before.get(key) != after.get(key):
                    differences.append({"path": where, "old": MASK if before.get(key) is not None else None,
                                        "new": MASK if after.get(key) is not None else None})
            else:
                differences.extend(diff_documents(before.get(key), after.get(key), secrets, where))
        return differences
    if before == after:
        return []
    return [{"path": path, "old": before, "new": after}]


class Result:
    """The outcome of a request to create, change or remove a resource: ``changed``, the ``steps``, the differences
    ``diff``, and the ``resource`` after the steps (in a dry run: as it would be).

    ``revision``: in a dry run, the revision (a digest of the fields) of the resource before the steps; otherwise
    ``None``.
    """

    __slots__ = ("diff", "resource", "revision", "steps", "warnings")

    def __init__(self, steps: Iterable[Step], diff: list[dict[str, Any]], resource: Optional[dict[str, Any]],
                 warnings: Iterable[str] = (), revision: Optional[str] = None) -> None:
        self.steps, self.diff, self.resource, self.warnings = list(steps), diff, resource, list(warnings)
        self.revision = revision

    @property
    def changed(self) -> bool:
        return bool(self.steps)

    def as_dict(self) -> dict[str, Any]:
        return {
            "changed": self.changed,
            "steps": [step.as_dict() for step in self.steps],
            "diff": self.diff,
            "resource": self.resource,
            "warnings": self.warnings,
            **({} if self.revision is None else {"revision": self.revision}),
        }


def describe_outcome(name: str, answer: Mapping[str, Any], dry_run: bool) -> str:
    """Return a line for users about the resource *name*: the texts of the steps, or "no change". *answer*: the outcome
    as ``Result.as_dict`` returns it. *dry_run*: whether the steps would be done, but were not.
    """
    words = "; ".join(step["text"] for step in answer["steps"])
    return "%s: %s%s" % (name, "would " if dry_run else "", words) if answer["changed"] else "%s: no change" % name
