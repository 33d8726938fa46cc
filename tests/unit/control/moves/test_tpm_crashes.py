# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while a guest with a TPM is built, started or moved: another one has it started with the
same secret, which is nowhere but in the key manager, and goes with the server."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_core.errors import Unreachable
from tests.support.control.crashes import until_none
from tests.support.control.specs import flavor as flavor_of

from .clouds import check, remove
from .dying import Fate, through
from .inside import Inside, with_flavors  # noqa: F401 - the fixture cloud

pytestmark = pytest.mark.slow


def secret(cloud: Inside) -> bytes:
    """The one secret that the key manager has; it is in no file of a host or of the cloud."""
    (key,) = (cloud.folder / "control/keys").iterdir()
    found = key.read_text().splitlines()[0].encode()
    kept = [path for path in cloud.folder.rglob("*") if path.is_file() and path != key
            and path.name != "fake-hypervisor.jsonl" and found in path.read_bytes()]
    assert not kept
    return found


#: The others are deep: they differ in who may read the secret, and in whether the last step was done.
DEEP = pytest.mark.deep(shard="TPM secrets")


@pytest.mark.parametrize("security", ["user", *(pytest.param(one, marks=DEEP) for one in ("host", "deployment"))])
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=DEEP)])
def test_starts_and_moves(cloud: Inside, late: bool, security: str) -> None:
    specs = {"hw:tpm_version": "2.0", "hw:tpm_secret_security": security}
    id = cloud.admin.boot(flavorRef=flavor_of(cloud.admin, f"tpm-{security}-{late}", specs), networks="none")["id"]
    drawn = secret(cloud)

    def does(action: str, state: str, **args: object) -> object:
        def do(fate: Fate) -> None:
            found = through(cloud, id, action, fate, **args)
            assert found.vm_state == state, (action, fate.number, found.fault)
            power = check(cloud, id, waits=state == "resized")["power_state"]
            assert power == ("off" if state == "stopped" else "running"), (action, fate.number)
            assert secret(cloud) == drawn
        return do

    until_none(cloud, id, late, (
        does("os-stop", "stopped"), does("os-start", "active"), does("reboot-hard", "active", type="hard"),
        does("migrate", "resized"), does("revertResize", "active"), does("migrate", "resized"),
        does("confirmResize", "active")))
    through(cloud, id, "delete", Fate(4, late))
    assert not list((cloud.folder / "control/keys").iterdir())


@pytest.mark.parametrize("fails", [1, 99])
def test_a_build_that_fails_with_its_secret(cloud: Inside, fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try has the same secret; what is left of a server that cannot be built goes with it."""
    make, asked = EmbeddedKeys.create_key, []

    def created(*args: Any, **more: Any) -> str:
        asked.append(args)
        found = make(*args, **more)
        if len(asked) <= fails:
            raise Unreachable("The key manager does not answer.")
        return found

    monkeypatch.setattr(EmbeddedKeys, "create_key", created)
    ref = flavor_of(cloud.admin, f"built-{fails}", {"hw:tpm_version": "2.0"})
    reply = cloud.admin.post("/v2.1/servers", {"server": {
        "name": "b", "imageRef": cloud.admin.image(), "flavorRef": ref, "networks": "none"}}, "2.60")
    id = reply.json["server"]["id"]
    found = cloud.admin.settled(id)
    assert found and found["status"] == ("ACTIVE" if fails == 1 else "ERROR") and secret(cloud) and len(asked) > 1
    remove(cloud, [id])
    assert not list((cloud.folder / "control/keys").iterdir())
