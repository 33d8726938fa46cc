# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of guests that the CPU encrypts (AMD SEV): libvirt's ``launchSecurity``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from magnetar_core.hardware.merge import memory_model

#: Bits of AMD's guest policy, of which Nova's is made: no debugging, no key of another guest, no migration to another
#: platform, and to none without SEV; and for SEV-ES, nothing without it.
_POLICY, _ES = 0x33, 0x4
SEV, SEV_ES = "amd-sev", "amd-sev-es"


class LaunchSecurity(NamedTuple):
    """*cbitpos*: the bit of an address that says that a page is encrypted. *reduced_phys_bits*: how many bits addresses
    lose by it. *policy*: AMD's."""

    cbitpos: int
    reduced_phys_bits: int
    policy: int


def launch_security(hardware: Mapping[str, Any], there: Mapping[str, Mapping[str, int]]) -> LaunchSecurity | None:
    """What the domain of a server is told. *there*: ``memory_encryption`` of ``kinds.Host``."""
    if not (name := memory_model(hardware)):
        return None
    found = there.get(name, {})
    return LaunchSecurity(found.get("cbitpos", 0), found.get("reduced_phys_bits", 0),
                          _POLICY | (_ES if name == SEV_ES else 0))
