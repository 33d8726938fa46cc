# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules for what servers have: check, run, run again, check again, absent; what is reported, and what is refused."""

from __future__ import annotations

import pytest

from tests.support.modules.attachments import CASES

#: Drawn or known only when it is done.
DRAWN = {"id", "created_at", "updated_at", "status", "addresses"}


@pytest.fixture
def place(world):
    world("server", name="s", flavor="small", image="img")
    return world


@pytest.mark.parametrize("noun", CASES)
def test_five_steps(noun, place):
    options = CASES[noun]
    predicted = place(noun, check=True, **options)
    assert predicted["changed"], predicted
    assert place(noun + "_info", server="s")[noun + "s"] == [], "check mode has changed something"
    done = place(noun, **options)
    assert done["changed"] and done["actions"] == predicted["actions"], done
    assert {k: v for k, v in done[noun].items() if k not in DRAWN} == {
        k: v for k, v in predicted[noun].items() if k not in DRAWN}
    assert not place(noun, **options)["changed"] and not place(noun, check=True, **options)["changed"]
    found = place(noun + "_info", server="s")[noun + "s"]
    assert len(found) == 1
    assert place(noun + "_info", id=done[noun]["id"])[noun + "s"] == found
    assert place(noun + "_info", server=done[noun]["server"], fields=["server_name"])[noun + "s"] == [
        {"server_name": "s"}]
    assert place(noun + "_info", server="other")[noun + "s"] == []
    assert place(noun, check=True, state="absent", **options)["changed"]
    assert place(noun, state="absent", **options)["changed"]
    assert not place(noun, state="absent", **options)["changed"]


def test_volumes_by_name(place):
    place("volume_attachment", server="s", volume="data")
    assert [one["device"] for one in place("volume_attachment_info", volume="data")["volume_attachments"]] == ["vdb"]
    gone = place("volume", name="data", state="absent")
    assert gone["failed"] and "attached to s" in gone["msg"]
    changed = place("volume_attachment", server="s", volume="data", delete_on_termination=True)
    assert changed["changes"] == {"delete_on_termination": {"old": False, "new": True}}
    place("server", name="s", state="absent")
    assert place("volume_info")["volumes"] == []


def test_a_volume_in_the_place_of_another(place):
    place("volume_attachment", server="s", volume="data", tag="logs")
    options = dict(server="s", volume="faster", replaces="data")
    predicted = place("volume_attachment", check=True, **options)
    assert predicted["actions"] == ["record", "swap"] and "'faster' yet" in str(predicted["warnings"]), predicted
    place("volume", name="faster", size=1)
    predicted = place("volume_attachment", check=True, **options)
    done = place("volume_attachment", **options)
    assert done["actions"] == predicted["actions"] == ["record", "swap"], done
    assert (done["volume_attachment"]["device"], done["volume_attachment"]["tag"]) == ("vdb", "logs")
    assert not place("volume_attachment", **options)["changed"]
    assert place("volume_attachment_info", volume="data")["volume_attachments"] == []
    assert "replaces" in place("volume_attachment", server="s", volume="data", replaces="nope")["msg"]


def test_nics_are_part_of_the_server(place):
    place("interface_attachment", server="s", network="lan")
    assert not place("server", name="s", flavor="small", image="img")["changed"], "omitted networks stay"
    assert len(place("server_info", name="s")["servers"][0]["networks"]) == 1
    assert not place("server", name="s", networks=[])["changed"], "what was attached stays"
    assert place("server", name="s", networks=[], purge_networks=True)["changed"], "it says the last word"
    assert place("interface_attachment_info", network="lan")["interface_attachments"] == []
    bad = place("interface_attachment", server="s")
    assert bad["failed"] and "mac" in bad["msg"] and "network" in bad["msg"]
    function = place("interface_attachment", server="s", physical_network="physnet9", port_security=False)
    assert function["failed"] and "has no virtual functions of physical network physnet9" in function["msg"]


def test_options_that_are_needed(place):
    assert "server" in place("volume_attachment", volume="data")["msg"]
    assert "volume" in place("volume_attachment", server="s")["msg"]
    missing = place("volume_attachment", server="s", volume="nope")
    assert missing["failed"] and "volume: must name a volume of this host" in missing["msg"]
    assert place("volume_attachment", server="s", volume="nope", check=True)["changed"]


@pytest.mark.parametrize(("server", "volume"), [("new", "data"), ("s", "new"), ("new", "new")])
def test_check_mode_on_what_an_earlier_task_makes(server, volume, place, agent):
    """With the volume's endpoint too; a warning says what is assumed, a real run fails."""
    for more in ({}, {"volume_endpoint": agent.endpoint}):
        options = dict(server=server, volume=volume, **more)
        predicted = place("volume_attachment", check=True, **options)
        assert predicted["changed"] and "attach" in predicted["actions"], predicted
        assert "'new' yet; the prediction assumes" in str(predicted["warnings"])
        refused = place("volume_attachment", **options)
        assert refused["failed"] and refused["error"]["code"] == "invalid-field"


def test_networks_of_a_server_are_those_that_it_has_at_least(place):
    """A NIC of interface_attachment outlives the next run of the task that makes the server."""
    place("network", name="more", cidr="192.168.98.0/24")
    for name in ("one", "two"):
        place("server", name=name, flavor="small", image="none", networks=["lan"])
        mac = place("server_info", name=name)["servers"][0]["networks"][0]["mac"]
        place("interface_attachment", server=name, network="more")
        for options in ({"networks": ["lan"]}, {"nics": "net-name=lan"}, {"network": "lan"}, {"networks": ["more"]}):
            for check in (True, False):
                assert not place("server", name=name, check=check, **options)["changed"], options
        assert not place("server", servers=[{"name": name, "networks": ["lan"]}])["changed"]
        nics = place("server_info", name=name)["servers"][0]["networks"]
        assert [nic["network"] for nic in nics] == ["lan", "more"] and nics[0]["mac"] == mac
    done = place("server", name="one", networks=["lan"], purge_networks=True)
    assert [nic["network"] for nic in done["server"]["networks"]] == ["lan"] and done["changed"]
    done = place("server", servers=[{"name": "two"}], networks=["more"], purge_networks=True)
    assert [nic["network"] for nic in done["results"][0]["server"]["networks"]] == ["more"]
