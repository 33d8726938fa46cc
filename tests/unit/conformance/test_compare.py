# SPDX-License-Identifier: GPL-3.0-or-later
"""Every sample is a right answer to itself; changed, it is not."""

from __future__ import annotations

import copy

import pytest

from tests.conformance.compare import differences, expectation
from tests.conformance.samples import FOLDER, Evidence
from tests.conformance.tolerances import USER_KEYED, may_be_extra, may_be_missing, one_of

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the conformance folder is not beside the checkout")
EVIDENCE = Evidence()
RESPONSES = [one for one in EVIDENCE.samples.values() if one.direction == "response"] if FOLDER.is_dir() else []


def compare(sample, answer):
    return differences(expectation(EVIDENCE, sample, min(sample.versions, default=sample.min)), answer)


@pytest.mark.parametrize("sample", RESPONSES, ids=lambda one: one.file)
def test_a_sample_is_a_right_answer(sample):
    assert compare(sample, EVIDENCE.body(sample.file)) == []


def objects(value, pointer=""):
    """Every object that is not the user's own, with its pointer (* for elements)."""
    if isinstance(value, dict):
        if not one_of(USER_KEYED, pointer):
            yield pointer, value
        for key, inner in value.items():
            yield from objects(inner, f"{pointer}/{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from objects(inner, f"{pointer}/*")


@pytest.mark.parametrize("sample", RESPONSES, ids=lambda one: one.file)
def test_no_key_may_go_and_none_may_come(sample):
    answer = EVIDENCE.body(sample.file)
    root = expectation(EVIDENCE, sample, min(sample.versions, default=1)).root
    for pointer, place in list(objects(answer)):
        place["magnetar:more"] = 1
        assert not place.keys() - {"magnetar:more"} or [one.what for one in compare(sample, answer)] == ["extra"]
        del place["magnetar:more"]
        for key in list(place):
            value = place.pop(key)
            always = may_be_missing(f"{pointer}/{key}") or "*" in pointer or root is None
            assert always or "missing" in [one.what for one in compare(sample, answer)], (pointer, key)
            place[key] = value


@pytest.mark.parametrize("sample", RESPONSES, ids=lambda one: one.file)
def test_no_value_may_become_another_thing(sample):
    answer = EVIDENCE.body(sample.file)
    for _pointer, place in list(objects(answer)):
        for key, value in list(place.items()):
            if value is None:
                continue
            place[key] = ["of another", {"type": 1}] if not isinstance(value, list) else "another type"
            assert "type" in [one.what for one in compare(sample, answer)], key
            place[key] = value


def test_words_classes_and_links():
    sample = EVIDENCE.samples["servers/v2.100/server-get-resp.json"]
    right = EVIDENCE.body(sample.file)
    wrong = {"status": ("SLEEPING", "word"), "created": ("2026-01-01T00:00:00.000000", "class"),
             "hostId": ("host1", "class"), "id": ("1", "class"), "OS-SRV-USG:launched_at": ("yesterday", "class")}
    for key, (value, what) in wrong.items():
        answer = copy.deepcopy(right)
        answer["server"][key] = value
        assert [(one.pointer, one.what) for one in compare(sample, answer)] == [(f"/server/{key}", what)]
    expected = expectation(EVIDENCE, sample, 100, {"self": "http://cloud:8774/v2.1/p",
                                                   "bookmark": "http://cloud:8774/p"})
    assert {one.what for one in differences(expected, right)} == {"link"}


def test_what_an_administrator_sees_besides():
    assert may_be_extra("/server/host_status", "servers.show", 16)
    assert not may_be_extra("/server/host_status", "servers.show", 15)
    assert not may_be_extra("/server/host_status", "servers.update", 74)
    assert not may_be_extra("/server/hosts", "servers.show", 16)
