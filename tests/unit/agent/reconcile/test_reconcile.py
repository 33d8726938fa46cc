# SPDX-License-Identifier: GPL-3.0-or-later
"""ensure: predicted by a dry run, done once, refused with the reason, and never half."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_core.errors import Ambiguous, Conflict, HypervisorError, Immutable, InvalidField, MagnetarError, NotFound
from magnetar_core.kinds import Server
from tests.unit.agent.conftest import SMALL, Host

UUID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
OTHER = "9d8e4d1f-6e1a-4b3c-8e1f-1d7d9b2a3c4e"
DRAWN = {"id", "created_at", "updated_at", "networks", "instance_name", "console_log", "addresses"}


def verbs(result: Any) -> list[str]:
    return [step.verb for step in result.steps]


WISHES: list[tuple[dict[str, Any] | None, list[str]]] = [
    ({"flavor": SMALL, "networks": [{"bridge": "br0"}], "metadata": {"a": "1"}},
     ["record", "disks", "define", "drive", "start"]),
    ({"flavor": SMALL, "networks": [{"bridge": "br0"}], "metadata": {"a": "1"}}, []),
    ({"tags": ["b", "a"]}, ["record"]),
    ({"power": "paused"}, ["record", "pause"]),
    ({"power": "running", "description": "new"}, ["record", "define", "resume"]),
    ({"power": "suspended"}, ["record", "save"]),
    ({"power": "off"}, ["record", "start", "stop"]),
    ({"flavor": {"vcpus": 2, "ram": 128}}, ["record", "define"]),
    ({"power": "running"}, ["record", "start"]),
    (None, ["destroy", "undefine", "erase", "forget"]),
    (None, []),
]


def test_a_life_and_every_step_is_predicted(host: Host) -> None:
    for want, steps in WISHES:
        predicted = host.ensure("server", "web1", want, dry_run=True)
        again = host.ensure("server", "web1", want, dry_run=True)
        done = host.ensure("server", "web1", want)
        assert verbs(predicted) == verbs(again) == verbs(done) == steps
        assert predicted.diff == done.diff
        assert predicted.changed == bool(steps)
        if done.resource is not None and predicted.resource is not None:
            assert predicted.resource.keys() == done.resource.keys()
            differing = {k for k, v in done.resource.items() if predicted.resource[k] != v}
            assert differing <= DRAWN
        if want is not None:
            assert host.ensure("server", "web1", want).steps == []


def test_a_dry_run_leaves_nothing(host: Host) -> None:
    before = sorted((host.root / "state").rglob("*"))
    host.ensure("server", "web1", {"flavor": SMALL}, dry_run=True)
    assert sorted((host.root / "state").rglob("*")) == before
    assert host.fake.domains() == {}


def test_omitted_is_untouched_and_merge_adds(host: Host) -> None:
    host.server(metadata={"a": "1"}, tags=["x"])
    host.ensure("server", "web1", {"description": "d"})
    assert (host.show()["metadata"], host.show()["tags"]) == ({"a": "1"}, ["x"])
    host.ensure("server", "web1", {"metadata": {"b": "2"}, "tags": ["y"]}, merge=["metadata", "tags"])
    assert (host.show()["metadata"], host.show()["tags"]) == ({"a": "1", "b": "2"}, ["x", "y"])
    host.ensure("server", "web1", {"metadata": {"b": "3"}, "tags": []})
    assert (host.show()["metadata"], host.show()["tags"]) == ({"b": "3"}, [])


def test_a_mac_is_drawn_once(host: Host) -> None:
    first = host.server(networks=[{"bridge": "br0"}]).resource["networks"][0]["mac"]  # type: ignore[index]
    assert host.server(networks=[{"bridge": "br0"}]).steps == []
    assert host.show()["networks"][0]["mac"] == first


# What cannot be ----------------------------------------------------------------------------------------------------
REFUSED = [
    ({"flavor": SMALL, "nmae": "x"}, InvalidField, "did you mean name"),
    ({"flavor": {"vcpus": 0, "ram": 64}}, InvalidField, "flavor.vcpus: must be from 1"),
    ({"flavor": {"ram": 64}}, InvalidField, "flavor.vcpus: is required to make a server: give vcpus and ram"),
    ({"flavor": {"vcpus": 1, "disk": 1}}, InvalidField, "flavor.ram: is required"),
    ({"flavor": {"vcpus": 1, "ram": 64, "disk": -1}}, InvalidField, "flavor.disk: must be from 0"),
    ({}, InvalidField, "flavor: is required"),
    ({"flavor": "none"}, InvalidField, "flavor: must name a flavor"),
    ({"flavor": SMALL, "image": "none"}, InvalidField, "image: must name an image"),
    ({"flavor": SMALL, "key_name": "none"}, InvalidField, "key_name: must name a keypair"),
    ({"flavor": SMALL, "networks": [{"bridge": "br9"}]}, InvalidField, "no.*'br9'.*br0|there are br0"),
    ({"flavor": SMALL, "networks": [{"network": "none"}]}, InvalidField, "must name a network"),
    ({"flavor": SMALL, "networks": [{}]}, InvalidField, "either a network, a bridge, a port or a physical network"),
    ({"flavor": SMALL, "networks": [{"bridge": "br0", "mac": "52:54:00:00:00:01"}] * 2}, InvalidField, "must differ"),
    ({"flavor": SMALL, "user_data": "%"}, InvalidField, "valid base64"),
    ({"flavor": SMALL, "user_data": "A" * 65536}, InvalidField, "0 to 65535"),
    ({"flavor": SMALL, "metadata": {"k" * 256: "v"}}, InvalidField, "1 to 255"),
    ({"flavor": SMALL, "virt_type": "kvm"}, InvalidField, "virt_type: cannot be kvm"),
    ({"flavor": SMALL, "name": "web2"}, InvalidField, "to rename, ask by uuid"),
]


@pytest.mark.parametrize(("want", "error", "text"), REFUSED, ids=[r[2][:30] for r in REFUSED])
def test_refused_and_nothing_changed(host: Host, want: dict[str, Any], error: type[MagnetarError], text: str) -> None:
    before = sorted((host.root / "state").rglob("*"))
    for dry_run in (False,) if "must name" in text else (True, False):  # see test_check_mode.py
        with pytest.raises(error, match=text):
            host.ensure("server", "web1", want, dry_run=dry_run)
    assert sorted((host.root / "state").rglob("*")) == before
    assert host.fake.domains() == {}


def test_a_name_of_256_characters(host: Host) -> None:
    with pytest.raises(InvalidField, match="name: must have 1 to 255 characters, and has 256"):
        host.server("a" * 256)


def test_a_taken_mac_names_its_server(host: Host) -> None:
    host.server(networks=[{"bridge": "br0", "mac": "52:54:00:00:00:01"}])
    with pytest.raises(Conflict, match="belongs to server 'web1'"):
        host.server("web2", networks=[{"bridge": "br0", "mac": "52:54:00:00:00:01"}])


# Names and uuids ---------------------------------------------------------------------------------------------------
def test_a_name_may_be_shared_by_servers_made_by_uuid(host: Host) -> None:
    host.ensure("server", UUID, {"name": "web1", "flavor": SMALL})
    host.ensure("server", OTHER, {"name": "web1", "flavor": SMALL})
    with pytest.raises(Ambiguous, match=UUID) as refused:
        host.show("web1")
    assert refused.value.details["uuids"] == sorted([UUID, OTHER])
    assert host.show(OTHER)["id"] == OTHER


def test_a_name_with_another_uuid_is_refused(host: Host) -> None:
    host.server()
    with pytest.raises(Conflict, match="exists with uuid"):
        host.server(id=OTHER)


def test_flavors_do_not_share_names(host: Host) -> None:
    host.ensure("flavor", "small", {"vcpus": 1, "ram": 64})
    with pytest.raises(Conflict, match="'small' belongs to flavor"):
        host.ensure("flavor", UUID, {"name": "small", "vcpus": 1, "ram": 64})
    host.ensure("flavor", UUID, {"name": "large", "vcpus": 1, "ram": 64})
    with pytest.raises(Conflict, match="'small' belongs to flavor"):
        host.ensure("flavor", UUID, {"name": "small"})


def test_a_server_is_renamed_by_uuid(host: Host) -> None:
    host.ensure("server", UUID, {"name": "web1", "flavor": SMALL})
    assert verbs(host.ensure("server", UUID, {"name": "web2"})) == ["record", "define"]
    assert host.show("web2")["id"] == UUID
    with pytest.raises(NotFound, match="no server 'web1'"):
        host.show("web1")


# What cannot change ------------------------------------------------------------------------------------------------
def test_a_fixed_field_never_passes_in_silence(host: Host) -> None:
    host.server(user_data="YQ==")
    with pytest.raises(Immutable, match="availability_zone cannot change from None to 'az2'"):
        host.server(availability_zone="az2")
    with pytest.raises(Immutable, match="user_data cannot change") as refused:
        host.server(user_data="c2VjcmV0")
    assert "c2VjcmV0" not in refused.value.message
    ignored = host.ensure("server", "web1", {"availability_zone": "az2"}, on_immutable="ignore")
    assert (ignored.changed, host.show()["availability_zone"]) == (False, None)
    assert "ignored" in ignored.warnings[0]
    made_again = host.ensure("server", "web1", {"availability_zone": "az2"}, on_immutable="recreate")
    assert verbs(made_again) == ["destroy", "undefine", "erase", "record", "disks", "define", "drive", "start"]
    assert host.show()["availability_zone"] == "az2"
    assert host.show()["power_state"] == "running"


def test_the_same_flavor_by_name_is_no_change_and_other_sizes_are(host: Host) -> None:
    host.ensure("flavor", "small", {"vcpus": 1, "ram": 64})
    host.server(flavor="small")
    host.ensure("flavor", "small", None)
    assert host.server(flavor="small").steps == []
    host.ensure("flavor", "small", {"vcpus": 2, "ram": 64})
    with pytest.raises(Conflict, match="while server 'web1' is off"):
        host.server(flavor="small")
    assert verbs(host.server(flavor="small", power="off")) == ["record", "stop", "define"]


def test_sizes_that_are_left_out_stay(host: Host) -> None:
    sizes = {"vcpus": 2, "ram": 64, "disk": 1, "ephemeral": 1, "swap": 8}
    host.ensure("flavor", "small", sizes)
    host.server(flavor="small", power="off")
    for given in ({}, {"ram": 64}, {"vcpus": 2, "ram": 64}):
        assert host.server(flavor=given).steps == []
    assert host.show()["flavor"] == {"name": "small", **sizes}
    for given in ({"ram": 160}, {"vcpus": 1, "swap": 0}):
        sizes.update(given)
        done = host.server(flavor=given)
        assert done.changed and done.resource["flavor"] == sizes
        assert host.server(flavor=given).steps == []


# Failures ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["make_disk", "make_iso", "define", "start"])
def test_a_making_that_fails_leaves_nothing(host: Host, method: str) -> None:
    host.fake.fail_next(method, HypervisorError("no luck"))
    with pytest.raises(HypervisorError, match="no luck"):
        host.server()
    assert host.fake.domains() == {}
    assert host.agent.host.documents.list("server") == []
    assert not list((host.root / "state" / "servers").glob("*/*"))
    assert host.server().changed


def test_a_change_that_fails_is_told_until_one_succeeds(host: Host) -> None:
    host.server()
    host.fake.fail_next("pause", HypervisorError("no luck"))
    with pytest.raises(HypervisorError):
        host.server(power="paused")
    assert host.show()["fault"]["message"] == "no luck"
    host.server(power="paused")
    assert (host.show()["fault"], host.show()["power_state"]) == (None, "paused")


def test_a_foreign_domain_is_never_touched(host: Host) -> None:
    host.fake.defined_outside(f"<domain type='qemu'><name>theirs</name><uuid>{UUID}</uuid><memory>65536</memory>"
                              "<os><type>hvm</type></os></domain>", "running")
    with pytest.raises(Conflict):
        host.ensure("server", UUID, {"name": "web1", "flavor": SMALL})
    assert host.fake.domains()[UUID].state == "running"
    assert host.agent.host.documents.list("server") == []


# Many --------------------------------------------------------------------------------------------------------------
def test_a_batch_is_in_order_and_each_for_itself(host: Host) -> None:
    host.server("b")
    answers = host.many("server", [("a", {"flavor": SMALL}), ("b", {"flavor": SMALL}), ("c", {"flavor": "none"}),
                                   ("d", None), ("b2", {"flavor": SMALL})])
    assert [a["key"] for a in answers] == ["a", "b", "c", "d", "b2"]
    assert [a.get("changed") for a in answers] == [True, False, None, False, True]
    assert answers[2]["error"]["code"] == "invalid-field"
    assert len(host.fake.domains()) == 3


def test_two_clients_with_different_wishes(host: Host) -> None:
    wishes = [{"flavor": SMALL, "metadata": {"who": str(n)}, "power": power}
              for n, power in enumerate(["running", "paused", "off", "suspended"] * 4)]
    errors: list[Exception] = []

    def ask(want: dict[str, Any]) -> None:
        try:
            host.ensure("server", "web1", want)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(want,)) for want in wishes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    host.settled()
    assert errors == []
    assert len(host.agent.host.documents.list("server")) == 1
    assert len(host.fake.domains()) == 1
    document = host.agent.host.documents.list("server")[0]
    shown = reconcile.show_resource(host.agent.drivers, Server, "web1")
    assert {"who": shown["metadata"]["who"], "power": shown["power_state"]} in [
        {"who": want["metadata"]["who"], "power": want["power"]} for want in wishes]
    assert document.want["power"] == shown["power_state"]
    assert host.agent.host.locks._held == {}
