# SPDX-License-Identifier: GPL-3.0-or-later
"""Usage: how many statements it takes. What is answered is in tests/cases/api/usage.yml."""

START = "2026-01-01T00:00:00.000000"


def test_usage_takes_as_many_statements_for_many_servers_as_for_one(small):
    small.server(launched_at=START)
    path = "/os-simple-tenant-usage?detailed=1&start=2026-01-01T00:00:00"
    with small.counted() as one:
        assert small.admin.get(path).json["tenant_usages"][0]["total_hours"] > 0
    for project in ("red", "blue", "green"):
        small.server(project, launched_at=START)
    with small.counted() as many:
        assert len(small.admin.get(path).json["tenant_usages"]) == 3
    assert len(one) == len(many) == 4, many  # three find out that few servers are from this time


def test_an_audit_asks_each_cell_once(small):
    for name in ("kvm1", "kvm2"):
        small.host(name)
        small.server(host=name, launched_at=START)
    with small.counted() as seen:
        told = small.admin.get("/os-instance_usage_audit_log").json["instance_usage_audit_logs"]
    assert told["num_hosts_done"] == 2
    assert sum("FROM servers" in statement for _name, statement in seen) == 1, seen
