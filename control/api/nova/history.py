# SPDX-License-Identifier: GPL-3.0-or-later
"""The microversions in which behaviour changes: one gate each, by name.

What only comes or goes with a version (an operation, a field, a query parameter) says so where it is declared. A gate
is for the rest: handlers ask ``call.at(Gate.NAME)``, and compare no versions.
"""

from __future__ import annotations

from enum import Enum


class Gate(Enum):
    """Name, first version (2.53 is 53), and what is so since then."""

    FLAVOR_ACCESS_PRIVATE_ONLY = 7, "Access to a public flavor is refused with 409."
    HYPERVISOR_PAGES = 33, "Lists of hypervisors are paged, and link to the next page."
    KEYPAIR_PAGES = 35, "The list of key pairs is paged, and links to the next page."
    HOST_UUIDS = 53, "Services and hypervisors are named by their uuids in paths and markers, and not by numbers."
    DOWN_CELLS = 69, "What is in a cell that does not answer is listed with what is known of it, and not left out."
    HYPERVISOR_SERVERS = 75, "A hypervisor without servers has an empty list of them, where it had no list."
    EXTRA_SPECS_CHECKED = 86, "Extra specs in the namespaces that Nova knows are checked."
    HYPERVISOR_UPTIME = 88, "Hypervisors show for how long they are up, and not what is on them."

    def __init__(self, version: int, change: str) -> None:
        self.version, self.change = version, change
