# SPDX-License-Identifier: GPL-3.0-or-later
"""The rule by which two runs are compared: same status, same keys, same words of the fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from . import differ


def answer(status: int = 200, body: Any = None) -> dict[str, Any]:
    return {"status": status, "body": body, "type": "application/json"}


def fault(message: str, name: str = "badRequest", status: int = 400) -> dict[str, Any]:
    return answer(status, {name: {"code": status, "message": message}})


NOBODY = "00000000-0000-4000-8000-000000000000"
OTHER = "11111111-0000-4000-8000-000000000000"


@pytest.mark.parametrize(("theirs", "ours", "found"), [
    (answer(202), answer(202), []),
    (answer(202), answer(200), ["status 202, here 200"]),
    (answer(200, {}), answer(200), ["a body, here none"]),
    (answer(200, {"server": {"id": NOBODY}}), answer(200, {"server": {"id": OTHER}}), []),
    (answer(200, {"server": {"id": 1, "name": 1}}), answer(200, {"server": {"id": 1, "nom": 1}}),
     ["key /server/name missing here", "key /server/nom only here"]),
    (answer(200, {"server": {"metadata": {"a": "b"}}}), answer(200, {"server": {"metadata": {"c": "d"}}}), []),
    (fault(f"Instance {NOBODY} could not be found."), fault(f"Instance {OTHER} could not be found."), []),
    (fault("Instance is locked"), fault("It is locked"),
     ["fault ('badRequest', 'Instance is locked'), here ('badRequest', 'It is locked')"]),
    (fault("no", "computeFault"), fault("no"), ["fault ('computeFault', 'no'), here ('badRequest', 'no')"]),
])
def test_the_rule(theirs, ours, found):
    assert list(differ.differences(theirs, ours)) == found


def test_the_command(tmp_path, capsys):
    for name, status in (("nova", 200), ("ours", 404)):
        lines = [{"case": "a", "answers": [answer(status)]}, {"case": name, "answers": []}]
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    nova, ours = str(tmp_path / "nova"), str(tmp_path / "ours")
    assert differ.main([nova, ours]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a: status 200, here 404", "1 cases in both, 1 only there, 1 only here; 1 differences"]
    assert differ.main([nova, nova]) == 0
