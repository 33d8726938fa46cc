# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fake keeps on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from magnetar_agent.fake.journal import MANY, Journal


def written(journal: Journal, **things: Any) -> None:
    journal.write({name: json.dumps(thing) for name, thing in things.items()}, things.__getitem__)


def test_the_last_of_each_thing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    journal = Journal(path)
    assert journal.read() == {}
    written(journal, a=1, b=[1])
    written(journal, a=2, b=[1])
    assert len(path.read_text().splitlines()) == 3  # b has not changed
    written(journal, b=[1], c={})
    assert Journal(path).read() == {"b": [1], "c": {}}


def test_a_line_that_was_cut_off_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(Journal(path), a=1)
    with path.open("a") as file:
        file.write('["a", 2')
    again = Journal(path)
    assert again.read() == {"a": 1}
    written(again, a=1, b=2)
    assert Journal(path).read() == {"a": 1, "b": 2}


def test_it_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    journal = Journal(path)
    for number in range(3 * MANY):
        written(journal, a=number)
    assert len(path.read_text().splitlines()) < MANY + 10
    assert Journal(path).read() == {"a": 3 * MANY - 1}
