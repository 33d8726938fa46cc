# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of servers' TPMs: who gets them of the key manager, where they are, and that none outlives its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.services import Context
from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_core.errors import Forbidden, NotFound
from tests.support.control.cloud import Caller, Cloud
from tests.support.control.hardware import LIVE, act, on_host
from tests.support.control.specs import flavor, image


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2, links=True) as made:
        yield made


def made(cloud: Cloud, caller: Caller, security: str = "") -> str:
    """A server with a TPM of the caller's; its uuid."""
    specs = {"hw:tpm_version": "2.0", **({"hw:tpm_secret_security": security} if security else {})}
    found = caller.boot(f"tpm-{security}", flavorRef=flavor(cloud.admin, f"tpm-{security or 'usual'}", specs))
    assert on_host(cloud, found["id"])["hardware"]["tpm_secret_security"] == security or "user"
    return str(found["id"])


def keys(cloud: Cloud) -> list[Path]:
    """What the key manager has."""
    folder = cloud.folder / "control/keys"
    return list(folder.iterdir()) if folder.exists() else []


def kept(cloud: Cloud) -> list[str]:
    """Files that have the one secret in clear text: databases, documents, records and logs are among them."""
    (key,) = keys(cloud)
    secret = key.read_text().splitlines()[0].encode()
    assert len(secret) == 64 and key.stat().st_mode & 0o777 == 0o600
    return [str(path.relative_to(cloud.folder)) for path in cloud.folder.rglob("*")
            if path.is_file() and path != key and path.name != "fake-hypervisor.jsonl" and secret in path.read_bytes()]


def removed(cloud: Cloud, caller: Caller, id: str) -> None:
    """Its secret goes with a server."""
    caller.delete(f"/v2.1/servers/{id}")
    assert caller.settled(id) is None and not keys(cloud)


def refused(caller: Caller, id: str, action: str, args: Any = None) -> None:
    """Whoever is not the server's user may not have its TPM opened."""
    reply = caller.act(id, action, args)
    assert reply.status == 403 and "only the user who made it" in reply.json["forbidden"]["message"], reply


def test_a_user_s_secret_is_given_to_nobody_else(cloud: Cloud) -> None:
    owner, other = cloud.caller("tina", "tpms"), cloud.caller("tom", "tpms")
    id = made(cloud, owner)
    assert not kept(cloud)
    act(other, id, "os-stop", None, "SHUTOFF")
    for caller in (other, cloud.admin):
        refused(caller, id, "os-start")
        refused(caller, id, "reboot", {"type": "HARD"})
        refused(caller, id, "rebuild", {"imageRef": image(owner, "again")})
    refused(cloud.admin, id, "migrate")
    act(owner, id, "os-start", None, "ACTIVE")
    act(other, id, "suspend", None, "SUSPENDED")
    refused(other, id, "resume")
    act(owner, id, "resume", None, "ACTIVE")
    for args in ({"type": "SOFT"}, {"type": "HARD"}):
        act(owner, id, "reboot", args, "ACTIVE")
    act(owner, id, "rebuild", {"imageRef": image(owner, "again")}, "ACTIVE")
    assert on_host(cloud, id)["power_state"] == "running" and not kept(cloud)
    removed(cloud, other, id)


def test_it_goes_with_the_server_to_other_hosts_and_flavors(cloud: Cloud) -> None:
    caller = cloud.caller("tina", "tpms")
    id = made(cloud, caller)
    drawn = [one.read_text() for one in keys(cloud)]
    for word in ("host", "", "none"):
        specs = {"hw:tpm_version": "2.0", **({"hw:tpm_secret_security": word} if word else {})}
        to = flavor(cloud.admin, f"to-{word or 'usual'}", {} if word == "none" else specs)
        act(caller, id, "resize", {"flavorRef": to}, "VERIFY_RESIZE")
        assert on_host(cloud, id)["power_state"] == "running"
        act(caller, id, "revertResize", None, "ACTIVE")
        assert on_host(cloud, id)["power_state"] == "running"
        act(caller, id, "resize", {"flavorRef": to}, "VERIFY_RESIZE")
        act(caller, id, "confirmResize", None, "ACTIVE")
        assert on_host(cloud, id)["power_state"] == "running"
        assert [one.read_text() for one in keys(cloud)] == drawn and not kept(cloud)
    removed(cloud, caller, id)


def test_nobody_else_gives_a_server_a_tpm_or_its_old_one_back(cloud: Cloud) -> None:
    """They are refused at once: a server that has moved could not start then."""
    owner = cloud.caller("tina", "tpms")
    usual, without = flavor(cloud.admin, "tpm-again", {"hw:tpm_version": "2.0"}), flavor(cloud.admin, "no-tpm", {})
    with_tpm = image(owner, "with-tpm", hw_tpm_version="2.0")
    id = str(owner.boot("plain", flavorRef=without)["id"])
    refused(cloud.admin, id, "resize", {"flavorRef": usual})
    refused(cloud.admin, id, "rebuild", {"imageRef": with_tpm})
    assert on_host(cloud, id)["power_state"] == "running" and not keys(cloud)
    act(owner, id, "resize", {"flavorRef": usual}, "VERIFY_RESIZE")
    act(owner, id, "confirmResize", None, "ACTIVE")
    act(owner, id, "resize", {"flavorRef": without}, "VERIFY_RESIZE")
    refused(cloud.admin, id, "revertResize")
    act(owner, id, "revertResize", None, "ACTIVE")
    removed(cloud, owner, id)


@pytest.mark.parametrize("first, then", [("deployment", "user"), ("host", "deployment")])
def test_a_flavor_without_a_tpm_in_between_gives_the_secret_to_nobody_else(cloud: Cloud, first: str, then: str) -> None:
    caller = cloud.caller("tina", "tpms")
    id = made(cloud, caller, first)
    drawn = [one.read_text() for one in keys(cloud)]
    act(caller, id, "resize", {"flavorRef": flavor(cloud.admin, "without", {})}, "VERIFY_RESIZE")
    act(caller, id, "confirmResize", None, "ACTIVE")
    again = {"hw:tpm_version": "2.0", "hw:tpm_secret_security": then}
    reply = caller.act(id, "resize", {"flavorRef": flavor(cloud.admin, f"again-{then}", again)})
    assert reply.status == 400 and "Only user and host may follow" in reply.json["badRequest"]["message"], reply
    again["hw:tpm_secret_security"] = first
    act(caller, id, "resize", {"flavorRef": flavor(cloud.admin, f"again-{first}", again)}, "VERIFY_RESIZE")
    assert on_host(cloud, id)["power_state"] == "running" and [one.read_text() for one in keys(cloud)] == drawn
    removed(cloud, caller, id)


@pytest.mark.parametrize("security", ["host", "deployment"])
def test_others_may_have_such_servers_started(cloud: Cloud, security: str) -> None:
    caller = cloud.caller("tina", "tpms")
    id = made(cloud, caller, security)
    act(cloud.admin, id, "os-stop", None, "SHUTOFF")
    act(cloud.admin, id, "os-start", None, "ACTIVE")
    act(cloud.admin, id, "migrate", None, "VERIFY_RESIZE")
    act(cloud.admin, id, "confirmResize", None, "ACTIVE")
    reply = cloud.admin.act(id, "os-migrateLive", LIVE)
    if security == "host":
        assert reply.status == 202 and (cloud.admin.settled(id) or {})["status"] == "ACTIVE"
    else:
        assert reply.status == 409 and "its secret is the deployment's" in reply.json["conflictingRequest"]["message"]
    assert on_host(cloud, id)["power_state"] == "running" and not kept(cloud)
    reply = caller.act(id, "resize", {"flavorRef": flavor(cloud.admin, f"not-{security}", {
        "hw:tpm_version": "2.0", "hw:tpm_secret_security": "user" if security == "deployment" else "deployment"})})
    assert reply.status == 400 and "Only user and host may follow" in reply.json["badRequest"]["message"]
    removed(cloud, caller, id)


def test_a_build_that_fails_leaves_no_secret(cloud: Cloud) -> None:
    caller = cloud.caller("tina", "tpms")
    reply = caller.post("/v2.1/servers", {"server": {
        "name": "big", "imageRef": image(caller, "big"), "networks": "none", "flavorRef": flavor(
            cloud.admin, "big", {"hw:tpm_version": "2.0", "trait:COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER":
                                 "forbidden"})}}, "2.60")
    assert reply.status == 202, reply
    id = reply.json["server"]["id"]
    found = caller.settled(id)
    assert found and found["status"] == "ERROR" and not keys(cloud)
    removed(cloud, caller, id)


def test_the_embedded_key_manager_knows_owners(tmp_path: Path) -> None:
    store, id = EmbeddedKeys(tmp_path, tmp_path / "keys"), "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    mine, others = Context("me", "p"), Context("you", "p", frozenset({"admin"}))
    with pytest.raises(NotFound):
        store.key(mine, id)
    drawn = store.create_key(id, owner="me")
    assert len(drawn) == 64 and store.create_key(id, owner="you") == drawn == store.key(mine, id)
    with pytest.raises(Forbidden, match="is another user's") as refusal:
        store.key(others, id)
    assert drawn not in str(refusal.value)
    copy = "9c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    assert store.create_key(copy, like=id) == drawn == store.key(others, copy)
