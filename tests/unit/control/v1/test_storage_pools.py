# SPDX-License-Identifier: GPL-3.0-or-later
"""storage_pool: each pool once, with its hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control.services.volume.pools import pool_id_of, save_host_pools
from tests.support.control.cloud import Cloud
from tests.support.control.servers import ensure

CEPH = {"name": "ceph", "kind": "rbd", "identity": "rbd:one/volumes", "shared": True, "total_gb": 100, "free_gb": 60,
        "state": "up", "reason": ""}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2) as made:
        yield made


def save_pools(cloud: Cloud, host: str, *reports: dict[str, Any]) -> None:
    with cloud.parts.store.api.write() as connection:
        save_host_pools(connection, host, reports)


def test_a_pool_of_two_hosts_is_one(cloud: Cloud) -> None:
    admin = cloud.admin
    save_pools(cloud, "kvm1", CEPH)
    save_pools(cloud, "kvm2", {**CEPH, "name": "fast", "state": "down", "reason": "No answer."})
    (pool,) = admin.get("/v1/storage_pool?type=rbd").json["storage_pools"]
    assert pool == {
        "id": pool_id_of("rbd:one/volumes"), "name": "ceph", "type": "rbd", "identity": "rbd:one/volumes",
        "shared": True, "state": "up", "total_gb": 100, "free_gb": 60, "volumes": 0, "volumes_gb": 0,
        "hosts": [{"host": "kvm1", "name": "ceph", "state": "up", "reason": ""},
                  {"host": "kvm2", "name": "fast", "state": "down", "reason": "No answer."}]}
    assert admin.get("/v1/storage_pool/ceph").json == admin.get(f"/v1/storage_pool/{pool['id']}").json == pool
    save_pools(cloud, "kvm1", {**CEPH, "identity": None, "state": "down", "reason": "No quorum."})
    assert admin.get("/v1/storage_pool/ceph").json["state"] == "down"


def test_local_pools_of_one_name_are_several(cloud: Cloud) -> None:
    for number, host in enumerate(("kvm1", "kvm2")):
        save_pools(cloud, host, {**CEPH, "name": "default", "kind": "dir", "identity": f"dir:{host}:/srv",
                                 "shared": False, "free_gb": 10 + number})
    made = ensure(cloud.admin, "volume/data", {"size": 1})
    assert made.status == 200
    pools = cloud.admin.get("/v1/storage_pool?name=default&sort=free_gb").json["storage_pools"]
    assert [pool["hosts"][0]["host"] for pool in pools] == ["kvm1", "kvm2"]
    assert sorted((pool["volumes"], pool["volumes_gb"]) for pool in pools) == [(0, 0), (1, 1)]
    assert cloud.admin.get("/v1/storage_pool/default").status == 409


def test_who_and_what_is_refused(cloud: Cloud) -> None:
    assert cloud.caller("rob", "demo").get("/v1/storage_pool").status == 403
    refused = cloud.admin.put("/v1/storage_pool/new", {})
    assert refused.status == 400 and "only reported here" in str(refused.json)
    assert cloud.admin.get("/v1/storage_pool?type=tape").status == 400
