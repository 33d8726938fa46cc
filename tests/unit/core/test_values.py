# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types: what they take, in which normal form, and that a refusal names field and rule."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from magnetar_core import values as v
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Field, Record

#: One of several objects that differ by their names.
SOURCE = v.OneOf(Record(path=Field(v.Text(), "P.", required=True)),
                 Record(url=Field(v.Text(1, 9, "http", "must be http"), "U.", required=True)),
                 Record(upload=Field(v.Boolean(), "U.", required=True)))
GOOD = [
    (v.Text(1, 3), "abc", "abc"),
    (v.Uuid(), "8C7D3C0E5D0F4A2B9D0E0C6C8A1F2B3D", "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"),
    (v.Mac(), "52:54:00:AB:CD:EF", "52:54:00:ab:cd:ef"),
    (v.Base64(100), "aGk=\n", "aGk="),
    (v.Integer(1, 5), 5, 5),
    (v.Boolean(), True, True),
    (v.Choices("a", "b"), "b", "b"),
    (v.Nullable(v.Integer()), None, None),
    (v.ListOf(v.Text(), 3), ["b", "a"], ["b", "a"]),
    (v.ListOf(v.Text(), 3, unique=True), ["b", "a", "b"], ["a", "b"]),
    (v.MapOf(v.Text(1, 3), v.Text()), {"a": "b"}, {"a": "b"}),
    (v.OneOf(v.Integer(), v.Const("")), "", ""),
    (Record(a=Field(v.Integer(), "A.", required=True)), {"a": 1}, {"a": 1}),
]
BAD = [
    (v.Text(1, 3), "abcd", "f", "1 to 3 characters, and has 4"),
    (v.Text(), 7, "f", "must be a string"),
    (v.Text(), "a\x00", "f", "NUL"),
    (v.Text(1, 9, "[a-z]+", "must be lower case"), "A", "f", "must be lower case"),
    (v.Uuid(), "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3x", "f", "must be a UUID"),
    (v.Mac(), "00:00:00:00:00:00", "f", "unicast"),
    (v.Mac(), "53:54:00:00:00:00", "f", "unicast"),
    (v.Mac(), 41135085296, "f", "in quotes"),
    (v.Base64(100), "no base64!", "f", "valid base64"),
    (v.Base64(4), "aGVsbG8=", "f", "0 to 4"),
    (v.Integer(1, 5), 0, "f", "from 1 to 5"),
    (v.Integer(1, 5), True, "f", "whole number"),
    (v.Integer(1, 5), 1.0, "f", "whole number"),
    (v.Boolean(), "yes", "f", "true or false"),
    (v.Choices("a", "b"), "c", "f", "one of a, b"),
    (v.Choices("a", "b"), ["a"], "f", "one of a, b"),
    (v.ListOf(v.Integer(), 2), [1, "x"], "f[1]", "whole number"),
    (v.ListOf(v.Integer(), 2), [1, 2, 3], "f", "at most 2 items"),
    (v.ListOf(v.Integer()), "1,2", "f", "must be a list"),
    (v.MapOf(v.Text(1, 3), v.Text()), {"abcd": ""}, "f key", "1 to 3"),
    (v.MapOf(v.Text(1, 3), v.Text()), {"a": 1}, "f.a", "must be a string"),
    (v.MapOf(v.Text(1, 3), v.Text(), max=1), {"a": "", "b": ""}, "f", "at most 1 keys"),
    (v.OneOf(v.Text(), Record(a=Field(v.Integer(), "A."))), {"a": "x"}, "f.a", "whole number"),
    (v.OneOf(v.Text(1), Record(a=Field(v.Integer(), "A."))), "", "f", "has 0."),
    (v.OneOf(v.Text(), v.Integer()), None, "f", "must be a string or a whole number."),
    (v.OneOf(v.Const(""), v.Boolean()), "x", "f", "must be '' or true or false (got 'x')"),
    (v.OneOf(v.Const(""), v.Uuid()), "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3x", "f", "must be a UUID"),
    (v.OneOf(v.Choices("auto"), v.ListOf(v.Integer())), "x", "f", "must be one of auto or a list (got 'x')"),
    (v.OneOf(v.Choices("auto"), v.ListOf(v.Integer())), ["x"], "f[0]", "whole number"),
    (SOURCE, {"url": "ftp"}, "f.url", "must be http"),
    (SOURCE, {"upload": "x"}, "f.upload", "true or false"),
    (SOURCE, {"url": "ftp", "checksum": ""}, "f.checksum", "known are url"),
    (SOURCE, "http", "f", "must be an object"),
    (v.Const(1), True, "f", "must be 1"),
    (Record(a=Field(v.Integer(), "A.", required=True)), {}, "f.a", "is required"),
    (Record(alpha=Field(v.Integer(), "A.")), {"alpa": 1}, "f.alpa", "did you mean alpha"),
]


@pytest.mark.parametrize(("value", "given", "normal"), GOOD, ids=lambda x: repr(x)[:30])
def test_taken(value: v.Value, given: Any, normal: Any) -> None:
    assert value.check(given, "f") == normal
    jsonschema.Draft202012Validator.check_schema(value.schema())
    jsonschema.validate(normal, value.schema())


@pytest.mark.parametrize(("value", "given", "field", "rule"), BAD, ids=lambda x: repr(x)[:30])
def test_refused(value: v.Value, given: Any, field: str, rule: str) -> None:
    with pytest.raises(InvalidField) as refused:
        value.check(given, "f")
    assert refused.value.details["field"] == field
    assert rule in refused.value.message
    assert refused.value.status == 400


def test_a_choice_has_versions() -> None:
    from magnetar_core.versions import Version

    policy = v.Choices("affinity", v.Choice("soft-affinity", since="2.15"))
    assert policy.words(Version("2.14")) == ["affinity"]
    assert policy.words(Version("2.15")) == ["affinity", "soft-affinity"]
    with pytest.raises(InvalidField):
        policy.check("soft-affinity", "policy", Version("2.14"))
