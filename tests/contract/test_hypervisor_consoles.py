# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract of hypervisors: ways to the consoles of domains. See ``test_hypervisor``."""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress

import pytest

from magnetar_core.errors import Conflict
from tests.support.waiting import eventually

from .place import Place

OPEN = (("open_graphics", "vnc"), ("open_graphics", "spice"), ("open_serial",))
#: How a SPICE client begins its main channel: magic, version 2.2, size of what follows; session 0, channel type 1,
#: number 0, one word of common capabilities (authentication by selection, small headers), none of the channel's.
SPICE_LINK = struct.pack("<4sIII", b"REDQ", 2, 2, 22) + struct.pack("<IBBIIII", 0, 1, 0, 1, 0, 18, 0b1001)


def ended(line: int) -> bool:
    """Whether a serial line has ended."""
    with suppress(BlockingIOError):
        try:
            return not os.read(line, 4096)
        except BlockingIOError:
            raise
        except OSError:
            return True
    return False


def test_vnc_ends_with_its_domain(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    opened = place.hypervisor.open_graphics
    with opened(uuid, "vnc") as one, opened(uuid, "vnc") as other:
        for line in (one, other):
            line.settimeout(30)
            assert line.recv(12) == b"RFB 003.008\n"
        place.hypervisor.destroy(uuid)
        with suppress(ConnectionResetError):
            while one.recv(4096):
                pass


def test_spice_ends_with_its_domain(place: Place) -> None:
    assert place.hypervisor.has_spice()
    uuid = place.defined(spice=True)
    place.hypervisor.start(uuid)
    assert place.hypervisor.running(uuid).spice and place.hypervisor.domain(uuid).spice
    with place.hypervisor.open_graphics(uuid, "spice") as line:
        line.settimeout(30)
        line.sendall(SPICE_LINK)
        assert line.recv(4) == b"REDQ"
        place.hypervisor.destroy(uuid)
        with suppress(ConnectionResetError):
            while line.recv(4096):
                pass


def test_a_domain_without_spice(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    with pytest.raises(Conflict, match="setting spice"):
        place.hypervisor.open_graphics(uuid, "spice")


def test_a_serial_line_ends_with_its_domain(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    line = place.hypervisor.open_serial(uuid)
    try:
        assert not stat.S_ISREG(os.fstat(line).st_mode) and not os.get_blocking(line)
        assert os.write(line, b"typed") == 5
        place.hypervisor.send_break(uuid)
        place.hypervisor.destroy(uuid)
        assert eventually(lambda: ended(line))
    finally:
        os.close(line)
    place.hypervisor.start(uuid)
    os.close(place.hypervisor.open_serial(uuid))


@pytest.mark.parametrize("how", OPEN)
def test_only_what_runs_has_consoles(place: Place, how: tuple[str, ...]) -> None:
    uuid, theirs = place.defined(spice=True), place.spec()
    name, *more = how
    open = getattr(place.hypervisor, name)
    with pytest.raises(Conflict, match="does not run"):
        open(uuid, *more)
    with pytest.raises(Conflict):
        open(theirs.uuid, *more)
    place.foreign(theirs)
    with pytest.raises(Conflict, match="not made by Magnetar"):
        open(theirs.uuid, *more)
