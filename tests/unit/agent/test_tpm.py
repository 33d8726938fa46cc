# SPDX-License-Identifier: GPL-3.0-or-later
"""TPMs of servers on the fake, which starts a guest only with the secret that its TPM had before."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.servers.tpm import CAME, COPY, SECRET
from magnetar_core.errors import Conflict, HypervisorError, InvalidField

from .conftest import Host
from .pair import Pair
from .test_hardware import image

TPM = {"tpm_version": "2.0", "tpm_model": "tpm-crb"}


def secret(agent: Any, name: str = "web1") -> str | None:
    """The secret of a server's TPM."""
    document = agent.host.documents.find("server", name)
    assert document is not None
    found: str | None = document.state.get(SECRET)
    return found


def test_a_host_without_swtpm_refuses_it(host: Host) -> None:
    host.fake.tpm_versions = ("2.0",)
    with pytest.raises(InvalidField, match=r"which lacks swtpm for a TPM 1\.2; on Debian the packages swtpm and"):
        host.server(hardware={"tpm_version": "1.2"})
    assert host.agent.host.documents.find("server", "web1") is None


def test_its_secret_is_drawn_once_and_shown_to_nobody(host: Host) -> None:
    host.server(hardware=TPM, **image(host))
    drawn = secret(host.agent)
    assert drawn and len(drawn) == 64 and drawn not in str(host.show())
    document = host.agent.host.documents.find("server", "web1")
    assert document and document.state[SECRET] not in host.fake.xml(document.id)
    host.ensure("server", "web1", {"power": "off"})
    host.ensure("server", "web1", {"power": "running"})
    host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild")
    host.ensure("server", "web1", {"power": "suspended"})
    host.ensure("server", "web1", {"power": "running"})
    assert secret(host.agent) == drawn


def test_what_is_in_it_outlives_a_flavor_without_it(host: Host) -> None:
    host.server(hardware=TPM)
    drawn = secret(host.agent)
    host.ensure("server", "web1", {"hardware": {}}, allow_reboot=True)
    assert "<tpm" not in host.fake.xml(host.show()["id"])
    host.ensure("server", "web1", {"hardware": TPM}, allow_reboot=True)
    assert secret(host.agent) == drawn and host.show()["power_state"] == "running"


def test_a_guest_that_crashed_is_started_with_it(host: Host) -> None:
    host.server(hardware=TPM, restart_on_crash=True)
    id = host.show()["id"]
    host.fake.crash(id)
    host.settled()
    assert host.fake.domains()[id].state == "running"


@pytest.mark.parametrize("power", ["running", "off"])
def test_it_goes_cold_with_its_server(pair: Pair, power: str) -> None:
    id = pair.make(hardware=TPM)
    if power == "off":
        pair.one.side().client.ensure("server", "web1", {"power": "off"})
    drawn, kept = secret(pair.one.agent), pair.root / "kept"
    assert drawn
    pair.one.fake.save_tpm(id, kept)
    before = kept.read_text()
    pair.migrate(type="cold")
    pair.check(id, pair.two, power == "running")
    pair.two.side().client.ensure("server", "web1", {"power": "running"})
    assert secret(pair.two.agent) == drawn
    document = pair.two.agent.host.documents.get("server", id)
    assert document and CAME not in document.state
    assert not (pair.two.agent.host.settings.state_dir / "servers" / id / COPY).exists()
    pair.two.fake.save_tpm(id, kept)
    assert kept.read_text() == before and before.startswith(drawn)


def test_it_does_not_go_live(pair: Pair) -> None:
    id = pair.make(hardware=TPM)
    with pytest.raises(Conflict, match="has a TPM, and what is in it does not go live. Ask for type cold"):
        pair.migrate()
    pair.check(id, pair.one)


def test_a_target_that_cannot_read_what_came_tries_again(pair: Pair) -> None:
    """Cut short between the arrival and the place of what came: the copy is still there, and is put there then."""
    id = pair.make(hardware=TPM)
    pair.two.fake.fail_next("load_tpm", HypervisorError("no room"))
    pair.migrate(type="cold")
    pair.two.side().client.ensure("server", "web1", {"power": "running"})
    pair.check(id, pair.two)
    assert secret(pair.two.agent)


def test_a_migration_that_fails_leaves_no_copy(pair: Pair) -> None:
    id = pair.make(hardware=TPM)
    pair.two.fake.fail_next("permit", HypervisorError("no"), 5)
    with pytest.raises(HypervisorError):
        pair.migrate(type="cold")
    assert pair.one.runs(id)
    assert not (pair.one.agent.host.settings.state_dir / "servers" / id / COPY).exists()
