# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines of networks promise: the fake one, and OVN."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from magnetar_control.services.network.engine.engine import Incomplete, LogicalAddresses, LogicalLimit, unit_key
from magnetar_control.services.network.ovn.ovn import OvnEngine
from magnetar_control.services.network.ovn.ovn_changes import Northbound
from magnetar_core.errors import Unavailable
from tests.support.agent.pki import Pki
from tests.support.northbound import LabCentral, missing
from tests.support.ports import free_port

from .units import (
    EXT,
    FORWARDING,
    GROUP,
    LAN,
    ONE,
    OUT,
    ROUTER,
    SIDES,
    SIX,
    SSH,
    TWO,
    all_of,
    both,
    eventually,
    port,
    some,
)


def test_what_is_written_is_there_and_the_same_again_changes_nothing(engine):
    assert not engine.knows_all()
    wanted = all_of(LAN, GROUP, ONE, TWO)
    keys = [unit_key(LAN), unit_key(GROUP), "group/none", "network/none"]
    assert not any(map(engine.has, keys))
    number = eventually(lambda: engine.repair(wanted))
    assert engine.knows_all() and [*map(engine.has, keys)] == [True, True, False, False]
    assert engine.differences(wanted) == []
    assert engine.repair(wanted) >= number
    many = [port(at, "g-1") for at in range(3, 103)]
    engine.repair(some(*many))  # one transaction
    assert engine.differences(all_of(LAN, GROUP, ONE, TWO, *many)) == []


def test_each_change_is_a_difference_of_its_unit_until_it_is_repaired(engine):
    eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE)))
    for changed in (replace(LAN, mtu=1300), replace(LAN, domain="lab.example"), replace(LAN, subnets=()),
                    replace(GROUP, rules=(SSH,)),
                    replace(GROUP, rules=()), replace(ONE, groups=()), replace(ONE, secure=False),
                    replace(ONE, limits=(LogicalLimit("egress", 1000, 100), LogicalLimit("ingress", 500)), dscp=46),
                    replace(ONE, limits=(LogicalLimit("egress", 2000),), dscp=0),
                    replace(ONE, names=("web", "web.lab.example")), replace(ONE, names=("db", "db.lab.example")),
                    replace(ONE, parent="p2", vlan=7), replace(ONE, parent="p2", vlan=8),
                    replace(ONE, hosts=("h1", "h2"), arriving=True), replace(ONE, enabled=False), ONE, GROUP, LAN):
        assert {one.unit for one in engine.differences(some(changed))} == {unit_key(changed)}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []


def test_a_unit_that_is_not_wanted_goes_and_others_stay(engine):
    eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE, TWO)))
    engine.repair(some(gone=("port/p2",)))
    assert engine.differences(all_of(LAN, GROUP, ONE)) == []
    engine.repair(all_of(LAN))
    assert {one.unit for one in engine.differences(all_of(LAN, GROUP, ONE))} == {"group/g-1", "port/p1"}


def test_who_waits_for_the_hosts_goes_on_when_they_have_followed(engine):
    number = eventually(lambda: engine.repair(all_of(LAN)))
    assert engine.reached(number, 60)  # where there are no hosts, all have
    assert not engine.reached(number + 1, 0.1)
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(engine.reached, number, 60)
        later = engine.repair(all_of(LAN, GROUP, ONE))
        assert waits.result() and engine.reached(later, 60)


def test_addresses_of_rules_change_and_go(engine):
    named = replace(GROUP, rules=(replace(SSH, remote_addresses="a-1"), OUT))
    office = LogicalAddresses("a-1", ("192.0.2.0/24", "2001:db8::/64"))
    eventually(lambda: engine.repair(all_of(LAN, office, named, ONE)))
    for changed in (replace(office, addresses=()), replace(office, addresses=("198.51.100.7/32",)), office):
        assert {one.unit for one in engine.differences(some(changed))} == {"addresses/a-1"}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []
    engine.repair(all_of(LAN, GROUP, ONE))
    assert engine.differences(all_of(LAN, GROUP, ONE)) == []


def test_a_router_changes_and_goes(engine):
    eventually(lambda: engine.repair(all_of(LAN, EXT, GROUP, ONE, TWO, ROUTER, *SIDES)))
    assert engine.differences(all_of(LAN, EXT, GROUP, ONE, TWO, ROUTER, *SIDES)) == []
    for changed in (replace(ROUTER, routes=()), replace(ROUTER, translations=ROUTER.translations[:1]),
                    replace(ROUTER, forwardings=(FORWARDING,)),
                    replace(ROUTER, forwardings=(replace(FORWARDING, targets=FORWARDING.targets[:1]),)),
                    replace(ROUTER, chassis=("h2", "h3")), replace(ROUTER, enabled=False),
                    replace(ROUTER, interfaces=ROUTER.interfaces[:1]), ROUTER):
        assert {one.unit for one in engine.differences(some(changed))} == {"router/r1"}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []
    engine.repair(some(gone=("router/r1", "port/i1", "port/i9")))
    assert engine.differences(all_of(LAN, EXT, GROUP, ONE, TWO)) == []


def test_a_port_without_its_network_is_refused(engine):
    eventually(lambda: engine.repair(all_of()))
    with pytest.raises(Incomplete):
        engine.repair(some(ONE))


def test_what_was_lost_is_known_to_be_lost(place, engine):
    wanted = all_of(LAN, GROUP, ONE)
    eventually(lambda: engine.repair(wanted))
    place.lose()
    eventually(lambda: engine.leads() and not engine.knows_all())
    eventually(lambda: engine.repair(wanted))
    assert engine.differences(wanted) == []


def test_the_mode_of_a_subnet_changes_and_a_port_loses_its_address(engine):
    eventually(lambda: engine.repair(all_of(SIX, GROUP, both(1, "g-1"))))
    assert engine.differences(all_of(SIX, GROUP, both(1, "g-1"))) == []
    stateless = replace(SIX.subnets[1], mode="dhcpv6-stateless")
    for changed in (replace(SIX, subnets=(SIX.subnets[0], stateless)), port(1, "g-1"), both(1, "g-1"), SIX):
        assert {one.unit for one in engine.differences(some(changed))} == {unit_key(changed)}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []


def test_what_others_made_is_left_alone(ovn):
    ovn.central.nb("ls-add", "theirs", "--", "lsp-add", "theirs", "their-port", "--", "pg-add", "their_group",
                   "their-port")
    eventually(lambda: ovn.engine.repair(all_of(LAN, ONE)))
    ovn.central.nb("lsp-add", "mag-n1", "guest-of-theirs")
    assert ovn.engine.differences(all_of(LAN, ONE)) == []
    ovn.engine.repair(all_of(LAN))
    assert {"their-port", "guest-of-theirs"} <= set(ovn.central.nb("--bare", "--columns=name", "find",
                                                                   "Logical_Switch_Port").split())


def test_one_process_writes_and_another_goes_on_when_it_ends(ovn):
    second = OvnEngine(ovn.central.url)
    try:
        second.claim()
        assert not second.leads()
        eventually(lambda: ovn.engine.repair(all_of(LAN)))
        with pytest.raises(Unavailable):
            second.repair(all_of())
        assert second.differences(all_of(LAN)) == []  # nobody needs the right to write to look
        ovn.engine.close()
        eventually(second.leads)
        assert not second.knows_all()
        second.repair(all_of(LAN, ONE))
        assert second.differences(all_of(LAN, ONE)) == []
    finally:
        second.close()


def test_by_tls_with_certificates_of_both_sides(tmp_path):
    if missing():
        pytest.skip(missing())
    pki, port = Pki(tmp_path / "pki"), free_port()
    (certificate, key), (own, own_key) = pki.issue("127.0.0.1"), pki.issue("control")
    central = LabCentral(tmp_path / "ovn", f"--remote=pssl:{port}:127.0.0.1", f"--private-key={key}",
                         f"--certificate={certificate}", f"--ca-cert={pki.ca}").start()
    # Where nobody listens, the next is tried.
    engine = OvnEngine(f"ssl:127.0.0.1:{free_port()},ssl:127.0.0.1:{port}", own_key, own, pki.ca)
    try:
        engine.claim()
        eventually(engine.leads)
        eventually(lambda: engine.repair(all_of(LAN)))
        assert engine.differences(all_of(LAN)) == []
        central.end("nb")
        assert eventually(lambda: _refusal(engine.leads))
        central.begin("nb")
        eventually(engine.leads)
    finally:
        engine.close()
        central.stop()


def test_an_engine_that_is_away_says_so(ovn):
    ovn.central.end("nb")
    said = eventually(lambda: _refusal(ovn.engine.leads))
    assert "northbound database" in said
    assert "ovn_northbound" in said
    assert "northbound database" in _refusal(lambda: ovn.engine.repair(all_of(LAN)))
    none = OvnEngine(f"unix:{ovn.central.folder}/none.sock", patience=1)
    assert "none.sock" in _refusal(none.leads)


def _refusal(ask: Callable[[], Any]) -> str:
    """In which words it does not answer; none where it does."""
    try:
        ask()
    except Unavailable as error:
        return error.message
    return ""


def test_the_rows_that_are_known_are_those_that_there_are(ovn):
    """A change looks only at rows that it is about: what is known of all others is kept up to date."""
    def known() -> Northbound:
        idl = ovn.engine._open.idl
        kept, now = idl.known(), Northbound(idl.tables)
        for name in ("rows", "units", "names", "holders", "_held"):
            assert {key: value for key, value in getattr(kept, name).items() if value} == {
                key: value for key, value in getattr(now, name).items() if value}, name
        return kept

    engine = ovn.engine
    eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE)))
    first = known()
    engine.repair(some(TWO, LAN, GROUP))
    engine.repair(some(replace(ONE, groups=()), LAN))
    engine.repair(some(replace(GROUP, rules=GROUP.rules[:1])))
    assert known() is first
    engine.repair(some(gone=("port/p1",)))
    ovn.central.nb("ls-add", "theirs", "--", "lsp-add", "theirs", "their-port")
    ovn.central.nb("clear", "port_group", "mag_drop", "ports")
    eventually(lambda: engine.differences(all_of(LAN, GROUP, TWO)))
    assert known() is first
    engine.repair(some(TWO, LAN, GROUP))
    assert known() is first
    wanted = all_of(LAN, replace(GROUP, rules=GROUP.rules[:1]), TWO)
    engine.repair(wanted)
    assert engine.differences(wanted) == []
    ovn.lose()
    eventually(lambda: engine.leads() and not engine.knows_all())
    eventually(lambda: engine.repair(wanted))
    engine.repair(some(ONE, LAN, GROUP))
    assert known() is not first
