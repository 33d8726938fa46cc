# SPDX-License-Identifier: GPL-3.0-or-later
"""versions, below a version."""


def test_the_documents_of_both_versions(small):
    for id, status in (("v2.0", "DEPRECATED"), ("v2.1", "CURRENT")):
        found = small.rita.get(f"/versions/{id}").json["version"]
        assert (found["id"], found["status"]) == (id, status)
    assert small.rita.get("/versions/v3").status == 404
