# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes can do that processes of an earlier release cannot: each process announces its capabilities, so that
newer ones use a capability only when all others know it.

A capability stays here for as long as a supported release may lack it: that of the release before. Its code then no
longer asks, and its row is removed.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

#: The kinds of processes that announce themselves.
PROCESS_KINDS = ("api", "conductor", "agent")
#: The release of a process that does not announce any: the last one without announcements.
SILENT_RELEASE = "0.1.0"


class Capability(NamedTuple):
    """A feature of this release that running processes of an earlier release may lack. *name*: its name, which never
    changes. *kinds*: the kinds of processes that have the feature (of ``PROCESS_KINDS``).
    """

    name: str
    kinds: Tuple[str, ...]
    meaning: str


#: All capabilities of this release.
CAPABILITIES = (
    Capability("announcement", PROCESS_KINDS, "Announces its release and capabilities."),
    Capability("capability-marks", ("api", "conductor"),
               "Does not start in a cloud that uses a capability which it lacks."),
    Capability("data-migrations", ("conductor",), "Migrates data in the background."),
    Capability("reimage-objects", ("api", "conductor"),
               "Reads the metadata of an image in a volume's task as an object, not only as text."),
)


def capabilities_of(kind: str) -> Tuple[str, ...]:
    """Return the sorted names of the capabilities that a process of this release has. *kind*: its kind, one of
    ``PROCESS_KINDS``.
    """
    return tuple(sorted(capability.name for capability in CAPABILITIES if kind in capability.kinds))
