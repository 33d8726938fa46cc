# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with an answer is seen, made small, and seen again from the same seed."""

from __future__ import annotations

import pytest

from . import running
from .asking import Asking
from .checks import wrong
from .routes import Target, objects
from .running import findings
from .sending import Got, Sent

FAULT = b'{"badRequest": {"code": 400, "message": "name: must be a string"}}'


@pytest.mark.parametrize(
    ("status", "content", "says"),
    [
        (200, b"", None), (400, FAULT, None), (503, FAULT, None), (501, FAULT, None), (500, FAULT, "is 500"),
        (400, b"", "without a fault"), (404, b'{"detail": "x"}', "without a fault"),
        (400, b'{"message": ""}', "without a fault"), (504, FAULT, "is 504"),
        (400, FAULT.replace(b"must", b"Traceback (most recent call last): must"), "of the inside"),
        (400, FAULT.replace(b"must", b"SELECT id FROM servers"), "of the inside"),
    ],
)
def test_what_is_wrong_with_an_answer(status: int, content: bytes, says: str | None) -> None:
    found = wrong(Sent("a", "GET", "/a"), Got(status, {}, content, 0.0))
    assert found is None if says is None else found is not None and says in found


def test_what_is_found_is_small_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some seeds the smallest request that is found is not the very smallest."""
    monkeypatch.setattr(running, "SEED", 7)
    target = Target("health", "POST", "/a/{id}", objects("name", name={"type": "string"}))
    asking = Asking({}, {"a": ["one"]})

    def check(sent: Sent) -> str | None:
        return "is 500" if b"surprise" in sent.content else None

    first, again = (findings([target], asking, check, 200) for _time in range(2))
    assert first == again and len(first) == 1 and "POST /a/one? " in first[0]


def test_each_commit_is_asked_other_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_FUZZ_SEED", "7")
    assert running.chosen() == 7
    monkeypatch.delenv("MAGNETAR_FUZZ_SEED")
    monkeypatch.setattr(running, "_commit", lambda: "0a1b2c3d4e5f")
    assert running.chosen() == 0x0A1B2C3D
    monkeypatch.setattr(running, "_commit", lambda: "")
    assert running.chosen() == 1
