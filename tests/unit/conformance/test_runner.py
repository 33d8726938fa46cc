# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner against a cloud that answers with the samples: right answers pass, spoilt ones are named."""

from __future__ import annotations

import collections
import json

import pytest

from tests.conformance import report
from tests.conformance.bind import VALUES, bind
from tests.conformance.outcome import ABSENT, FAIL, PASS
from tests.conformance.run import main, run
from tests.conformance.samples import FOLDER, Evidence, keys
from tests.conformance.scenes import Scene

from .replay import Replay, serve

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the conformance folder is not beside the checkout")
EVIDENCE = Evidence()
AREAS = ["limits.list", "os-availability-zone.list", "os-quota-sets.show", "os-services.list"]


def outcomes(results):
    return {result.case.id: result.outcome for result in results if result.case.kind == "sample"}


def test_the_samples_themselves_pass():
    with serve(Replay(EVIDENCE)) as target:
        results = run(target, EVIDENCE, AREAS)
    found = collections.Counter(outcomes(results).values())
    assert set(found) <= {PASS, "not applicable"}, [one.document() for one in results if one.outcome == FAIL]
    assert found[PASS] > 20
    passed, applicable = report.cells(results)
    assert passed == applicable > 15


def test_a_key_too_many_is_named_with_its_place():
    def spoil(sample, body):
        if sample.operation == "limits.list":
            body["limits"]["absolute"]["maxDreams"] = 1
        return body
    with serve(Replay(EVIDENCE, spoil)) as target:
        results = run(target, EVIDENCE, ["limits.list"])
    failed = [result for result in results if result.case.kind == "sample"]
    assert {result.outcome for result in failed} == {FAIL}
    line = json.loads(json.dumps(failed[0].document()))
    assert line["differences"][0]["pointer"] == "/limits/absolute/maxDreams"
    assert line["asked"] == "GET /v2.1/limits"
    assert "limits.list" in report.worklist(results)[1]


def test_what_is_not_served_is_absent_and_not_wrong():
    with serve(Replay(EVIDENCE)) as target:
        results = run(target, EVIDENCE, ["servers.diagnostics.list", "os-availability-zone.detail.list"])
    assert {result.outcome for result in results if result.case.operation == "servers.diagnostics.list"} == {ABSENT}
    assert set(outcomes(results).values()) == {PASS}


def test_passes_must_not_sink(tmp_path):
    with serve(Replay(EVIDENCE)) as target:
        results = run(target, EVIDENCE, ["limits.list"])
    path = tmp_path / "expected.yaml"
    report.write_expected(results, path)
    expected = report.read_expected(path)
    assert expected["limits"]["direct"] >= 10
    assert report.sunk(results, expected) == []
    expected["limits"]["direct"] += 1
    assert report.sunk(results, expected) == [
        f"limits, direct: {expected['limits']['direct'] - 1} of {expected['limits']['direct']} expected cases pass"]
    report.write_lines(results, tmp_path / "lines")
    assert len((tmp_path / "lines").read_text().splitlines()) == len(results)


class Things:
    """Stands for the fixtures: everything has a value."""

    image = network = "10000000-0000-4000-8000-000000000000"
    zone, volume_type = "zone1", "fast"
    hosts = ["kvm1", "kvm2"]

    class cloud:  # noqa: N801 - a name of the fixtures
        class admin:  # noqa: N801
            project_id, user_id = "project", "user"

        class target:  # noqa: N801
            url = "http://cloud"

    def __getattr__(self, name):
        return lambda *args, **more: {"id": "made"} if name == "port" else name

    def compute(self, method, path, *rest, **more):
        return {"hypervisors": [{"hypervisor_hostname": "node1", "service": {"host": "kvm1"}}]}


@pytest.mark.parametrize("file", [one.file for one in EVIDENCE.samples.values() if one.direction == "request"]
                         if FOLDER.is_dir() else [])
def test_binding_keeps_the_keys_of_a_request(file):
    sample = EVIDENCE.samples[file]
    scene = Scene(Things(), EVIDENCE.operations[sample.operation], sample.min, sample,
                  known={"server": "server", "volume": "volume"})
    before = EVIDENCE.body(file)
    after = bind(scene, EVIDENCE.body(file))
    assert keys(after) == keys(before)
    assert "70a599e0-31e7-49b7-b260-868f441e862b" not in json.dumps(after), "the samples' image is no image here"
    assert len(VALUES) <= 30


def test_the_command_says_what_it_lacks(capsys, tmp_path):
    assert main(["--data", str(tmp_path / "none"), "--url", "http://127.0.0.1:1"]) == 2
    assert "--data" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--url", "http://127.0.0.1:1", "--password", "x"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    with serve(Replay(EVIDENCE)) as target:
        description = tmp_path / "target.yaml"
        description.write_text(json.dumps({"url": target.url, "personas": target.personas, "hosts": ["host1"]}))
        assert main(["--target", str(description), "--only", "limits.list", "--json", str(tmp_path / "lines")]) == 0
    assert "cells passed / applicable: 12 / 12" in capsys.readouterr().out
