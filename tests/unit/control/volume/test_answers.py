# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of the volume service's answers, compared with those that Cinder's clients and tempest accept."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.api.volume import none
from magnetar_control.api.volume.app import MOST
from tests.support import answers
from tests.support.control.serving import ADMIN, Asker

from .conftest import work

pytestmark = pytest.mark.slow
ROWS = answers.rows("volume")
#: The oldest microversion, those at and before which fields came, and the newest.
MINORS = (0, 6, 7, 12, 13, 14, 17, 18, 21, 27, 36, 41, 42, 43, 44, 48, 49, 55, 56, 57, 61, 62, 63, 64, 65, MOST[1])
SERVERS = ("0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f11", "0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f12")
#: Lists that administrators ask of all projects.
LISTS = ("volumes", "snapshots", "attachments", "volume-transfers", "backups")
#: What always refuses, and why: there is no such thing here.
REFUSED = frozenset((one.method, f"/v3/{one.path}") for one in none.absent_volume_routes())


def made(ask: Asker, service: Any) -> dict[str, str]:
    """Return the ids of what the rows name."""
    admin, found = ask.as_(ADMIN), dict[str, str]()
    folder = Path(service.reach.hosts()[0]["endpoint"].removeprefix("unix:")).parent / "state/volumes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "old.raw").write_bytes(bytes(512))
    for name in ("volume", "held", "offered"):
        found[name] = ask("POST", "/v3/volumes", {"volume": {"size": 1, "name": name}})["volume"]["id"]
    work(service)
    body = {"snapshot": {"volume_id": found["volume"], "name": "taken"}}
    found["snapshot"] = ask("POST", "/v3/snapshots", body)["snapshot"]["id"]
    work(service)
    body = {"attachment": {"volume_uuid": found["held"], "instance_uuid": SERVERS[0]}}
    found["attachment"] = ask("POST", "/v3/attachments", body)["attachment"]["id"]
    body = {"transfer": {"volume_id": found["offered"]}}
    transfer = ask("POST", "/v3/volume-transfers", body)["transfer"]
    found |= {"transfer": transfer["id"], "auth_key": transfer["auth_key"]}
    found["backup"] = ask("POST", "/v3/backups", {"backup": {"volume_id": found["volume"]}})["backup"]["id"]
    work(service)
    exported = admin("GET", f"/v3/backups/{found['backup']}/export_record")["backup-record"]["backup_url"]
    record = {**json.loads(base64.b64decode(exported)), "id": str(uuid.uuid4())}
    found["record"] = base64.b64encode(json.dumps(record).encode()).decode()
    for name, public in (("type", True), ("private", False), ("encrypted", True)):
        body = {"volume_type": {"name": name, "os-volume-type-access:is_public": public}}
        found[name] = admin("POST", "/v3/types", body)["volume_type"]["id"]
    body = {"encryption": {"provider": "luks"}}
    encryption = admin("POST", f"/v3/types/{found['encrypted']}/encryption", body)["encryption"]
    found["encryption"] = encryption["encryption_id"]
    admin("POST", f"/v3/types/{found['private']}/action", {"addProjectAccess": {"project": "blue"}}, status=202)
    return found


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['request']} {row['at']}" for row in ROWS])
def test_an_answer_has_the_fields_of_cinder_s(ask: Asker, service: Any, row: answers.Row) -> None:
    """At each microversion, and for members and administrators."""
    ids = made(ask, service)
    method, path = answers.filled(row["request"], ids).split()
    compared, wrong, people = 0, [], (ADMIN,) if row.get("as") == "admin" else (ask.context, ADMIN)
    for person in people if method == "GET" else people[:1]:
        for minor in MINORS if method == "GET" else (0, 27, 44, MOST[1]):
            if not answers.exists(row, (3, minor)):
                continue
            once = Asker(ask.application, person, {"openstack-api-version": f"volume 3.{minor}"})
            query = "?all_tenants=1" if method == "GET" and "." in row["at"] and path.split("/")[1] in LISTS else ""
            status, document = once.ask(method, f"/v3{path}{query}", answers.filled(row.get("body"), ids))
            if status == 409 or (minor and status in ((400,) if method == "GET" else (400, 404))):
                continue  # done before
            compared += 1
            wrong += [] if status == row.get("status", 200) else [f"3.{minor}: {status} {document}"]
            wrong += [f"3.{minor}: {text}" for text in answers.differences(row, document, (3, minor))]
    assert not wrong and compared


def test_each_request_that_makes_or_changes_has_its_row(ask: Asker) -> None:
    router = ask.application.router
    known = set()
    for row in ROWS:
        method, path = row["request"].partition("?")[0].split()
        known.add((method, router.find(f"/v3{path}")[method][0][0].path))
    routes = {(one.method, one.path) for one in router.routes if one.method in ("POST", "PUT")
              and "{project_id}" not in one.path and (one.method, one.path) not in REFUSED}
    assert sorted(routes - known) == [("PUT", "/v3/os-services/{action}")]  # which always refuses
