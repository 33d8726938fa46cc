# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract of hypervisors: ways to the consoles of domains. See ``test_hypervisor``."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import pytest

from magnetar_core.errors import Conflict

from .place import Place, eventually

OPEN = ("open_vnc", "open_serial")


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
    with place.hypervisor.open_vnc(uuid) as one, place.hypervisor.open_vnc(uuid) as other:
        for line in (one, other):
            line.settimeout(30)
            assert line.recv(12) == b"RFB 003.008\n"
        place.hypervisor.destroy(uuid)
        with suppress(ConnectionResetError):
            while one.recv(4096):
                pass


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
def test_only_what_runs_has_consoles(place: Place, how: str) -> None:
    uuid, theirs = place.defined(), place.spec()
    with pytest.raises(Conflict, match="does not run"):
        getattr(place.hypervisor, how)(uuid)
    with pytest.raises(Conflict):
        getattr(place.hypervisor, how)(theirs.uuid)
    place.foreign(theirs)
    with pytest.raises(Conflict, match="not made by Magnetar"):
        getattr(place.hypervisor, how)(theirs.uuid)
