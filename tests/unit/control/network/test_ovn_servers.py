# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a cluster of the northbound database. Real ones: contract/network/test_northbound_cluster.py."""

from __future__ import annotations

import errno

import pytest

from magnetar_control.services.network.ovn import ovn_servers

LEADS, FOLLOWS, WANTS = ({"connected": True, "leader": True}, {"connected": True, "leader": False},
                         {"connected": False, "leader": False})


def found(monkeypatch, *servers):
    """The faults of a cluster whose servers say so; ``None`` is one that does not answer."""
    said = {f"ssl:192.0.2.{number}:6641": row for number, row in enumerate(servers, 1)}

    def ask(address, method, parameters):
        assert (method, parameters[0]) == ("transact", "_Server")
        if said[address] is None:
            raise OSError(errno.ECONNREFUSED, "Connection refused")
        return [{"rows": [said[address]]}]

    monkeypatch.setattr(ovn_servers, "call_server", ask)
    return list(ovn_servers.cluster_faults(",".join(said)))


@pytest.mark.parametrize(("servers", "words"), [
    ((None,), []),  # whoever uses it says so
    ((LEADS,), []),
    ((FOLLOWS, LEADS, FOLLOWS), []),
    ((None, LEADS, FOLLOWS), ["do not answer: ssl:192.0.2.1:6641 (Connection refused). When one more is lost"]),
    ((None, LEADS, FOLLOWS, FOLLOWS, FOLLOWS), ["Without 1 more the others still decide"]),
    ((WANTS, FOLLOWS, WANTS), ["no quorum: of ssl:192.0.2.1:6641, ssl:192.0.2.2:6641, ssl:192.0.2.3:6641 nobody leads, "
                               "and all answer."]),
    ((None, WANTS, None), ["ssl:192.0.2.1:6641 (Connection refused), ssl:192.0.2.3:6641 (Connection refused) do not"]),
    (({"connected": False, "leader": True}, FOLLOWS, FOLLOWS), ["nobody leads"]),
])
def test_what_a_cluster_lacks(monkeypatch, servers, words):
    faults = found(monkeypatch, *servers)
    assert len(faults) == len(words)
    assert all(word in fault for word, fault in zip(words, faults, strict=True)), faults


def test_a_server_that_answers_something_else_does_not_answer(monkeypatch):
    (said,) = found(monkeypatch, LEADS, {}, FOLLOWS)
    assert "ssl:192.0.2.2:6641 (" in said
