# SPDX-License-Identifier: GPL-3.0-or-later
"""Projects by name wherever a module's option takes one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control.cloud import Cloud


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=0) as made:
        yield made


def test_administrators_name_all_projects(cloud: Cloud) -> None:
    admin, demo = cloud.admin, cloud.caller("ann", "demo").project_id
    told = admin.get("/v1/quota?name=demo").json["quotas"][0]
    assert told["name"] == demo == admin.get(f"/v1/quota?name={demo}").json["quotas"][0]["name"]
    made = admin.put("/v1/quota/demo?wait=20", {"cores": 7})
    assert made.json["changed"] and admin.get(f"/v2.1/os-quota-sets/{demo}").json["quota_set"]["cores"] == 7
    assert not admin.put(f"/v1/quota/{demo}?wait=20", {"cores": 7}).json["changed"]
    want = {"is_public": False, "projects": ["demo"], "extra_specs": {}}
    made = admin.put("/v1/volume_type/theirs?wait=20", want)
    assert made.json["resource"]["projects"] == [demo] and made.json["changed"]
    for again in (want, {**want, "projects": [demo]}):
        assert not admin.put("/v1/volume_type/theirs?wait=20", again).json["changed"]
    refused = admin.put("/v1/volume_type/theirs?wait=20", {**want, "projects": ["dmeo"]})
    assert refused.status == 400 and "projects[0]: there is no project of this id or name" in str(refused.json)
    refused = admin.get("/v1/quota?name=dmeo")
    assert refused.status == 400 and "name: there is no project" in str(refused.json)


def test_one_name_in_two_domains(cloud: Cloud) -> None:
    admin, names = cloud.admin, ("one", "two")
    domains = [admin.post("/identity/v3/domains", {"domain": {"name": name}}).json["domain"]["id"] for name in names]
    ids = [admin.post("/identity/v3/projects", {"project": {"name": "twin", "domain_id": one}}).json["project"]["id"]
           for one in domains]
    refused = admin.get("/v1/quota?name=twin")
    assert refused.status == 400 and all(id in str(refused.json) for id in ids)
    here = admin.post("/identity/v3/projects", {"project": {"name": "twin"}}).json["project"]["id"]
    assert admin.get("/v1/quota?name=twin").json["quotas"][0]["name"] == here


def test_others_name_their_own(cloud: Cloud) -> None:
    """The name of another project is not told by what is answered to it."""
    ann = cloud.caller("ann", "demo")
    assert ann.get("/v1/quota?name=demo").json["quotas"][0]["name"] == ann.project_id
    refused = [ann.get(f"/v1/quota?name={name}") for name in ("admin", "nothing")]
    for one in refused:
        assert one.status == 403, one
