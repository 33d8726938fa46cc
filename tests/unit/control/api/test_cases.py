# SPDX-License-Identifier: GPL-3.0-or-later
"""The cases of tests/cases/api: requests and answers of the Compute API as data, and that wrong data is found."""

import pytest
import yaml

from .cases import FOLDER, Run, Wrong, read
from .compute import emptied

CASES = [case for path in sorted(FOLDER.glob("*.yml")) for case in read(path)]
ONE = [pytest.param(case, id=case.id) for case in CASES if case.told.get("engine", "one") == "one"]
BOTH = [pytest.param(case, id=case.id) for case in CASES if case.told.get("engine") == "both"]


def ran(case, databases, folder):
    try:
        Run(case, databases, folder).run()
    finally:
        emptied(databases)


@pytest.mark.parametrize("case", ONE)
def test_on_sqlite(case, sqlite_three, tmp_path):
    ran(case, sqlite_three, tmp_path)


@pytest.mark.parametrize("case", BOTH)
@pytest.mark.parametrize("engine", ["sqlite_three", "postgres_three"])
def test_on_both_engines(case, engine, request, tmp_path):
    ran(case, request.getfixturevalue(engine), tmp_path)


@pytest.mark.parametrize(("text", "words"), [
    ("- {name: a}", "needs steps"),
    ("- {steps: []}", "a name of its own"),
    ("- {name: a, stepz: []}", "has no stepz; there are"),
    ("- {name: a, engine: two, steps: [{request: GET /flavors}]}", "one or both"),
    ("- {name: a, given: {host: {}}, steps: [{request: GET /flavors}]}", "given has no host"),
    ("- {name: a, steps: [{request: GET /flavors, staus: 200}]}", "step 1 has no staus"),
    ("- {name: a, steps: [{request: /flavors}]}", "a method and a path"),
    ("- {name: a, steps: [{request: GET /flavors, version: 2.10}]}", "in quotes"),
    ("- {name: a, steps: [{request: GET /flavors, status: 200, status: 201}]}", "status stands twice"),
    ("- {name: a, steps: [{rows: {}, status: 200}]}", "step 1 has no status")])
def test_wrong_cases_are_found(tmp_path, text, words):
    (tmp_path / "x.yml").write_text(text)
    with pytest.raises(Wrong, match=words):
        read(tmp_path / "x.yml")


@pytest.mark.parametrize(("step", "failed"), [
    ({"status": 404}, AssertionError), ({"json": {"flavors": [1]}}, AssertionError), ({"json": None}, AssertionError),
    ({"has": {"flavors": [1]}}, AssertionError), ({"has": {"flavours": []}}, KeyError),
    ({"lacks": ["flavors"]}, AssertionError), ({"keys": {".": ["flavours"]}}, AssertionError),
    ({"headers": {"vary": None}}, AssertionError), ({"request": "GET /flavors/{id}"}, Wrong),
    ({"request": "GET /flavors/1", "status": 404, "message": "Flavor"}, AssertionError),
    ({"request": "GET /flavors/1", "status": 404, "says": ["Flavor", "flavour"]}, AssertionError),
    ({"json": {"flavors": {"$text": "a"}}}, AssertionError), ({"json": {"flavors": {"$like": "a"}}}, Wrong),
    ({"save": {"id": "flavors[0].id"}}, KeyError)])
def test_wrong_answers_are_found(sqlite_three, tmp_path, step, failed):
    case = read_one({"request": "GET /flavors", **step}, tmp_path)
    with pytest.raises(failed):
        ran(case, sqlite_three, tmp_path)


def test_variables_that_nothing_uses_are_found(sqlite_three, tmp_path):
    case = read_one({"request": "GET /flavors"}, tmp_path, each=[{"status": 404}])
    with pytest.raises(Wrong, match="no step uses status"):
        ran(case, sqlite_three, tmp_path)


def read_one(step, folder, **more):
    (folder / "x.yml").write_text(yaml.safe_dump([{"name": "a", "steps": [step], **more}]))
    (case,) = read(folder / "x.yml")
    return case
