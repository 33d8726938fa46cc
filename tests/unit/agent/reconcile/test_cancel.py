# SPDX-License-Identifier: GPL-3.0-or-later
"""A cancel at any point: all is as it was before, or the answer says that the change is carried on, and it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.api import batch
from magnetar_agent.reconcile import events, reconcile
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Cancelled, Conflict, HypervisorError
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import Operation
from tests.unit.agent.conftest import SMALL, Host

pytestmark = pytest.mark.slow

FULL = {"flavor": {**SMALL, "disk": 1, "ephemeral": 1, "swap": 1}, "image": "img", "networks": [{"bridge": "br0"}]}
BLOCKS = {"flavor": SMALL, "block_device_mapping": [
    {"source_type": "image", "destination_type": "volume", "uuid": "img", "boot_index": 0},
    {"source_type": "volume", "uuid": "data"}]}
DEAF = "deaf"
SERVER = ("server", "web1", FULL)
RECREATE, REBOOT = {"on_immutable": "recreate"}, {"allow_reboot": True}
#: What was made before (DEAF: its guest obeys nobody); what is asked for: noun, key, want, permissions; whether a
#: cancel comes too late somewhere.
STORIES: dict[str, tuple[list[Any], tuple[str, str, Any, dict[str, Any]], bool]] = {
    "make": ([], (*SERVER, {}), False),
    "make with volumes": ([], ("server", "web1", BLOCKS, {}), False),
    "make a volume": ([], ("volume", "new", {"image": "img"}, {}), False),
    "take a snapshot": ([], ("volume_snapshot", "then", {"volume": "data"}, {}), False),
    "attach": ([SERVER], ("volume_attachment", "web1:data", {"server": "web1", "volume": "data"}, {}), False),
    "detach": ([("server", "web1", BLOCKS), DEAF], ("volume_attachment", "web1:data", None, {}), False),
    "stop": ([SERVER, DEAF], ("server", "web1", {"power": "off"}, {}), False),
    "stop what is paused": ([("server", "web1", {**FULL, "power": "paused"}), DEAF],
                            ("server", "web1", {"power": "off"}, {}), False),
    "suspend what is off": ([("server", "web1", {**FULL, "power": "off"})],
                            ("server", "web1", {"power": "suspended"}, {}), True),
    "another flavor": ([SERVER], ("server", "web1", {"flavor": {"vcpus": 2, "ram": 128}}, REBOOT), True),
    "larger disks": ([SERVER, DEAF], ("server", "web1", {"flavor": {**SMALL, "disk": 2, "ephemeral": 2, "swap": 2}},
                                      REBOOT), True),
    "rescue": ([SERVER], ("server", "web1", {"rescue": {"image": "img"}}, {}), True),
    "unrescue": ([SERVER, ("server", "web1", {"rescue": {"image": "img"}})],
                 ("server", "web1", {"rescue": None}, {}), True),
    "rebuild": ([SERVER, DEAF], ("server", "web1", {"user_data": "YQ=="}, {"on_immutable": "rebuild"}), True),
    "rebuild what is suspended": ([SERVER, ("server", "web1", {"power": "suspended"})], (
        "server", "web1", {"user_data": "YQ==", "power": "running"}, {"on_immutable": "rebuild"}), True),
    "take NICs away": ([("server", "web1", {**FULL, "networks": [{"bridge": "br0"}] * 2}), DEAF],
                       ("server", "web1", {"networks": []}, {}), False),
    "make anew": ([SERVER], ("server", "web1", {"availability_zone": "b"}, RECREATE), True),
    "make anew with volumes": ([("server", "web1", BLOCKS)], ("server", "web1", {"availability_zone": "b"}, RECREATE),
                               True),
    "a volume anew": ([], ("volume", "data", {"format": "raw"}, RECREATE), True),
    "a volume in a storage pool again": ([("volume", "lv", {"size": 1, "pool": "vg"})],
                                        ("volume", "lv", {"image": "img"}, RECREATE), True),
    "an image anew": ([], ("image", "img", {"checksum": None}, RECREATE), True),
    "a network anew": ([("network", "lan", {"cidr": "10.99.0.0/24"})],
                       ("network", "lan", {"cidr": "10.98.0.0/24"}, RECREATE), True),
}


class Stops(Operation):
    """It is cancelled when it looks for the time after *lives* others."""

    def __init__(self, lives: int) -> None:
        super().__init__("test")
        self.lives = lives

    def raise_if_cancelled(self) -> None:
        """Count."""
        self.lives -= 1
        if self.lives < 0:
            self.cancel()
        super().raise_if_cancelled()


def seen(host: Host) -> Any:
    """All that a user could miss: documents, domains, and which files there are."""
    documents = {(noun, one.id): (one.name, one.want, {k: v for k, v in one.state.items() if k != "fault"})
                 for noun in BY_NOUN for one in host.agent.host.documents.list(noun)}
    domains = {id: (one.state, one.vcpus, one.nics, one.disks) for id, one in host.fake.domains().items()}
    live = {id: sorted(nic.mac for nic in one.nics) for id in domains if (one := host.fake.running(id))}
    places = [host.root / "state" / name for name in ("servers", "volumes", "images")] + [host.root / "libvirt/pool-vg"]
    files = {str(path): (path.stat().st_ino, path.stat().st_size) for place in places for path in place.rglob("*")
             if path.is_file() and path.name not in ("console.log", "saved")}
    return documents, domains, live, files, set(host.fake.networks())


def begin(root: Path, before: list[Any]) -> Host:
    host = Host(root, pools={"vg": {"type": "lvm"}}, detach_timeout=0.3)
    host.fake.add_pool("vg")
    host.start()
    for name in ("image.raw", "other.raw"):
        (host.root / name).write_bytes(name.encode().ljust(1 << 20, b"\0"))
    host.ensure("image", "img", {"source": {"path": str(host.root / "image.raw")}, "disk_format": "raw"})
    host.ensure("volume", "data", {"size": 1})
    for one in before:
        if one == DEAF:
            host.fake.deaf.add(host.show()["id"])
        else:
            host.ensure(*one)
    host.settled()
    return host


@pytest.mark.parametrize("story", STORIES)
def test_cancel_at_every_point(tmp_path: Path, story: str) -> None:
    before, (noun, key, want, allowed), may_be_late = STORIES[story]
    late = False
    for lives in range(60):
        host = begin(tmp_path / str(lives), before)
        if noun == "image":
            want = {"source": {"path": str(host.root / "other.raw")}}
        was = seen(host)

        def ask(operation: Operation, host: Host = host, want: Any = want) -> None:
            reconcile.ensure_resource(host.agent.drivers, BY_NOUN[noun], key, host.said(noun, key, want),
                                      check_permissions(allowed), False, operation)

        try:
            ask(Stops(lives))
        except Cancelled as error:
            host.settled()
            if "no way back" in error.message:
                late = True
                assert "carried on" in error.message
                assert "carried on" in host.agent.host.documents.find(
                    noun, key).state["fault"]["message"]  # type: ignore[union-attr]
                if lives % 2:
                    host.restart()
                else:
                    host.ensure(noun, key, {} if noun == "image" else {"description": "next"})
                assert not host.ensure(noun, key, want, **allowed).changed
            else:
                assert "not yet" not in error.message
                assert seen(host) == was
                host.restart()
                assert seen(host) == was
            assert not any({"unfinished", "rebuild", "replacement", "making", "allow_reboot"} & set(one.state)
                           for kind in BY_NOUN for one in host.agent.host.documents.list(kind))
            host.settled()
            assert host.agent.host.locks._held == {}
            host.agent.close()
        except Conflict:
            assert DEAF in before  # it was not cancelled, and the guest did not let go
            host.agent.close()
            return
        else:
            assert not host.ensure(noun, key, want, **allowed).changed
            host.agent.close()
            assert lives > 0 and late == may_be_late
            return
    pytest.fail("the story never ends")


def cancelled(host: Host, work: Callable[[Operation], Any]) -> str:
    operation = Operation("test")
    operation.cancel()
    with pytest.raises(Cancelled) as error:
        work(operation)
    host.settled()
    return error.value.message


def test_a_cancelled_rebuild_never_happens(tmp_path: Path) -> None:
    """The event's own way: neither the next change nor a restart does it, and the same request may come again."""
    host = begin(tmp_path / "host", [SERVER])
    was = seen(host)
    cancelled(host, lambda operation: events.perform_event(
        host.agent.drivers, BY_NOUN["server"], "web1", "rebuild", {}, "r1", operation))
    assert seen(host) == was
    disk = host.root / "state/servers" / host.show()["id"] / "disk"
    inode = disk.stat().st_ino
    (tmp_path / "kept").hardlink_to(disk)  # so that no other file gets its number
    assert [step.verb for step in host.ensure("server", "web1", {"metadata": {"a": "b"}}).steps] == ["record"]
    host.restart()
    assert disk.stat().st_ino == inode
    host.event("rebuild", "r1")
    assert disk.stat().st_ino != inode
    host.agent.close()


def test_a_cancelled_stop_says_what_the_guest_may_do(tmp_path: Path) -> None:
    host = begin(tmp_path / "host", [SERVER, DEAF])
    with pytest.raises(Cancelled, match="may still do so"):
        reconcile.ensure_resource(host.agent.drivers, BY_NOUN["server"], "web1", {"power": "off"},
                                  check_permissions({}), False, Stops(1))
    host.fake.deaf.clear()
    host.fake.shutdown(host.show()["id"])
    host.settled()
    assert host.show()["status_reason"].startswith("The guest shut itself down.")
    host.agent.close()


def test_the_way_back_may_fail(tmp_path: Path) -> None:
    """Then the answer says so, and the next call, here an agent's start, goes it."""
    host = begin(tmp_path / "host", [SERVER])
    flavor = host.show()["flavor"]
    host.fake.fail_next("start", HypervisorError("no luck"))
    with pytest.raises(Cancelled, match="not yet as it was before: no luck"):
        reconcile.ensure_resource(host.agent.drivers, BY_NOUN["server"], "web1", {"flavor": {**SMALL, "disk": 9}},
                                  check_permissions(REBOOT), False, Stops(1))
    assert host.show()["power_state"] == "off" and host.show()["fault"]["message"] == "no luck"
    host.restart()
    assert (host.show()["power_state"], host.show()["flavor"], host.show()["fault"]) == ("running", flavor, None)
    host.agent.close()


def test_what_was_left_to_do_before_still_is(tmp_path: Path) -> None:
    host = begin(tmp_path / "host", [SERVER])
    host.fake.fail_next("pause", HypervisorError("no luck"))
    with pytest.raises(HypervisorError):
        host.server(power="paused", **{k: v for k, v in FULL.items() if k != "flavor"}, flavor=FULL["flavor"])
    was = seen(host)
    said = cancelled(host, lambda operation: reconcile.ensure_resource(
        host.agent.drivers, BY_NOUN["server"], "web1", {"power": "off"}, check_permissions({}), False, operation))
    assert "What was left to do" in said and seen(host) == was
    host.ensure("server", "web1", {"description": "next"})
    assert host.show()["power_state"] == "paused"
    host.agent.close()


def test_a_cancelled_batch_tells_what_was_done(host: Host) -> None:
    operation = Stops(9)
    items = [(f"f{at}", {"vcpus": 1, "ram": 64}, check_permissions({})) for at in range(30)]
    with pytest.raises(Cancelled, match=r"\d+ of 30") as error:
        batch.ensure_many(host.agent.drivers, BY_NOUN["flavor"], items, False, operation)
    made = {one.name for one in host.agent.host.documents.list("flavor")}
    assert set(error.value.details["done"]) == made and 0 < len(made) < 30
