# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of the network service's answers, compared with those that Neutron's reference has."""

from __future__ import annotations

import pytest

from tests.support import answers
from tests.support.control.serving import ADMIN, Asker

pytestmark = pytest.mark.slow
ROWS = answers.rows("network")
#: What the rows name, in the order in which it is made.
MADE = ("network", "subnet", "port", "router", "security_group", "security_group_rule", "address_scope", "subnetpool")


@pytest.mark.parametrize("row", ROWS, ids=[row["request"] for row in ROWS])
def test_an_answer_has_the_fields_of_neutron_s(ask: Asker, row: answers.Row) -> None:
    """For members and administrators."""
    ids: dict[str, str] = {}
    needed = [noun for noun in MADE if f"{{{noun}}}" in str(row) or row["request"] == f"GET /{noun}s"]
    bodies = {next(iter(one["body"])): one for one in ROWS if one["request"].startswith("POST")}
    for noun in MADE:
        if needed and noun in MADE[:MADE.index(needed[-1]) + 1]:
            path = bodies[noun]["request"].split()[1]
            ids[noun] = ask("POST", f"/v2.0{path}", answers.filled(bodies[noun]["body"], ids))[noun]["id"]
    method, path = answers.filled(row["request"], ids).split()
    for person in (ask.context, ADMIN) if method != "POST" else (ask.context,):
        body = answers.filled(row["body"], ids) if method != "GET" else None
        document = ask.as_(person)(method, f"/v2.0{path}", body, status=row.get("status", 200))
        assert [*answers.differences(row, document, (2, 0))] == []
