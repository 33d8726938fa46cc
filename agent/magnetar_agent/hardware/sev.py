# SPDX-License-Identifier: GPL-3.0-or-later
"""Encryption of guests' memory by the CPU (AMD SEV): libvirt's ``launchSecurity``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from magnetar_core.hardware.merge import memory_model

#: Bits of AMD's guest policy, combined as in Nova: no debugging, no key of another guest, no migration to another
#: platform, or to one without SEV; and for SEV-ES, no start without it.
_POLICY, _ES = 0x33, 0x4
SEV, SEV_ES = "amd-sev", "amd-sev-es"


class LaunchSecurity(NamedTuple):
    """The parameters of libvirt's ``launchSecurity`` for AMD SEV. *cbitpos*: the bit of an address that marks an
    encrypted page. *reduced_phys_bits*: the number of address bits that encryption takes. *policy*: AMD's guest policy.
    """

    cbitpos: int
    reduced_phys_bits: int
    policy: int


def launch_security(hardware: Mapping[str, Any], host_encryption: Mapping[str,
                                                                          Mapping[str, int]]) -> LaunchSecurity | None:
    """Return the SEV parameters for the domain of a server with these *hardware* fields; ``None`` without encrypted
    memory. *host_encryption*: the host's field ``memory_encryption``: parameters by model (SEV, SEV-ES)."""
    if not (name := memory_model(hardware)):
        return None
    parameters = host_encryption.get(name, {})
    return LaunchSecurity(parameters.get("cbitpos", 0), parameters.get("reduced_phys_bits", 0),
                          _POLICY | (_ES if name == SEV_ES else 0))
