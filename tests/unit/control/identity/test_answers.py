# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of the identity service's answers, compared with those that Keystone's reference has."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_control.api import identity
from magnetar_control.services.image import quotas
from tests.support import answers

from .cloud import Client

pytestmark = pytest.mark.slow
ROWS = answers.rows("identity")
#: What the rows name, in the order in which it is made.
MADE = ("project", "domain", "user", "group", "role", "region", "service", "endpoint")


@pytest.fixture
def admin(small: Any) -> Client:
    """Return a client of an administrator."""
    return Client(identity.app.identity_application(small.identity, {"image": quotas.image_quotas({})}),
                  token=small.admin.token)


@pytest.mark.parametrize("row", ROWS, ids=[row["request"] for row in ROWS])
def test_an_answer_has_the_fields_of_keystone_s(admin: Client, row: answers.Row) -> None:
    ids: dict[str, str] = {}
    for noun in MADE:
        body = answers.filled(next(one["body"] for one in ROWS if one["request"] == f"POST /{noun}s"), ids)
        word = "id" if noun == "region" else "type" if noun == "service" else "url" if noun == "endpoint" else "name"
        body[noun][word] = "first" if noun != "endpoint" else "http://first"
        ids[noun] = admin("POST", f"/v3/{noun}s", body, 201)[noun]["id"]
    method, path = answers.filled(row["request"], ids).split()
    answer = admin(method, f"/v3{path}", answers.filled(row["body"], ids) if method in ("POST", "PATCH") else None)
    assert answer.status == row.get("status", 200), answer.body
    assert [*answers.differences(row, answer.body, (3, 14))] == []
