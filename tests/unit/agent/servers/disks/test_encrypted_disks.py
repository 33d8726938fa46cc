# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose own disks are encrypted: their key, what has it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.servers.disks import encryption
from magnetar_agent.volumes import keys
from magnetar_core.errors import Conflict, HypervisorError, ImageRefused, InvalidField
from magnetar_core.image_format import SECRET_UUID, qcow2_header
from tests.support.agent.encrypted_disks import _documents
from tests.support.agent.hardware import image
from tests.support.agent.pair import Pair
from tests.support.waiting import eventually
from tests.unit.agent.conftest import Host

KEY = "0123456789abcdef" * 4
HIDDEN = {"ephemeral_encryption": True}
DISKS = {"vcpus": 1, "ram": 512, "disk": 2, "ephemeral": 1, "swap": 64}


def _secret(agent: Any, name: str = "web1") -> str:
    """The key of a server's disks."""
    document = agent.host.documents.find("server", name)
    found = encryption.open_disk_key(agent.host, document)
    assert found is not None
    return found.secret


def _all_encrypted(host: Host) -> bool:
    found = host.fake.domains()[host.show()["id"]].disks
    written = [one for one in found if one.format == "qcow2"]
    return all(one.key and host.fake.disk(one.path, "qcow2").encrypted for one in written)  # type: ignore[union-attr]


def test_a_key_stands_in_no_document(host: Host) -> None:
    host.ensure("server", "web1", {**image(host), "hardware": HIDDEN, "flavor": DISKS, "disk_key": KEY})
    assert _secret(host.agent) == KEY and _all_encrypted(host)
    shown = host.show()
    assert shown["hardware"] == HIDDEN and "disk_key" not in shown and KEY not in str(shown)
    assert KEY not in _documents(host.agent) and KEY not in host.fake.xml(shown["id"])
    assert not host.ensure("server", "web1", {"disk_key": KEY}).steps
    host.restart()
    for power in ("off", "running", "suspended", "running"):
        host.ensure("server", "web1", {"power": power})
    host.event("reboot", "r", type="hard")
    assert host.show()["power_state"] == "running" and _secret(host.agent) == KEY


def test_a_host_draws_the_key_by_itself(host: Host) -> None:
    host.server(hardware=HIDDEN)
    drawn = _secret(host.agent)
    assert len(drawn) == 64 and drawn not in _documents(host.agent)
    host.server("web2", hardware=HIDDEN)
    assert _secret(host.agent, "web2") != drawn


def test_disks_grow_and_come_later(host: Host) -> None:
    host.ensure("server", "web1", {"hardware": HIDDEN, "flavor": {**DISKS, "swap": 0}})
    host.ensure("server", "web1", {"flavor": {**DISKS, "disk": 3, "ephemeral": 2}}, allow_reboot=True)
    assert _all_encrypted(host) and len(host.fake.domains()[host.show()["id"]].disks) == 4


def test_a_rebuild_draws_another_key(host: Host) -> None:
    host.ensure("server", "web1", {**image(host), "hardware": HIDDEN, "flavor": DISKS})
    drawn = _secret(host.agent)
    host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild")
    assert _secret(host.agent) != drawn and _all_encrypted(host)
    again = host.show()["image"]["id"]
    host.event("rebuild", "r1", image=again, disk_key=KEY)
    assert _secret(host.agent) == KEY
    host.event("rebuild", "r2", image=again, preserve_ephemeral=True, disk_key="f" * 64)
    assert _secret(host.agent) == KEY and _all_encrypted(host)


def test_a_rescue_is_encrypted_too(host: Host) -> None:
    host.server(hardware=HIDDEN, **image(host))
    host.ensure("server", "web1", {"rescue": {}})
    assert _all_encrypted(host) and len(host.fake.domains()[host.show()["id"]].disks) > 2
    host.ensure("server", "web1", {"rescue": None})
    assert _all_encrypted(host)


def test_a_guest_that_crashed_is_started_with_it(host: Host) -> None:
    host.server(hardware=HIDDEN, restart_on_crash=True)
    id = host.show()["id"]
    host.fake.crash(id)
    host.settled()
    assert host.fake.domains()[id].state == "running"


def test_what_cannot_be_is_refused(host: Host) -> None:
    with pytest.raises(InvalidField, match="root_format.*must be qcow2"):
        host.server(hardware=HIDDEN, root_format="raw")
    with pytest.raises(InvalidField, match="disk_key.*is for servers with ephemeral_encryption"):
        host.server(disk_key=KEY)
    host.fake.disk_encryption = ()
    with pytest.raises(InvalidField, match="lacks LUKS in QEMU"):
        host.server(hardware=HIDDEN)
    assert host.agent.host.documents.find("server", "web1") is None
    host.fake.disk_encryption = ("luks",)
    host.server(hardware=HIDDEN, **image(host))
    for more in ({}, {"on_immutable": "rebuild"}):
        with pytest.raises(InvalidField, match="is decided when a server is made"):
            host.ensure("server", "web1", {"hardware": {}}, allow_reboot=True, **more)
    with pytest.raises(Conflict, match="would hold their content in clear text"):
        host.event("create_image", "r", name="leak")
    assert host.agent.host.documents.find("image", "leak") is None
    assert host.show()["power_state"] == "running"


def test_an_image_of_it_is_encrypted_with_its_key(pair: Pair) -> None:
    """A cloud that keeps the key has the root disk in an image, and makes the server of it anew on another host."""
    id = pair.make(hardware=HIDDEN, disk_key=KEY)
    one, two = pair.one.side().client, pair.two.side().client
    with pytest.raises(Conflict, match="is made of one that is off"):
        one.event("server", "web1", "create_image", {"name": "away", "secret_uuid": id})
    one.ensure("server", "web1", {"power": "off"})
    with pytest.raises(Conflict, match="would hold their content in clear text"):
        one.event("server", "web1", "create_image", {"name": "away"})
    made = one.event("server", "web1", "create_image", {"name": "away", "secret_uuid": id})["image"]
    properties = one.get("image", made["id"])["properties"]
    assert properties[SECRET_UUID] == id
    pieces, size = one.receive("image", "away")
    content = b"".join(pieces)
    assert size == len(content) and qcow2_header(content).encrypted
    with pytest.raises(ImageRefused, match="it is encrypted"):
        two.ensure("image", "open", {"source": {"upload": True}})
        two.send("image", "open", [content], size)
    two.ensure("image", "away", {"source": {"upload": True}, "properties": {SECRET_UUID: id}})
    two.send("image", "away", [content], size)
    wish = {"image": "away", "flavor": DISKS, "hardware": HIDDEN}
    for less in ({}, {"hardware": {}}):
        with pytest.raises(InvalidField, match="is encrypted, as it is the root disk"):
            two.ensure("server", "web2", {**wish, **less})
    with pytest.raises(Conflict, match="Nothing is made of it but that server"):
        two.ensure("volume", "leak", {"image": "away", "size": 1})
    found = two.ensure("server", "web2", {**wish, "disk_key": KEY})["resource"]
    place = pair.two.agent.host.settings.state_dir / "servers" / found["id"]
    assert found["power_state"] == "running" and not (place / "base").exists()
    seen = pair.two.fake.disk(place / "disk", "qcow2")
    assert seen and seen.encrypted and seen.backing is None and seen.virtual_size == DISKS["disk"] << 30
    assert not two.ensure("server", "web2", {"name": "web2"})["changed"]
    two.event("server", "web2", "reboot", {"type": "hard"})
    two.delete("image", "away")
    two.event("server", "web2", "reboot", {"type": "hard"})


def test_without_the_key_of_the_host_nothing_starts(host: Host) -> None:
    host.server(hardware=HIDDEN)
    host.ensure("server", "web1", {"power": "off"})
    (host.root / "state" / "keys" / "seal").unlink()
    with pytest.raises(Conflict, match="Restore that file"):
        host.ensure("server", "web1", {"power": "running"})


@pytest.mark.parametrize("root_format", ["raw", "copy"])
def test_a_root_format_of_the_host_is_not_taken(host: Host, root_format: str) -> None:
    host.settings["root_format"] = root_format
    host.restart()
    host.server(hardware=HIDDEN, **image(host))
    assert host.show()["root_format"] == "qcow2" and _all_encrypted(host)


@pytest.mark.parametrize("power", ["running", "off"])
def test_it_goes_cold_with_its_server(pair: Pair, power: str) -> None:
    id = pair.make(hardware=HIDDEN)
    if power == "off":
        pair.one.side().client.ensure("server", "web1", {"power": "off"})
    drawn = _secret(pair.one.agent)
    sealed = pair.one.agent.host.documents.get("server", id).state[keys.SEALED]  # type: ignore[union-attr]
    pair.migrate(type="cold")
    pair.check(id, pair.two, power == "running")
    pair.two.side().client.ensure("server", "web1", {"power": "running"})
    assert _secret(pair.two.agent) == drawn
    for one in (pair.one, pair.two):
        assert drawn not in _documents(one.agent)
    assert pair.two.agent.host.documents.get("server", id).state[keys.SEALED] != sealed  # type: ignore[union-attr]


def test_it_goes_live_with_its_key(pair: Pair) -> None:
    """The target's disks are encrypted too, and libvirt there forgets the key when the guest has arrived."""
    id = pair.make(hardware=HIDDEN, flavor=DISKS)
    drawn = _secret(pair.one.agent)
    made, lent = pair.two.fake.make_disk, []

    def make(*args: Any, **named: Any) -> None:
        lent.append((named["key"].secret, dict(pair.two.fake.lent)))
        made(*args, **named)

    pair.two.fake.make_disk = make  # type: ignore[method-assign]
    pair.migrate()
    assert len(lent) == 3 and all(key == drawn and list(there.values()) == [drawn] for key, there in lent)
    pair.check(id, pair.two)
    assert _secret(pair.two.agent) == drawn and not pair.two.fake.lent
    for one in (pair.one, pair.two):
        assert drawn not in _documents(one.agent)
    pair.two.side().client.ensure("server", "web1", {"power": "off"})
    pair.two.side().client.ensure("server", "web1", {"power": "running"})


def test_a_live_migration_that_fails_leaves_no_key(pair: Pair) -> None:
    id = pair.make(hardware=HIDDEN)
    pair.one.fake.fail_next("migrate", HypervisorError("no"), 1)
    with pytest.raises(HypervisorError):
        pair.migrate()
    assert pair.one.runs(id)
    eventually(lambda: not pair.two.fake.lent)  # it sees later that the other side has gone
    pair.migrate()
    pair.check(id, pair.two)
