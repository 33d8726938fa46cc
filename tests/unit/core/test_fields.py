# SPDX-License-Identifier: GPL-3.0-or-later
"""Declarations: ranges, documents, and that every kind is declared well."""

from __future__ import annotations

import jsonschema
import pytest

from magnetar_core.errors import InvalidField
from magnetar_core.fields import CREATE, SHOW, UNSET, UPDATE, Kind
from magnetar_core.kinds import BY_NOUN, KINDS, Server
from magnetar_core.versions import Range, Version


def test_versions_compare_by_number() -> None:
    assert Version("2.9") < Version("2.10")
    assert str(Version("2.104")) == "2.104"
    for wrong in ("2", "2.01", "02.1", "2.1.1", "latest", ""):
        with pytest.raises(ValueError, match="is not a version"):
            Version(wrong)


@pytest.mark.parametrize(("since", "until", "inside", "outside"), [
    ("2.55", None, "2.55 2.104", "2.1 2.54"), (None, "2.74", "2.1 2.74", "2.75"), ("2.3", "2.3", "2.3", "2.2 2.4"),
])
def test_a_range_holds_both_ends(since: str, until: str, inside: str, outside: str) -> None:
    found = Range(since, until)
    assert all(found.holds(Version(version)) for version in inside.split())
    assert not any(found.holds(Version(version)) for version in outside.split())
    assert found.holds(None) is (until is None)


def test_a_range_does_not_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="cannot end"):
        Range("2.5", "2.4")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_every_kind_is_declared_well(kind: type[Kind]) -> None:
    assert BY_NOUN[kind.noun] is kind
    assert kind.__doc__
    for operation in (CREATE, UPDATE, SHOW):
        jsonschema.Draft202012Validator.check_schema(kind.schema(operation))
    for field in kind.fields:
        assert field.doc.endswith("."), field.name
        if field.default is not UNSET:
            assert field.value.check(field.default, field.name) == field.default
        if SHOW in field.on:
            assert field.sample is not UNSET, field.name


@pytest.mark.parametrize(("document", "field", "rule"), [
    ({"name": "a", "flavour": "b"}, "flavour", "did you mean flavor"),
    ({"name": "a" * 256, "flavor": "b"}, "name", "1 to 255 characters, and has 256"),
    ({"name": " a", "flavor": "b"}, "name", "blank"),
    ({"name": 5, "flavor": "b"}, "name", "must be a string"),
    ({"name": "a"}, "flavor", "is required"),
    ({"name": "a", "flavor": {"vcpus": 0, "ram": 64}}, "flavor.vcpus", "from 1"),
    ({"name": "a", "flavor": {"vcpus": 1, "ram": 64, "disk": -1}}, "flavor.disk", "from 0"),
    ({"name": "a", "flavor": "b", "user_data": "A" * 65536}, "user_data", "0 to 65535"),
    ({"name": "a", "flavor": "b", "user_data": "?"}, "user_data", "valid base64"),
    ({"name": "a", "flavor": "b", "metadata": {"k" * 256: ""}}, "metadata key", "1 to 255"),
    ({"name": "a", "flavor": "b", "power": "on"}, "power", "one of running"),
    ({"name": "a", "flavor": "b", "status": "ACTIVE"}, "status", "reported only"),
])
def test_a_bad_server_names_field_and_rule(document: dict[str, object], field: str, rule: str) -> None:
    with pytest.raises(InvalidField) as refused:
        Server.check(document)
    assert refused.value.details["field"] == field
    assert rule in refused.value.message


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in sorted(kind.secrets())],
                         ids=lambda one: one if isinstance(one, str) else one.noun)
def test_a_secret_that_is_refused_is_not_repeated(kind: type[Kind], name: str) -> None:
    """Messages go to answers, logs and records of operations."""
    for wrong in (123454321, ["hunter2"]):
        with pytest.raises(InvalidField) as refused:
            kind.check({"name": "a", name: wrong}, partial=True)
        assert refused.value.details["field"].startswith(name)
        told = str(refused.value.as_dict())
        assert "12345" not in told and "hunter2" not in told


def test_partial_lets_required_fields_be_missing() -> None:
    assert Server.check({"tags": ["b", "a"]}, partial=True) == {"tags": ["a", "b"]}
