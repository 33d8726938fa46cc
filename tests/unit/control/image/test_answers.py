# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of the image service's answers, compared with those that Glance's reference has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import answers

from .glance import PATCH, Glance

pytestmark = pytest.mark.slow
ROWS = answers.rows("image")


@pytest.mark.parametrize("row", ROWS, ids=[row["request"] for row in ROWS])
def test_an_answer_has_the_fields_of_glance_s(small: Glance, row: answers.Row) -> None:
    image = small.make("ann", name="first", colour="red")
    ids = {"image": image, "member": "project-bob"}
    if "{member}" in row["request"] or row["request"].startswith("GET"):
        small.ann("POST", f"/v2/images/{image}/members", {"member": "project-bob"}, 200)
    method, path = answers.filled(row["request"], ids).split()
    ask = small.bob if method == "PUT" else small.ann
    form: dict[str, Any] = {"content_type": PATCH} if method == "PATCH" else {}
    answer = ask(method, f"/v2{path}", None if method == "GET" else row["body"], row["status"], **form)
    assert [*answers.differences(row, answer.body, (2, 0))] == []
