# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of the ``Hypervisor`` protocol about storage pools of libvirt, in which volumes may lie (LVM, RBD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from magnetar_agent.hypervisor import Disk


@dataclass(frozen=True)
class Content:
    """What lies in a storage pool: its *size*, and how QEMU reaches it."""

    size: int
    disk: Disk


class Storage(Protocol):
    """See the head of this file. Every call raises ``Conflict`` when there is no pool of that name, or it does not run.
    """

    def check_pool(self, pool: str) -> None:
        """Nothing but that."""

    def contents(self, pool: str) -> dict[str, Content]:
        """All that lies there, by name."""

    def content(self, pool: str, name: str) -> Content | None:
        """One of them, looked for again when libvirt does not know it: another host may have made it."""

    def make_content(self, pool: str, name: str, size: int) -> None:
        """Make one that is raw. Raises ``Conflict`` when one is there, and ``NoSpace``."""

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """Grow it, also while a domain has it, which is told by ``resize``. Raises ``NoSpace``; never shrinks."""

    def remove_content(self, pool: str, name: str, wipe: bool) -> None:
        """Remove it, with *wipe* overwritten by zeros; gone is fine."""
