# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest whose QEMU does not answer: it is named, and costs the others nothing. See ``test_hypervisor.py``."""

from __future__ import annotations

import pytest

from magnetar_core.errors import GuestSilent
from magnetar_core.power import OFF, PAUSED, RUNNING
from tests.support.waiting import eventually

from .place import Place


def test_guests_that_hang_hold_up_nobody(place: Place) -> None:
    hypervisor, outside = place.hypervisor, place.outside
    *hung, healthy = (place.defined() for _number in range(3))
    for uuid in (*hung, healthy):
        hypervisor.start(uuid)
    for uuid in hung:
        outside.hang(uuid)
    try:
        for uuid in hung:
            with pytest.raises(GuestSilent, match=f"guest {uuid} does not answer"):
                hypervisor.pause(uuid)
        hypervisor.pause(healthy)
        assert hypervisor.domain(healthy).state == PAUSED
        assert {hypervisor.domains()[uuid].state for uuid in hung} == {RUNNING}
        assert hypervisor.domain(hung[0]).state == RUNNING
        assert hypervisor.running(hung[0]) is not None and hypervisor.statistics(hung[0]) is not None
        with pytest.raises(GuestSilent, match="does not answer"):
            hypervisor.shutdown(hung[1])
        assert hypervisor.connected()
    finally:
        outside.go_on(hung[1])
    hypervisor.destroy(hung[0])
    assert hypervisor.domain(hung[0]).state == OFF
    hypervisor.start(hung[0])
    hypervisor.pause(hung[0])
    assert hypervisor.domain(hung[0]).state == PAUSED


def test_a_guest_that_goes_on_does_what_it_was_asked_for(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    place.outside.hang(uuid)
    try:
        with pytest.raises(GuestSilent):
            place.hypervisor.reboot(uuid)
    finally:
        place.outside.go_on(uuid)
    eventually(lambda: not place.hypervisor.pause(uuid), "it answers", passing=(GuestSilent,))
    assert place.hypervisor.domain(uuid).state == PAUSED
