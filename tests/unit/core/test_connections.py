# SPDX-License-Identifier: GPL-3.0-or-later
"""How many connections a process may have open, and how many of them one address."""

from __future__ import annotations

import resource

import pytest

from magnetar_core.http import connections
from magnetar_core.http.connections import MOST_REFUSALS, Connections


@pytest.mark.parametrize("least, most, set_to", [
    (1024, 524288, (65536, 524288)), (1024, 4096, (4096, 4096)), (1024, -1, (65536, -1)), (100_000, 524288, None),
    (-1, -1, None)])
def test_a_thousand_clients_are_not_all(least: int, most: int, set_to: object, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = [None]
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (least, most))
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: found.append(limits))
    connections.raise_file_limit()
    assert found[-1] == set_to


@pytest.mark.parametrize("address, counted", [
    ("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ("fe80::1%eth0", "fe80::1"), ("fe80::2%eth0", "fe80::2"), ("unknown", "unknown"), ("::1", "::1")])
def test_what_one_address_is(address: str, counted: str) -> None:
    assert connections.counted_address(address) == counted


def test_an_address_has_its_places_and_no_more() -> None:
    places = Connections(2)
    first, second = (places.take("192.0.2.1") for _time in range(2))
    assert not first.refused and not second.refused
    told = [places.take("192.0.2.1") for _time in range(MOST_REFUSALS)]
    assert all(one.refused and one.send_refusal for one in told)
    assert "192.0.2.1 has 2 connections" in told[0].refused.message and told[0].refused.retry_after
    silent = places.take("192.0.2.1")
    assert silent.refused and not silent.send_refusal
    assert not places.take("192.0.2.2").refused
    for one in (first, first, silent, *told):
        one.free()
    again = places.take("192.0.2.1")
    assert not again.refused and places.take("192.0.2.1").refused


def test_the_log_names_an_address_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until all its connections have ended, however often one of them ends and another is refused."""
    places = Connections(1)
    first = places.take("192.0.2.1")
    for _time in range(100):
        places.take("192.0.2.1").free()
    assert len(caplog.records) == 1
    first.free()
    first = places.take("192.0.2.1")
    places.take("192.0.2.1").free()
    assert len(caplog.records) == 2
    first.free()
    assert not places._logged


@pytest.mark.parametrize("said, address", [
    ("192.0.2.1", "192.0.2.1"), ("192.0.2.1:5000", "192.0.2.1"), ("[2001:db8::1]:5000", "2001:db8::1"),
    ("[2001:db8::1]", "2001:db8::1"), ("2001:db8::1", "2001:db8::1"), ("", ""), ("unknown", "unknown")])
def test_a_proxy_may_add_the_port(said: str, address: str) -> None:
    assert connections.without_port(said) == address


def test_nothing_is_kept_of_who_has_gone() -> None:
    places = Connections(2)
    for one in [places.take(f"192.0.2.{last}") for last in range(256)]:
        one.free()
    assert not places._open


@pytest.mark.parametrize("most, address", [(0, "192.0.2.1"), (1, "")])
def test_who_is_not_counted(most: int, address: str) -> None:
    places = Connections(most)
    assert not any(places.take(address).refused for _time in range(100))
