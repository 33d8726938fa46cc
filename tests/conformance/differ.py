# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares two runs with each other instead of with samples, such as one against a real Nova and one against ours:
``python -m tests.conformance.differ nova.jsonl ours.jsonl``, of files that ``run.py --record`` wrote.

The rule: each answer has the same status, the same keys (``tolerances`` says where there may be others), a fault has
the same name and the same words, but for ids, names, addresses and numbers in them. Cases that only one run has are
counted. The exit status is 0 when nothing differs, else 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .classes import UUID
from .samples import keys
from .tolerances import MAY_BE_EMPTY, USER_KEYED, may_be_missing, one_of

#: What may differ in the words of a fault, and what stands for it.
VARIES = (
    (re.compile(r"https?://[^ ]+"), "URL"),
    (re.compile(UUID.pattern), "ID"),
    (re.compile(r"[0-9a-f]{32}"), "ID"),
    (re.compile(r"conformance-[a-z]*-?[0-9-]+"), "NAME"),
    (re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}"), "ADDRESS"),
    (re.compile(r"[0-9]+"), "N"),
)


def words(message: str) -> str:
    """A fault's words without what varies from cloud to cloud."""
    for pattern, word in VARIES:
        message = pattern.sub(word, message)
    return " ".join(message.split())


def _fault(body: Any) -> tuple[str, str] | None:
    if isinstance(body, dict) and len(body) == 1:
        name, inner = next(iter(body.items()))
        if isinstance(inner, dict) and "code" in inner and "message" in inner:
            return str(name), words(str(inner["message"]))
    return None


def _free(pointer: str) -> bool:
    """Whether what is below *pointer*, or the key itself, may differ."""
    parts = pointer.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(one_of(USER_KEYED, one) for one in above[:-1]) or any(
        one_of(MAY_BE_EMPTY, one) or may_be_missing(one) for one in above)


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """What differs in one answer, in words."""
    if theirs["status"] != ours["status"]:
        yield f"status {theirs['status']}, here {ours['status']}"
        return
    if (theirs["body"] is None) != (ours["body"] is None):
        yield f"{'no' if theirs['body'] is None else 'a'} body, here {'none' if ours['body'] is None else 'one'}"
        return
    first, second = _fault(theirs["body"]), _fault(ours["body"])
    if first or second:
        if first != second:
            yield f"fault {first}, here {second}"
        return
    there, here = keys(theirs["body"]), keys(ours["body"])
    yield from (f"key {one} missing here" for one in sorted(there - here) if not _free(one))
    yield from (f"key {one} only here" for one in sorted(here - there) if not _free(one))


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Case to its answers."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {line["case"]: line["answers"] for line in lines}


def compare(theirs: dict[str, list[dict[str, Any]]], ours: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A line for each difference of the cases that both runs have."""
    for case in sorted(theirs.keys() & ours.keys()):
        if len(theirs[case]) != len(ours[case]):
            yield f"{case}: {len(theirs[case])} answers, here {len(ours[case])}"
        for one, other in zip(theirs[case], ours[case], strict=False):
            yield from (f"{case}: {text}" for text in differences(one, other))


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.differ", description=__doc__)
    parser.add_argument("theirs", type=Path, help="record of a run against Nova")
    parser.add_argument("ours", type=Path, help="record of a run against this cloud")
    options = parser.parse_args(argv)
    theirs, ours = read(options.theirs), read(options.ours)
    found = list(compare(theirs, ours))
    print("\n".join(found))
    both = len(theirs.keys() & ours.keys())
    print(f"{both} cases in both, {len(theirs) - both} only there, {len(ours) - both} only here; "
          f"{len(found)} differences")
    return 1 if found or not both else 0


if __name__ == "__main__":
    sys.exit(main())
