# SPDX-License-Identifier: GPL-3.0-or-later
"""A dry run assumes what earlier steps of the same run would have done, and says so; a real run refuses."""

from __future__ import annotations

import pytest

from magnetar_core.errors import InUse, InvalidField
from tests.unit.agent.conftest import SMALL, Host

WANT = {"flavor": "small", "image": "tiny", "networks": [{"network": "lan"}], "key_name": "me"}


def test_what_is_not_there_yet_is_assumed_in_a_dry_run_only(host: Host) -> None:
    predicted = host.ensure("server", "web1", WANT, dry_run=True)
    assert [step.verb for step in predicted.steps] == ["record", "disks", "define", "drive", "start"]
    assert {leaf["path"]: leaf["new"] for leaf in predicted.diff}["flavor"] == "small"
    for word in ("flavor 'small'", "image 'tiny'", "network 'lan'", "keypair 'me'"):
        assert sum(word in text for text in predicted.warnings) == 1
    with pytest.raises(InvalidField, match="flavor"):
        host.ensure("server", "web1", WANT)
    [answer] = host.many("server", [("web1", WANT)])
    assert answer["error"]["details"]["field"] == "flavor"


def test_what_cannot_be_made_by_magnetar_is_never_assumed(host: Host) -> None:
    with pytest.raises(InvalidField, match="bridge"):
        host.ensure("server", "web1", {"flavor": SMALL, "networks": [{"bridge": "nope"}]}, dry_run=True)


def test_users_are_assumed_to_be_gone_in_a_dry_run_only(host: Host) -> None:
    host.ensure("network", "lan", {"cidr": "10.9.8.0/24"})
    host.server(networks=[{"network": "lan"}])
    predicted = host.ensure("network", "lan", None, dry_run=True)
    assert predicted.changed
    assert "web1" in predicted.warnings[0]
    with pytest.raises(InUse):
        host.ensure("network", "lan", None)
