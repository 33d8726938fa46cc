# SPDX-License-Identifier: GPL-3.0-or-later
"""What is planned: nothing is left out without a reason, the same in every run."""

from __future__ import annotations

import pytest

from tests.conformance import negatives
from tests.conformance.plan import cells, chosen, only, plan, reasons
from tests.conformance.samples import FOLDER, Evidence

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the conformance folder is not beside the checkout")
EVIDENCE = Evidence()
ALL = {"hosts": 2, **dict.fromkeys(("volume", "network", "vnc", "serial", "spice", "spice_direct", "mks", "down_cell",
                                    "failed_host",
                                    "volume_migration", "empty_hosts",
                                    "soft_delete", "running_migration", "network_proxies"), True)}


def test_the_evidence_speaks_of_as_many_cells_as_its_page_says():
    assert cells(EVIDENCE) == 13712
    assert cells(EVIDENCE, 93) < 13712


def test_every_sample_is_planned_and_nothing_goes_without_a_reason():
    cases = plan(EVIDENCE, ALL)
    assert {case.sample.file for case in cases} == set(EVIDENCE.samples)
    assert all(case.version in case.sample.versions for case in cases if case.kind == "sample" and not case.reason)
    assert sum(reasons(cases).values()) == sum(bool(case.reason) for case in cases)
    assert max(reasons(cases).values()) < 10
    poor = reasons(plan(EVIDENCE, {}))
    assert poor["no volume service"] > 50
    assert poor["two hosts are needed"] > 30


def test_the_ends_of_a_range_and_one_between():
    sample = EVIDENCE.samples["servers/v2.19/servers-details-resp.json"]
    versions = chosen(sample)
    assert versions == chosen(sample)
    assert (len(versions), versions[0], versions[-1]) == (3, 19, 25), "later ones have tags, which it has not"
    assert chosen(sample, every=True) == list(range(19, 26))
    assert chosen(sample, maximum=19) == [19]


def test_twins_stand_one_version_before_where_the_operation_was_already():
    twins = [case for case in plan(EVIDENCE, ALL) if case.kind == "twin"]
    assert len(twins) > 100
    assert all(case.version == case.sample.min - 1 for case in twins)
    assert all(case.version >= EVIDENCE.operations[case.operation].min for case in twins)
    new = {case.id: case.extra["new"] for case in twins}
    assert new["servers/v2.9/server-get-resp.json@2.8 twin"] == ["/server/locked"]


def test_refusals_of_every_operation():
    cases = list(negatives.plan(EVIDENCE, EVIDENCE.newest))
    assert {case.operation for case in cases} >= {one.id for one in EVIDENCE.operations.values() if not one.removed} - {
        "versions.root", "versions.v2", "versions.root.multi"}
    kinds = {case.extra["kind"] for case in cases if not case.reason}
    assert kinds == set(negatives.KINDS)


def test_only_some_of_them():
    cases = plan(EVIDENCE, ALL)
    assert {case.area for case in only(cases, ["limits"])} == {"limits"}
    two = {"servers.show", "flavors.show"}
    assert {case.operation for case in only(cases, two)} == two
