# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of ensure: cases in tests/cases/reconcile.yml, keys and names, differences, and what a dry run assumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Conflict, Immutable, InUse, InvalidField
from magnetar_core.fields import FIXED, Field
from magnetar_core.kinds.common import Resource
from magnetar_core.plan import MASK
from magnetar_core.reconcile import (
    Change,
    allow_in_use,
    check_mode,
    checked_request,
    field_differences,
    is_uuid_key,
    refuse_missing,
    warn_caller,
)
from magnetar_core.values import Integer, ListOf, MapOf, Nullable, Text

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/reconcile.yml").read_text())
ID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"


class Door(Resource):
    """A kind with one field of each sort."""

    noun, plural = "door", "doors"
    rebuilt = frozenset(("size",))
    unfilled = frozenset(("unhung",))
    found = {"colour": "key"}
    alternatives = (frozenset(("image", "volume")),)

    size = Field(Integer(1), "Fixed, and changed by a rebuild.", required=True, on=FIXED)
    colour = Field(Text(), "Fixed.", default="white", on=FIXED)
    key = Field(Nullable(Text()), "Fixed, and not shown.", default=None, on=FIXED, secret=True)
    url = Field(Nullable(Text()), "How to make one.", default=None, on="create", compared=False)
    tags = Field(ListOf(Text()), "A list.", default=[])
    metadata = Field(MapOf(Text(), Text()), "An object.", default={})
    image = Field(Nullable(Text()), "What it is made from.", default=None, on=FIXED)
    volume = Field(Nullable(Text()), "What else it may be made from.", default=None, on=FIXED)


def change(given: dict[str, Any], dry_run: bool = False, **allowed: Any) -> Change:
    return Change(Door, given, check_permissions(allowed), dry_run)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any]) -> None:
    made, known = change(case["given"], **case.get("permissions", {})), case["known"]
    want = made.wanted(known)
    if "refused" in case:
        with pytest.raises(Immutable, match=case["refused"]) as refused:
            made.on_immutable(known["name"], known, want, case.get("status"))
        assert refused.value.details["fields"] == case["fields"]
        return
    assert (made.on_immutable(known["name"], known, want, case.get("status")) if known else "") == case["policy"]
    assert want == case["want"]
    assert [case["warning"] in text for text in made.warnings] == [True] * ("warning" in case)


@pytest.mark.parametrize(("key", "want", "given"), [
    ("front", {"size": 3}, {"size": 3, "name": "front"}),
    (ID.upper(), {"name": "back"}, {"name": "back", "id": ID}),
    ("front", {"id": ID, "name": "front"}, {"id": ID, "name": "front"}),
])
def test_the_key_says_name_or_uuid(key: str, want: dict[str, Any], given: dict[str, Any]) -> None:
    assert checked_request(Door, key, want) == given
    assert is_uuid_key(key) is (key != "front")


@pytest.mark.parametrize(("key", "want", "field", "text"), [
    ("front", {"name": "back"}, "name", "to rename, ask by uuid"),
    (ID, {"id": ID.replace("8", "9")}, "id", "differs from the key"),
    ("front", {"size": 0}, "size", "must be"), ("front", {"created_at": "now"}, "created_at", "reported only"),
])
def test_key_and_fields_may_not_contradict(key: str, want: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InvalidField, match=text) as refused:
        checked_request(Door, key, want)
    assert refused.value.details["field"] == field


def test_another_uuid_is_another_one() -> None:
    change({"name": "front"}).check_id("any", "front")
    change({"id": ID}).check_id(ID, "front")
    with pytest.raises(Conflict, match="door 'front' exists with uuid other, not 8c7d") as refused:
        change({"id": ID}).check_id("other", "front")
    assert refused.value.details["uuids"] == ["other"]


@pytest.mark.parametrize(("given", "field"), [({"name": "front"}, "size"), ({"size": 3}, "name")])
def test_a_new_one_needs_what_is_required(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField, match="is required") as refused:
        change(given).check_new()
    assert refused.value.details["field"] == field
    change({"name": "front", "size": 3, "volume": None}).check_new()


@pytest.mark.parametrize(("before", "after", "found"), [
    (None, {"name": "a", "colour": "", "tags": [], "size": 3}, {"name": (None, "a"), "size": (None, 3)}),
    ({"name": "a", "metadata": {}, "size": 3}, None, {"name": ("a", None), "size": (3, None)}),
    ({"colour": "red", "url": "x", "id": ID}, {"colour": "blue", "url": "y"}, {"colour": ("red", "blue")}),
    ({"metadata": {"x": "1"}}, {"metadata": {"x": "2"}}, {"metadata.x": ("1", "2")}),
    ({"key": "a"}, {"key": "b"}, {"key": (MASK, MASK)}), ({"tags": []}, {}, {"tags": ([], None)}),
])
def test_difference(before: Any, after: Any, found: dict[str, tuple[Any, Any]]) -> None:
    assert {leaf["path"]: (leaf["old"], leaf["new"]) for leaf in field_differences(Door, before, after)} == found


@pytest.mark.parametrize(("given", "rebuild", "found"), [
    ({}, False, {}), ({"allow_reboot": True}, False, {"allow_reboot": True}),
    ({"preserve_ephemeral": True}, True, {"rebuild": {"preserve_ephemeral": True, "request": None}}),
])
def test_what_a_plan_is_told_of_the_permissions(given: dict[str, Any], rebuild: bool, found: Any) -> None:
    assert change({}, **given).allowed(rebuild) == found


def test_without_steps_there_is_no_difference() -> None:
    result = change({}).result([], [{"path": "x", "old": 1, "new": 2}], {})
    assert not result.changed
    assert result.diff == []


def test_what_a_dry_run_assumes_is_a_warning() -> None:
    warnings: list[str] = []
    error = InvalidField("size", "there is no such size")
    with check_mode(True, warnings):
        refuse_missing(error, "flavor", "small")
        refuse_missing(error, "flavor", "small")
    assert warnings == ["There is no flavor 'small' yet; the prediction assumes that it is made before this."]
    with check_mode(False, warnings):
        warn_caller("more")
        with pytest.raises(InvalidField):
            refuse_missing(error, "flavor", "small")
    assert warnings[1:] == ["more"]
    warn_caller("nobody asks")
    with pytest.raises(InvalidField):
        refuse_missing(error, "flavor", "small")


def test_users_are_assumed_to_be_gone_in_a_dry_run() -> None:
    warnings: list[str] = []
    with allow_in_use(True, warnings):
        raise InUse("Network lan is used by web1.")
    assert warnings == ["Network lan is used by web1. The prediction assumes that this is done before."]
    with pytest.raises(InUse), allow_in_use(False, warnings):
        raise InUse
