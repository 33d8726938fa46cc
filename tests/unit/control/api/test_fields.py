# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of fields: bodies and answers at each version, overlap, and that the table of gates is in order."""

from types import SimpleNamespace

import pytest

from magnetar_control.api.nova.fields import ApiField, Fields, View, below
from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.versions import NEWEST
from magnetar_core.errors import InvalidField
from magnetar_core.values import Const, Integer, OneOf, Text
from magnetar_core.versions import Version

#: A shape that changed, as that of Nova's flavor did at 2.75.
SWAPPED = Fields(
    ApiField("swap", OneOf(Integer(), Const("")), name="swap_text", takes="create", shows="show", until=74),
    ApiField("swap", Integer(), takes="create", shows="show", since=75),
    ApiField("host", shows="show", rule="see-host"),
    ApiField("double", shows="show", show=lambda view, row: (view.version, 2 * row.swap)))
ROW = SimpleNamespace(swap=1, swap_text="one", host="kvm1")


def shown(version, *rules):
    policy = SimpleNamespace(allows=lambda rule, _context: rule in rules)
    call = SimpleNamespace(version=version, cloud=SimpleNamespace(policy=policy), context=None, base="", request=(
        SimpleNamespace(root="", extra={})))
    return View(call, SWAPPED).document(ROW)


def test_two_shapes_of_one_wire_name():
    body = SWAPPED.body("create")
    assert body.check({"swap": ""}, "", Version("2.74")) == {"swap": ""}
    assert body.check({"swap": 0}, "", Version("2.75")) == {"swap": 0}
    with pytest.raises(InvalidField):
        body.check({"swap": ""}, "", Version("2.75"))
    assert body.schema(Version("2.75"))["properties"] == {"swap": Integer().schema()}


def test_an_answer_shows_what_its_version_has_and_its_caller_may_see():
    assert shown(74) == {"swap": "one", "double": (74, 2)}
    assert shown(75, "see-host") == {"swap": 1, "host": "kvm1", "double": (75, 2)}


def test_overlap_does_not_import():
    with pytest.raises(TypeError, match="overlap"):
        Fields(ApiField("swap", takes="create", until=75), ApiField("swap", takes="create update", since=75))
    Fields(ApiField("swap", takes="create"), ApiField("swap", shows="show"))


def test_a_range_does_not_end_before_it_begins():
    with pytest.raises(ValueError, match="cannot end"):
        ApiField("swap", since=5, until=4)


def test_errors_name_the_field_as_it_stands_in_the_body():
    with pytest.raises(InvalidField) as refused, below("keypair"):
        Text(1, 2).check("abc", "name")
    assert refused.value.details["field"] == "keypair.name"
    assert refused.value.message.startswith("keypair.name: ")


def test_gates_stand_in_the_order_of_their_versions():
    versions = [gate.version for gate in Gate]
    assert versions == sorted(versions) and versions[-1] <= NEWEST
    assert all(gate.change.endswith(".") for gate in Gate)
