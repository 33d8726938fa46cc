# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the conformance cases against a cloud: ``python -m tests.conformance.run --url http://127.0.0.1:8774``.

The exit status is 0 when no area has fewer passes than expected.yaml says, 1 when one has, 2 when nothing could be run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import negatives, report
from .execute import Runner
from .fixtures import Blocked, Fixtures
from .outcome import BLOCKED, FAIL, Result
from .personas import Refused, cloud
from .plan import Case, only, part, plan
from .samples import FOLDER, Evidence
from .transport import Cloud, Target, Wire, read_target


class Unreachable(Exception):
    """The target is not one, or not there."""


def discover(there: Cloud) -> None:
    """The version document, the catalog's services and the hosts: what the target's description leaves open."""
    root = there.compute("GET", "(root)/v2.1/", version=None, persona="")
    document = (root.body or {}).get("version") if root.status == 200 else None
    if not document or document.get("id") != "v2.1":
        raise Unreachable(f"{there.target.url}/v2.1/ is no compute API: {root.status} {root.message[:200]}")
    target = there.target
    claimed = int(document["version"].partition(".")[2])
    if claimed < target.maximum:
        target.max_microversion = document["version"]
    found: dict[str, Any] = {"vnc": True, "serial": True}
    found["network"] = there.service("network", "GET", "/v2.0/networks").status == 200
    found["volume"] = there.service("volume", "GET", f"/v3/{there.admin.project_id}/volumes").status == 200
    try:
        found["hosts"] = len(Fixtures(there).hosts)
    except Blocked:
        found["hosts"] = 1
    target.capabilities = {**found, **target.capabilities}


def prepare_quota(there: Cloud) -> None:
    """Room for what the cases make, where quotas can be set."""
    body = {"quota_set": {"instances": 100, "cores": 200, "ram": 200000, "force": True}}
    there.compute("PUT", f"/os-quota-sets/{there.admin.project_id}", body, version=1)


def run(target: Target, evidence: Evidence, words: list[str] | None = None, every: bool = False,
        wire: Wire | None = None, each: Callable[[Result], None] | None = None,
        share: tuple[int, int] = (0, 1)) -> list[Result]:
    """Every case's result, or those of one *share*: (number, of how many). Raises ``Unreachable`` or ``Refused`` before
    the first case."""
    try:
        there = cloud(target, wire)
        discover(there)
    except OSError as why:
        raise Unreachable(f"{target.url}: {why}") from why
    prepare_quota(there)
    fx = Fixtures(there)
    runner = Runner(evidence, there, fx)
    refusals = negatives.Negatives(runner)
    cases = [*plan(evidence, target.capabilities, target.maximum, every), *negatives.plan(evidence, target.maximum)]
    results = []
    try:
        for case in part(only(cases, words or []), *share):
            there.story.clear()
            result = _one(runner, refusals, case)
            result.story = list(there.story)
            results.append(result)
            if each:
                each(result)
    finally:
        for failed in fx.clean():
            print(f"left behind: {failed}", file=sys.stderr)
        there.wire.close()
    return results


def _one(runner: Runner, refusals: negatives.Negatives, case: Case) -> Result:
    try:
        return refusals.run(case) if case.kind == "negative" else runner.run(case)
    except OSError as why:
        return Result(case, FAIL, f"no answer: {why}")
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as why:
        # A fixture's answer was not of the form that the API promises: the case cannot be tried.
        return Result(case, BLOCKED, f"a fixture's answer is malformed: {type(why).__name__} {why}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument("--target", type=Path, help="YAML file that describes the cloud")
    parser.add_argument("--url", help="the compute API's base URL, without /v2.1")
    parser.add_argument("--auth-url", default="", help="identity API, with /v3; default: URL/identity/v3")
    parser.add_argument("--username", default="admin")
    parser.add_argument("--password", default=os.environ.get("OS_PASSWORD", ""), help="default: $OS_PASSWORD")
    parser.add_argument("--project", default="admin")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the evidence; default: %(default)s")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="area, operation, part of a case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="one line for each case")
    parser.add_argument("--record", type=Path, metavar="FILE",
                        help="what each case was answered, for tests.conformance.differ")
    parser.add_argument("--worklist", type=Path, metavar="FILE", help="differences by operation, most frequent first")
    parser.add_argument("--max-microversion", default="", metavar="2.N")
    parser.add_argument("--every", action="store_true", help="every microversion of each range, not only three")
    parser.add_argument("--part", default="1/1", metavar="N/M", help="the Nth of M parts of the operations")
    parser.add_argument("--accept", action="store_true", help="write the passes of this run to expected.yaml")
    parser.add_argument("--plan", action="store_true", help="only count what would be run")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    options = arguments(argv)
    if not options.data.is_dir():
        print(f"There is no folder {options.data}: say where the evidence is with --data.", file=sys.stderr)
        return 2
    evidence = Evidence(options.data)
    if options.plan:
        cases = [*plan(evidence, {"hosts": 2, "volume": True, "network": True, "vnc": True}),
                 *negatives.plan(evidence, evidence.newest)]
        print(f"{len(cases)} cases, {sum(not case.reason for case in cases)} applicable with two hosts")
        return 0
    if not options.target and not options.url:
        print("Say which cloud: --url, or --target with a description file.", file=sys.stderr)
        return 2
    target = read_target(options.target) if options.target else Target(
        url=options.url, auth_url=options.auth_url, username=options.username, password=options.password,
        project=options.project)
    if options.max_microversion:
        target = replace(target, max_microversion=options.max_microversion)
    began = time.monotonic()
    try:
        number, of = map(int, options.part.split("/"))
        results = run(target, evidence, options.only, options.every, share=(number - 1, of))
    except (Unreachable, Refused) as why:
        print(why, file=sys.stderr)
        return 2
    return conclude(results, options, time.monotonic() - began)


def conclude(results: list[Result], options: argparse.Namespace, seconds: float) -> int:
    """Write and print what came of it; the exit status."""
    if options.json:
        report.write_lines(results, options.json)
    if options.record:
        report.write_record(results, options.record)
    if options.worklist:
        options.worklist.write_text("\n".join(report.worklist(results)) + "\n", encoding="utf-8")
    print("\n".join(report.summary(results)))
    print(f"{len(results)} cases in {seconds:.1f} s")
    if options.accept:
        report.write_expected(results)
        return 0
    sunk = [] if options.only or options.part != "1/1" else report.sunk(results, report.read_expected())
    for line in sunk:
        print(line, file=sys.stderr)
    return 1 if sunk else 0


if __name__ == "__main__":
    sys.exit(main())
