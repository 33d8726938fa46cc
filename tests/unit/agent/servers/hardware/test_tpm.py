# SPDX-License-Identifier: GPL-3.0-or-later
"""TPMs of servers on the fake, which starts a guest only with the secret that its TPM had before."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.servers.hardware.tpm import CAME, COPY, SEALED
from magnetar_agent.volumes import keys
from magnetar_core.errors import Conflict, HypervisorError, InvalidField
from magnetar_core.operations import Operation
from tests.support.agent.encrypted_disks import _documents
from tests.support.agent.hardware import image
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import SMALL, Host

TPM = {"tpm_version": "2.0", "tpm_model": "tpm-crb"}
AWAY, GIVEN = {**TPM, "tpm_secret_security": "user"}, "0123456789abcdef" * 4


def secret(agent: Any, name: str = "web1") -> str | None:
    """The secret of a server's TPM."""
    document = agent.host.documents.find("server", name)
    assert document is not None
    return keys.open_sealed_key(agent.host, document, SEALED)


def test_a_host_without_swtpm_refuses_it(host: Host) -> None:
    host.fake.tpm_versions = ("2.0",)
    with pytest.raises(InvalidField, match=r"which lacks swtpm for a TPM 1\.2; on Debian the packages swtpm and"):
        host.server(hardware={"tpm_version": "1.2"})
    assert host.agent.host.documents.find("server", "web1") is None


def test_its_secret_is_drawn_once_and_shown_to_nobody(host: Host) -> None:
    host.server(hardware=TPM, **image(host))
    drawn = secret(host.agent)
    assert drawn and len(drawn) == 64 and drawn not in str(host.show())
    assert drawn not in host.fake.xml(host.show()["id"]) and drawn not in _documents(host.agent)
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


def test_it_goes_live_with_the_secret_of_a_host(pair: Pair) -> None:
    id = pair.make(hardware=TPM)
    drawn = secret(pair.one.agent)
    pair.migrate()
    pair.check(id, pair.two)
    assert secret(pair.two.agent) == drawn and not pair.two.fake.lent
    assert drawn and drawn not in _documents(pair.one.agent) + _documents(pair.two.agent)
    pair.two.side().client.ensure("server", "web1", {"power": "off"})
    pair.two.side().client.ensure("server", "web1", {"power": "running"})


def test_it_does_not_go_live_where_its_secret_is_away(pair: Pair) -> None:
    id = pair.make(hardware=AWAY, tpm_secret=GIVEN)
    with pytest.raises(Conflict, match="a TPM whose secret this host does not keep .* Ask for type cold"):
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


def kept(host: Host, secret: str = GIVEN) -> list[str]:
    """Files of the host that have the secret."""
    return [str(path) for path in host.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
            and path.name != "fake-hypervisor.jsonl"]


def test_a_secret_of_a_cloud_is_kept_nowhere(host: Host) -> None:
    made = host.ensure("server", "web1", {**image(host), "hardware": AWAY, "flavor": SMALL, "tpm_secret": GIVEN})
    assert made.resource and made.resource["power_state"] == "running" and GIVEN not in str(made.resource)
    assert secret(host.agent) is None and GIVEN not in _documents(host.agent) and not kept(host)
    for power in ("off", "suspended"):
        host.ensure("server", "web1", {"power": "running", "tpm_secret": GIVEN})
        host.ensure("server", "web1", {"power": power})
        with pytest.raises(Conflict, match="starts when its user has it started there"):
            host.ensure("server", "web1", {"power": "running"})
    host.ensure("server", "web1", {"power": "running", "tpm_secret": GIVEN})
    with pytest.raises(Conflict, match="starts when its user"):
        host.event("reboot", "r1", type="hard")
    assert host.show()["power_state"] == "running"
    host.event("reboot", "r1", type="hard", tpm_secret=GIVEN)
    host.event("rebuild", "r2", image=host.show()["image"]["id"], tpm_secret=GIVEN)
    assert host.show()["power_state"] == "running" and not kept(host)
    host.ensure("server", "web1", None)
    assert not host.fake.domains()


def test_a_single_host_has_no_other_place_for_it(host: Host) -> None:
    for word in ("user", "deployment"):
        with pytest.raises(InvalidField, match=f"can be {word} in a cloud only"):
            host.server(hardware={**TPM, "tpm_secret_security": word})
    host.server(hardware={**TPM, "tpm_secret_security": "host"})
    with pytest.raises(InvalidField, match="can be user in a cloud only"):
        host.ensure("server", "web1", {"hardware": AWAY}, allow_reboot=True)
    with pytest.raises(InvalidField, match="needs tpm_version"):
        host.server("web2", hardware={"tpm_secret_security": "host"})


def test_who_has_it_changes_with_the_flavor(host: Host) -> None:
    host.server(hardware={**TPM, "tpm_secret_security": "host"}, tpm_secret=GIVEN)
    assert secret(host.agent) == GIVEN and GIVEN not in _documents(host.agent)
    host.ensure("server", "web1", {"hardware": AWAY, "tpm_secret": GIVEN}, allow_reboot=True)
    assert secret(host.agent) is None and host.show()["power_state"] == "running"
    host.ensure("server", "web1", {"hardware": TPM, "tpm_secret": GIVEN}, allow_reboot=True)
    assert secret(host.agent) == GIVEN and host.show()["power_state"] == "running"


def test_a_guest_whose_secret_is_away_stays_off_when_it_crashes(host: Host) -> None:
    host.ensure("server", "web1", {"hardware": AWAY, "flavor": SMALL, "tpm_secret": GIVEN, "restart_on_crash": True})
    id = host.show()["id"]
    host.fake.crash(id)
    host.settled()
    assert host.fake.domains()[id].state != "running" and host.show()["power_state"] == "crashed"
    host.ensure("server", "web1", {"power": "running", "tpm_secret": GIVEN})
    assert host.fake.domains()[id].state == "running"


def test_a_start_that_was_cut_short_waits_for_the_secret(host: Host) -> None:
    """The agent is killed when it has written the document: it has no secret then, until the wish is repeated."""
    wish = {"hardware": AWAY, "flavor": SMALL, "tpm_secret": GIVEN, "id": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"}
    host.fake.fail_next("start", SystemExit("killed"))
    with pytest.raises(SystemExit):
        host.ensure("server", "web1", wish)
    host.restart()
    host.settled()
    assert host.show()["power_state"] != "running" and not kept(host)
    host.ensure("server", "web1", wish)
    assert host.show()["power_state"] == "running" and host.show()["fault"] is None and not kept(host)


def test_it_goes_cold_without_its_secret(pair: Pair) -> None:
    id = pair.make(hardware=AWAY, tpm_secret=GIVEN)
    pair.one.side().client.ensure("server", "web1", {"power": "off"})
    pair.migrate(type="cold")
    with pytest.raises(Conflict, match="starts when its user"):
        pair.two.side().client.ensure("server", "web1", {"power": "running"})
    pair.two.side().client.ensure("server", "web1", {"power": "running", "tpm_secret": GIVEN})
    pair.check(id, pair.two)
    for one in (pair.one, pair.two):
        assert GIVEN not in _documents(one.agent)


def test_an_operation_that_has_ended_has_no_secret() -> None:
    operation = Operation("ensure")
    operation.run(lambda this: this.given.update(tpm_secret=GIVEN))
    assert operation.status == "succeeded" and not operation.given and GIVEN not in str(operation.as_dict())
