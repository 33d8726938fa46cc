# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume takes the place of another one in a server that runs, whichever hosts they lie on."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest
from sqlalchemy import update

from magnetar_control.services.volume.tables import volumes
from magnetar_core.errors import Cancelled
from magnetar_core.flows import attach
from magnetar_core.flows.migrate import Side
from tests.support.waiting import eventually

from .asking import Owner


def given(owner: Owner, size: int = 1) -> tuple[str, str]:
    """A server, and its volume."""
    server = owner.server()["id"]
    old = owner.volume(size, name="old", host=owner.host_of(server))
    assert owner.attach(server, old).status == 200
    eventually(lambda: owner.state(old) == "in-use")
    return server, old


def last(owner: Owner, server: str) -> dict[str, Any]:
    """The last action of a server, when it has ended."""
    path = f"/v2.1/servers/{server}/os-instance-actions"
    id = owner.call.get(path).json["instanceActions"][0]["request_id"]

    def ended() -> Any:
        found = owner.call.get(f"{path}/{id}", "2.84").json["instanceAction"]
        return found if all(one["finish_time"] for one in found["events"]) and found["events"] else None
    return dict(eventually(ended))


def nothing_swaps(owner: Owner) -> None:
    """No host has an export or a copy that nobody needs."""
    for host in owner.cloud.hosts:
        assert [one for one in owner.on_host("volume_attachment", host) if one["replaces"]] == []


@pytest.mark.parametrize("power", ["running", "paused"])
@pytest.mark.parametrize(("from_", "to"), [("near", "near"), ("near", "far"), ("far", "near"), ("far", "far")])
def test_another_volume_takes_its_place(owner: Owner, from_: str, to: str, power: str) -> None:
    """STOR-003: the attachment stays what it is, but for the volume."""
    server = owner.server()["id"]
    host = owner.host_of(server)
    hosts = {"near": host, "far": owner.other(host)}
    old, new = owner.volume(host=hosts[from_]), owner.volume(host=hosts[to], size=1 if to == "far" else 2)
    owner.attach(server, old, tag="db", delete_on_termination=True)
    eventually(lambda: owner.state(old) == "in-use")
    if power == "paused":
        owner.call.act(server, "pause")
        assert owner.call.settled(server)["status"] == "PAUSED"
    [before] = owner.attached(server)
    assert owner.swap(server, old, new).status == 202
    eventually(lambda: owner.state(old) == "available" and owner.state(new) == "in-use")
    [after] = owner.attached(server)
    moved = {"volumeId", "attachment_id"}
    assert {name: after[name] for name in after if name not in moved} == {
        name: before[name] for name in before if name not in moved}
    assert (after["volumeId"], after["device"], after["tag"]) == (new, "/dev/vdb", "db")
    seen = owner.seen(new)
    assert seen and seen["attachments"][0]["attachment_id"] == after["attachment_id"]
    [plugged] = owner.on_host("volume_attachment", host)
    assert (plugged["volume"], plugged["device"], plugged["tag"], plugged["serial"]) == (new, "vdb", "db", old[:20])
    exports = [one["volume"] for name in owner.cloud.hosts for one in owner.on_host("volume_export", name)]
    assert exports == ([new] if to == "far" else [])
    done = last(owner, server)
    assert (done["action"], done["events"][0]["event"], done["events"][0]["result"]) == (
        "swap_volume", "compute_swap_volume", "Success")
    nothing_swaps(owner)
    owner.call.delete(f"/v2.1/servers/{server}")
    eventually(lambda: owner.state(new) is None)
    assert owner.state(old) == "available"


def test_refused(owner: Owner) -> None:
    """VOL-04 too; nothing is changed."""
    server, old = given(owner, 2)
    small, several, used = owner.volume(), owner.volume(size=2, multiattach=True), owner.volume()
    other = owner.server(name="other")["id"]
    owner.attach(other, used)
    eventually(lambda: owner.state(used) == "in-use")
    for new, word in ((small, "same size or larger"), (several, "multi-attach"), (used, "must be detached"),
                      (str(uuid.uuid4()), "could not be found")):
        reply = owner.swap(server, old, new)
        assert reply.status == 400 and word in reply.json["badRequest"]["message"], reply
    assert owner.swap(server, old, old, "2.84").status == 400
    with owner.cloud.parts.api_database.write() as connection:
        connection.execute(update(volumes).where(volumes.c.id == small).values(encryption_key_id=small))
    reply = owner.swap(server, old, small)
    assert reply.status == 400 and "encrypted" in reply.json["badRequest"]["message"]
    assert owner.swap(server, small, old).status == 404
    big = owner.volume(size=2)
    owner.call.act(server, "os-stop")
    assert owner.call.settled(server)["status"] == "SHUTOFF"
    reply = owner.swap(server, old, big)
    assert reply.status == 409 and "vm_state stopped" in reply.json["conflictingRequest"]["message"]
    assert [owner.state(one) for one in (old, small, several, used, big)] == [
        "in-use", "available", "available", "in-use", "available"]
    [one] = owner.attached(server)
    assert one["volumeId"] == old
    nothing_swaps(owner)


def test_what_fails_leaves_the_old_volume(owner: Owner) -> None:
    """The action says why; the new volume is free, and the swap can be asked for again."""
    server, old = given(owner)
    new = owner.volume(host=owner.host_of(server), size=2)
    with owner.lost(old):
        assert owner.swap(server, old, new).status == 202
        assert "no file" in last(owner, server)["events"][0]["details"]
    eventually(lambda: owner.state(new) == "available")
    assert owner.state(old) == "in-use"
    [one] = owner.attached(server)
    assert one["volumeId"] == old
    assert owner.call.server(server)["status"] == "ACTIVE"
    nothing_swaps(owner)
    assert owner.swap(server, old, new).status == 202
    eventually(lambda: owner.state(old) == "available" and owner.state(new) == "in-use")


def test_a_server_that_is_deleted_meanwhile(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both volumes are free. What else is asked of the volumes meanwhile is refused."""
    server, old = given(owner)
    new, third = owner.volume(host=owner.host_of(server)), owner.volume()
    asked = threading.Event()

    def lasts(here: Side, *_args: Any, progress: Any, timeout: float) -> None:
        ended: list[str] = []
        monkeypatch.setattr(here.client, "cancel", ended.append)
        while not ended:
            asked.set()
            progress({"id": "copy"})
            time.sleep(0.02)
        raise Cancelled

    monkeypatch.setattr(attach, "attach_remote_volume", lasts)
    assert owner.swap(server, old, new).status == 202
    assert asked.wait(60)
    [one] = owner.attached(server)
    assert one["volumeId"] == old and owner.state(new) == "reserved"
    for reply in (owner.detach(server, old), owner.swap(server, old, third)):
        assert reply.status == 400 and "being swapped" in reply.json["badRequest"]["message"]
    assert owner.attach(server, new).status == 400
    assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
    eventually(lambda: owner.state(old) == owner.state(new) == "available")
    nothing_swaps(owner)
