# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud whose keys are in Barbican."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.contract.barbican import FakeBarbican
from tests.support.control.cloud import Cloud
from tests.support.control.hardware import act, on_host
from tests.support.control.specs import flavor


@pytest.fixture
def barbican() -> Iterator[FakeBarbican]:
    with FakeBarbican() as found:
        yield found


def test_keys_come_and_go_with_their_server(barbican: FakeBarbican) -> None:
    """Also where Barbican is away when the server is deleted: that waits for it."""
    with Cloud(hosts=1, barbican_url=barbican.url) as cloud:
        caller = cloud.admin
        id = caller.boot("sealed", flavorRef=flavor(caller, "sealed", {
            "hw:tpm_version": "2.0", "hw:ephemeral_encryption": "true"}))["id"]
        owners = [one["payload"].partition("\n")[2] for one in barbican.secrets.values()]
        assert sorted(owners) == ["", caller.user_id]
        assert not any((cloud.folder / "control" / name).exists() for name in ("keys", "certificates"))
        act(caller, id, "os-stop", None, "SHUTOFF")
        before = len(barbican.asked)
        act(caller, id, "os-start", None, "ACTIVE")
        assert len(barbican.asked) == before + 2  # where the secret of its TPM is, and what
        assert on_host(cloud, id)["power_state"] == "running"
        barbican.away = True
        assert caller.act(id, "reboot", {"type": "HARD"}).status == 202
        found = caller.settled(id)
        (action, *_others) = caller.get(f"/v2.1/servers/{id}/os-instance-actions", "2.100").json["instanceActions"]
        assert found and found["status"] == "ACTIVE" and (action["action"], action["message"]) == ("reboot", "Error")
        caller.delete(f"/v2.1/servers/{id}")
        tries = len(barbican.asked)
        while len(barbican.asked) == tries:
            time.sleep(0.02)
        barbican.away = False
        assert caller.settled(id) is None and not barbican.secrets
