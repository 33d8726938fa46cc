# SPDX-License-Identifier: GPL-3.0-or-later
"""What came of a run: a line of JSON for each case, the matrix by area, and whether fewer cases pass than before."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from .outcome import ABSENT, BLOCKED, FAIL, NOT_APPLICABLE, OUTCOMES, PASS, Result

EXPECTED = Path(__file__).with_name("expected.yaml")
HEAD = ("# SPDX-License-Identifier: GPL-3.0-or-later\n"
        "# Cases that pass, by area and class. A run in which fewer pass fails; run.py --accept writes this file.\n")


def write_lines(results: Iterable[Result], path: Path) -> None:
    """One JSON document on each line."""
    with path.open("w", encoding="utf-8") as file:
        for result in results:
            file.write(json.dumps(result.document(), ensure_ascii=False) + "\n")


def write_record(results: Iterable[Result], path: Path) -> None:
    """One JSON document for each case that was run: what its operation was answered, for ``differ``."""
    with path.open("w", encoding="utf-8") as file:
        for result in results:
            if result.outcome != NOT_APPLICABLE:
                answers = [{"status": one.status, "body": one.body, "type": one.headers.get("content-type")}
                           for one in result.story]
                file.write(json.dumps({"case": result.case.id, "answers": answers}, ensure_ascii=False) + "\n")


def counts(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Passes by area and class."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for result in results:
        row = found[result.case.area]
        row[result.case.group] = row.get(result.case.group, 0) + (result.outcome == PASS)
    return {area: dict(sorted(row.items())) for area, row in sorted(found.items())}


def write_expected(results: Iterable[Result], path: Path = EXPECTED) -> None:
    """Take the passes of this run as the ones to keep."""
    path.write_text(HEAD + yaml.safe_dump(counts(results), sort_keys=True), encoding="utf-8")


def read_expected(path: Path = EXPECTED) -> dict[str, dict[str, int]]:
    """The passes to keep; empty when there is no file."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def sunk(results: Iterable[Result], expected: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Areas and classes in which fewer cases pass than expected."""
    now = counts(results)
    return [f"{area}, {group}: {now.get(area, {}).get(group, 0)} of {wanted} expected cases pass"
            for area, row in expected.items() for group, wanted in row.items()
            if now.get(area, {}).get(group, 0) < wanted]


def cells(results: Iterable[Result]) -> tuple[int, int]:
    """(operation, direction, microversion) cells of samples: those of which every case passed, and the applicable."""
    found: dict[tuple[str, str, int], bool] = {}
    for result in results:
        if result.case.kind == "sample" and result.outcome != NOT_APPLICABLE:
            found[result.case.cell] = found.get(result.case.cell, True) and result.outcome == PASS
    return sum(found.values()), len(found)


def matrix(results: Iterable[Result]) -> list[str]:
    """Rows by area: outcomes of samples and twins, and of negatives."""
    rows: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for result in results:
        kind = "negative" if result.case.kind == "negative" else "sample"
        rows[result.case.area][kind, result.outcome] += 1
        rows["total"][kind, result.outcome] += 1
    total = rows.pop("total", Counter())
    names = ("pass", "fail", "absent", "blocked", "n/a")
    head = f"{'area':22}" + "".join(f"{name:>9}" for name in names) + "   negatives:" + "".join(
        f"{name:>9}" for name in names)
    lines = [head]
    for area, row in [*sorted(rows.items()), ("total", total)]:
        line = f"{area:22}" + "".join(f"{row['sample', outcome]:9}" for outcome in OUTCOMES) + " " * 13
        lines.append(line + "".join(f"{row['negative', outcome]:9}" for outcome in OUTCOMES))
    return lines


def summary(results: list[Result]) -> list[str]:
    """What a run prints."""
    passed, applicable = cells(results)
    lines = [*matrix(results), "",
             f"cells passed / applicable: {passed} / {applicable}", ""]
    for outcome, title in ((NOT_APPLICABLE, "not applicable"), (BLOCKED, "blocked")):
        why = Counter(result.reason for result in results if result.outcome == outcome)
        if why:
            lines += [f"{title}:", *(f"  {number:5}  {reason[:160]}" for reason, number in why.most_common(40)), ""]
    return lines


def worklist(results: Iterable[Result]) -> list[str]:
    """Differences by operation, the most frequent first, for those who mend the API."""
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    missing: Counter[str] = Counter()
    for result in results:
        if result.outcome == ABSENT:
            missing[result.case.operation] += 1
        if result.outcome == FAIL:
            for one in {(one.what, one.expected, re.sub(r"/[0-9]+", "/*", one.pointer)): one
                        for one in result.differences}.values():
                pointer = "/".join("*" if part.isdigit() else part for part in one.pointer.split("/"))
                key = f"{one.what} at {pointer or '(body)'}: expected {one.expected}"
                if one.pointer.startswith("#"):
                    key += "; got " + re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|conformance-[a-z]+-[0-9-]+|:[0-9]{4,5}", "*",
                                             one.got[:160])
                found[result.case.operation, key].append(result)
    lines = ["operation | times | difference | first and last microversion | a case"]
    for (operation, key), those in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        versions = [one.case.version for one in those]
        lines.append(f"{operation} | {len(those)} | {key} | 2.{min(versions)}-2.{max(versions)} | {those[0].case.id}")
    lines += ["", "absent operations | cases", *(f"{name} | {number}" for name, number in missing.most_common())]
    return lines
