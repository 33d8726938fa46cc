# SPDX-License-Identifier: GPL-3.0-or-later
"""One project takes all that it can get of a cloud, of which a host says nothing: others, and the health of the cloud,
are answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from magnetar_core.http import client
from tests.support.control.cloud import Caller, Cloud, Reply
from tests.support.control.servers import WEB as SERVER
from tests.support.control.servers import ensure
from tests.support.silence import hanging
from tests.support.waiting import eventually

OCTETS = {"Content-Type": "application/octet-stream"}
MANY = 6
WEB = {**SERVER, "flavor": "small"}  # a member may have it


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """One host, and little of everything; half of it is for one project."""
    with Cloud(hosts=1, heartbeat=0.5, host_down_after=600.0, workers=4, threads=4, operations=4, image_uploads=4,
               project_share=0.5) as made:
        made.admin.image(visibility="public")
        flavor = {"name": "small", "vcpus": 1, "ram": 64, "disk": 1}
        assert made.admin.post("/v2.1/flavors", {"flavor": flavor}).status == 200
        yield made


@contextlib.contextmanager
def uploading(caller: Caller, image: str) -> Iterator[None]:
    """Within, the content of an image comes, and does not end."""
    with contextlib.closing(HTTPConnection("127.0.0.1", caller.port, timeout=60)) as connection:
        connection.putrequest("PUT", f"/image/v2/images/{image}/file")
        for name, value in {**OCTETS, "X-Auth-Token": str(caller.token), "Content-Length": "1024"}.items():
            connection.putheader(name, value)
        connection.endheaders(b"\1" * 512)
        eventually(lambda: caller.get(f"/image/v2/images/{image}").json["status"] == "saving")
        yield


def queued(caller: Caller) -> str:
    return str(caller.post("/image/v2/images", {"name": "slow", "disk_format": "raw", "container_format": "bare"}).json[
        "id"])


def answered(caller: Caller, name: str) -> None:
    """What any caller may ask for is done."""
    made: Reply = ensure(caller, f"image/{name}", {"source": {"upload": True}}, wait=60)
    assert made.status == 200 and made.json["changed"], made
    sent = caller.call("PUT", f"/v1/image/{name}/data", b"\1" * 512, headers=OCTETS)
    assert sent.status == 200, sent
    assert caller.get(f"/v1/image/{name}/data").content == b"\1" * 512
    assert caller.get("/v2.1/servers").status == 200
    assert caller.get("/healthz").status == 200


def test_others_are_answered(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_MARGIN", 600.0)
    ann, bob, rea = cloud.caller("ann", "red"), cloud.caller("bob", "blue"), cloud.caller("rea", "red", "reader")
    other = cloud.caller("ada", "red")
    with contextlib.ExitStack() as stack:
        stack.enter_context(hanging(cloud))
        for _number in range(2):
            stack.enter_context(uploading(ann, queued(ann)))
        asked = [ensure(ann, f"server/web{number}", WEB, wait=0) for number in range(MANY)]
        assert {one.status for one in asked} == {202}, asked
        refused = ann.call("PUT", f"/v1/image/{queued(ann)}/data", b"\1" * 512, headers=OCTETS)
        assert (refused.status, refused.headers["retry-after"]) == (429, "10"), refused
        assert refused.json["error"]["code"] == "too-many-requests"
        answered(bob, "theirs")
        cancels(ann, other, rea, [one.json["operation"]["id"] for one in asked])
    for number in range(MANY):
        made = ensure(ann, f"server/web{number}", WEB, wait=60)
        assert made.status == 200, made
    answered(ann, "own")


def cancels(ann: Caller, other: Caller, rea: Caller, ids: list[str]) -> None:
    """Who asked for an operation cancels it, and other members do; a reader does not."""
    last = f"/v1/operations/{ids[-1]}"
    refused = rea.delete(last)
    assert refused.status == 403 and "needs the role member" in refused.json["error"]["message"], refused
    seen = rea.get(last).json
    assert (seen["status"], seen["cancelling"]) == ("running", False), seen["error"]
    assert ann.delete(last).json["cancelling"] and other.delete(f"/v1/operations/{ids[-2]}").json["cancelling"]
    eventually(lambda: {ann.get(f"/v1/operations/{id}").json["status"] for id in ids[-2:]} == {"cancelled"})
