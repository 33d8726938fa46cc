# SPDX-License-Identifier: GPL-3.0-or-later
"""flavors: how many queries a list is."""


TINY = {"name": "tiny", "ram": 512, "vcpus": 1, "disk": 1, "id": "1"}


def made(compute, version="2.1", **more):
    reply = compute.admin.post("/flavors", {"flavor": {**TINY, **more}}, version)
    assert reply.status == 200, reply
    return reply.json["flavor"]


def test_a_list_is_one_query_however_long(small):
    for number in range(20):
        made(small, id=str(number), name=str(number))
    with small.counted() as seen:
        assert len(small.alice.get("/flavors/detail", "2.61").json["flavors"]) == 20
    assert len(seen) == 1
