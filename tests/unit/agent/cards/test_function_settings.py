# SPDX-License-Identifier: GPL-3.0-or-later
"""What virtual functions are set to, trust and rates, and that it is taken from them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.servers import guest_data
from magnetar_agent.servers.nics import function_settings
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError
from tests.support.agent.pair import WAY, Pair
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, NAME, card, free, give, netdev, nic, noted, plugged

TRUSTING, USUAL = {"trust": "on"}, {"trust": "off"}
TRUSTED_NAME = f"{NAME}:trusted"


def test_a_guest_is_told_whether_its_card_trusts_it(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [
        nic(1, trusted=True, tag="bond"), nic(2, tag="plain")]})
    document = trusting.agent.host.documents.find("server", "web1")
    assert document is not None
    told = json.loads(guest_data.guest_metadata_tree(trusting.agent.host,
                                                     document)["openstack/latest/meta_data.json"])["devices"]
    assert {one["tags"][0]: one["vf_trusted"] for one in told} == {"bond": True, "plain": False}


def test_a_trusted_nic(trusting: Host) -> None:
    assert free(trusting) == {NAME: {"total": 2, "free": 2}, TRUSTED_NAME: {"total": 1, "free": 1}}
    wanted = [nic(1, trusted=True)]
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": wanted})
    assert plugged(trusting) == {MAC(1): "0x31 0x0"} and trusting.fake.functions == {("ens1f0", 0): TRUSTING}
    assert noted(trusting) == ["0000:31:02.0"]
    assert not trusting.ensure("server", "web1", {"networks": wanted}).changed
    with pytest.raises(Conflict, match="1 trusted virtual functions of physical network Physnet-0, and host .* 0"):
        trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2, trusted=True)]})
    trusting.ensure("server", "web1", None)
    assert trusting.fake.functions == {("ens1f0", 0): USUAL} and noted(trusting) == []


def test_who_asks_for_no_trust_takes_others_first(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    assert plugged(trusting) == {MAC(1): "0x31 0x1"}
    trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    assert plugged(trusting, "web2") == {MAC(2): "0x31 0x0"} and trusting.fake.functions == {}


def test_trust_comes_and_goes_with_a_nic(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    trusting.ensure("server", "web1", {"networks": [nic(1, trusted=True)]})
    assert trusting.fake.functions == {("ens1f0", 0): TRUSTING} and noted(trusting) == ["0000:31:02.0"]
    trusting.ensure("server", "web1", {"networks": []})
    assert trusting.fake.functions == {("ens1f0", 0): USUAL} and noted(trusting) == []


def test_trust_is_set_before_each_start(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    trusting.ensure("server", "web1", {"power": "off"})
    trusting.fake.functions.clear()  # by a boot of the host
    trusting.ensure("server", "web1", {"power": "running"})
    assert trusting.fake.functions == {("ens1f0", 0): TRUSTING}


def test_a_card_that_does_not_trust(trusting: Host, tmp_path: Path) -> None:
    trusting.fake.fail_next("set_function", HypervisorError("The agent could not set virtual function 0 of ens1f0."))
    with pytest.raises(HypervisorError, match="could not set virtual function 0"):
        trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    assert noted(trusting) == []  # a server that was not made holds nothing
    (tmp_path / "sys/bus/pci/devices/0000:31:00.0/net").rename(tmp_path / "net")
    with pytest.raises(Conflict, match="its card has no network device there"):
        trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    (tmp_path / "net").rename(tmp_path / "sys/bus/pci/devices/0000:31:00.0/net")
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    assert trusting.fake.functions == {("ens1f0", 0): TRUSTING}


def test_what_a_killed_agent_left_set(trusting: Host, tmp_path: Path) -> None:
    """A function that nobody has is as usual after the agent's next start; and so is one for its next server."""
    folder = trusting.agent.host.settings.state_dir / function_settings.FOLDER
    folder.mkdir()
    (folder / "0000:31:02.1").write_text("trust")
    (folder / "0000:31:02.7").touch()  # it has gone since
    trusting.fake.functions["ens1f0", 1] = dict(TRUSTING)
    function_settings.reset_free_functions(trusting.agent.host)
    assert trusting.fake.functions == {("ens1f0", 1): USUAL} and noted(trusting) == []
    (folder / "0000:31:02.1").write_text("trust")
    trusting.fake.functions["ens1f0", 1] = dict(TRUSTING)
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    assert plugged(trusting) == {MAC(1): "0x31 0x1"}
    assert trusting.fake.functions == {("ens1f0", 1): USUAL} and noted(trusting) == []


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [nic(1, trusted=True, vnic_type="macvtap")]}, InvalidField, "must be false but for vnic_type direct"),
    ({"networks": [{"bridge": "br0", "trusted": True}]}, InvalidField, "trusted: is for NICs of a physical_network"),
])
def test_what_cannot_be_trusted(trusting: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        trusting.ensure("server", "web1", {"flavor": SMALL, **fields})


def test_a_nic_that_could_not_be_plugged_is_not_trusted(trusting: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": []})

    def broken(*_args: Any) -> None:
        raise HypervisorError("libvirt could not attach it.")

    with monkeypatch.context() as patched:
        patched.setattr(trusting.fake, "attach", broken)
        with pytest.raises(HypervisorError):
            trusting.ensure("server", "web1", {"networks": [nic(1, trusted=True)]})
    assert trusting.fake.functions == {("ens1f0", 0): USUAL} and noted(trusting) == []


def test_trust_moves_with_its_server(pair: Pair, tmp_path: Path) -> None:
    """The function of the host that it leaves is as usual then."""
    for kvm, bus in ((pair.one, "31"), (pair.two, "b1")):
        card(tmp_path / bus, bus, 1)
        netdev(tmp_path / bus, f"0000:{bus}:00.0", f"ens{bus}")
        give(kvm, tmp_path / bus, physical_network="Physnet-0", trusted=True)
    pair.make(flavor=SMALL, networks=[nic(1, trusted=True)])
    assert pair.one.fake.functions == {("ens31", 0): TRUSTING}
    assert pair.migrate(type="cold") == WAY
    assert (pair.one.fake.functions, pair.two.fake.functions) == ({("ens31", 0): USUAL}, {("ensb1", 0): TRUSTING})


def test_how_much_a_nic_sends(trusting: Host) -> None:
    """It may change while the guest runs; the function has none of it afterwards."""
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, max_tx_rate=100, min_tx_rate=10)]})
    functions, key = trusting.fake.functions, ("ens1f0", 1)
    assert functions == {key: {"max_tx_rate": "100", "min_tx_rate": "10"}}
    assert trusting.ensure("server", "web1", {"networks": [nic(1, max_tx_rate=200)]}).changed
    assert functions == {key: {"max_tx_rate": "200", "min_tx_rate": "0"}} and noted(trusting) == ["0000:31:02.1"]
    assert trusting.ensure("server", "web1", {"networks": [nic(1)]}).changed
    assert functions == {key: {"max_tx_rate": "0", "min_tx_rate": "0"}} and noted(trusting) == []
    assert not trusting.ensure("server", "web1", {"networks": [nic(1, max_tx_rate=0)]}).changed
    functions.clear()
    trusting.ensure("interface_attachment", f"web1:{MAC(1)}", {"server": "web1", "mac": MAC(1), "max_tx_rate": 50})
    assert functions == {key: {"max_tx_rate": "50"}}
    trusting.ensure("server", "web1", None)
    assert functions == {key: {"max_tx_rate": "0"}} and noted(trusting) == []


@pytest.mark.parametrize(("fields", "says"), [
    ({"networks": [{"bridge": "br0", "max_tx_rate": 5}]}, r"networks\[0\].max_tx_rate: is for virtual functions"),
    ({"networks": [{"bridge": "br0", "min_tx_rate": 5}]}, "min_tx_rate: is for virtual functions"),
    ({"networks": [nic(1, min_tx_rate=5, max_tx_rate=4)]}, "must not be less than min_tx_rate, which is 5"),
])
def test_rates_that_nothing_limits(trusting: Host, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidField, match=says):
        trusting.ensure("server", "web1", {"flavor": SMALL, **fields})
