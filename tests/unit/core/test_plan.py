# SPDX-License-Identifier: GPL-3.0-or-later
"""Differences, batches and errors."""

from __future__ import annotations

import pytest

from magnetar_core import ensure
from magnetar_core.errors import ERRORS, InvalidField, MagnetarError, error_from_dict
from magnetar_core.plan import MASK, Result, Step, diff_documents


@pytest.mark.parametrize(("before", "after", "found"), [
    ({}, {}, []),
    ({"a": 1}, {"a": 1}, []),
    ({"a": 1}, {"a": 2}, [{"path": "a", "old": 1, "new": 2}]),
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, [{"path": "a.c", "old": 2, "new": None}]),
    ({"l": [1]}, {"l": [1, 2]}, [{"path": "l", "old": [1], "new": [1, 2]}]),
    ({}, {"a": "x"}, [{"path": "a", "old": None, "new": "x"}]),
])
def test_diff(before: dict[str, object], after: dict[str, object], found: list[object]) -> None:
    assert diff_documents(before, after) == found


def test_secrets_are_masked() -> None:
    masked = {"path": "user_data", "old": MASK, "new": MASK}
    assert diff_documents({"user_data": "a"}, {"user_data": "b"}, {"user_data"}) == [masked]


def test_result_is_changed_by_its_steps() -> None:
    assert not Result([], [], {}).changed
    assert Result([Step("start", "start")], [], {}).as_dict()["steps"] == [{"verb": "start", "text": "start"}]


def test_batch() -> None:
    items = ensure.check_batch([{"key": "a", "want": {"x": 1}}, {"key": "b", "want": None, "on_immutable": "recreate"}])
    rest = {"merge": [], "allow_reboot": False, "preserve_ephemeral": False}
    assert items == [("a", {"x": 1}, {"on_immutable": "fail", **rest}),
                     ("b", None, {"on_immutable": "recreate", **rest})]


@pytest.mark.parametrize(("body", "field"), [
    ({}, "body"), ([{"want": {}}], "[0].key"), ([{"key": "a"}], "[0].want"),
    ([{"key": "a", "want": {}}, {"key": "a", "want": {}, "merge": ["name"]}], "[1].merge[0]"),
])
def test_a_bad_batch_names_the_item(body: object, field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        ensure.check_batch(body)
    assert refused.value.details["field"] == field


@pytest.mark.parametrize("cls", list(ERRORS.values()), ids=lambda cls: cls.code)
def test_errors_travel(cls: type[MagnetarError]) -> None:
    sent = cls.__new__(cls)
    MagnetarError.__init__(sent, None, field="x")
    back = error_from_dict(sent.as_dict())
    assert back.__class__ is cls
    assert (back.message, back.details) == (sent.message, {"field": "x"})
    assert sent.message
