# SPDX-License-Identifier: GPL-3.0-or-later
"""RBD images by Ceph's own tools, ``rbd`` and ``ceph`` (ceph-common): libvirt neither clones what it is told to, nor
knows what another host has made. The tools find the cluster where libvirt's pool says that it is, or in
``/etc/ceph/ceph.conf``, and the key of its user in ``/etc/ceph``, which is root's."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.virt.tools.process import run
from magnetar_core.errors import Conflict, HypervisorError

if TYPE_CHECKING:
    from magnetar_agent.host.storage import NetworkSource

#: The snapshot of a base.
SNAPSHOT = "magnetar"
#: Seconds that a tool may take: it waits for a cluster that does not answer. Removing takes as long as the image has
#: objects.
LIMIT, REMOVING = 60.0, 3600.0
#: Seconds for which an image that is open is tried to be removed, and between two tries. Ceph takes 30 s to forget a
#: client that has died.
OPEN, AGAIN = 60.0, 2.0
#: Seconds for which what was seen of the room is good.
GOOD = 60.0
_ABSENT, _THERE, _DONE, _OPEN = ("(2) No such file or directory", "(17) File exists", "already protected",
                                 "still has watchers")


class RbdTools:
    """``RbdPool``; *place* is that of an image without a name."""

    def __init__(self, place: NetworkSource) -> None:
        self.place, self.pool = place, place.name.partition("/")[0]

    def source(self, name: str) -> NetworkSource:
        """The user's key is a secret of libvirt for QEMU."""
        return replace(self.place, name=f"{self.pool}/{name}")

    def names(self) -> list[str]:
        """``rbd ls``."""
        return sorted(json.loads(self._rbd("list the images", "ls", "--format=json")))

    def size(self, name: str) -> int | None:
        """``rbd info``."""
        found = self._seen(name, "info")
        return None if found is None else int(found["size"])

    def make(self, name: str, size: int) -> None:
        """``rbd create``, with the features that the cluster's configuration says."""
        self._new(name, f"make {name}", "create", "--image", name, "--size", f"{size}B")

    def clone(self, base: str, name: str) -> None:
        """``rbd clone``."""
        self._new(name, f"clone {base}", "clone", "--image", base, "--snap", SNAPSHOT, "--dest-pool", self.pool,
                  "--dest", name)

    def grow(self, name: str, size: int) -> None:
        """``rbd resize``."""
        there = self.size(name)
        if there is None:
            raise HypervisorError(f"The image {name} is gone from the pool {self.pool!r} of Ceph. Restore it there.")
        if there < size:
            self._rbd(f"grow {name}", "resize", "--image", name, "--size", f"{size}B", "--no-progress")

    def remove(self, name: str) -> None:
        """``rbd rm``."""
        end = time.monotonic() + OPEN
        while True:
            try:
                self._rbd(f"remove {name}", "rm", "--image", name, "--no-progress", limit=REMOVING)
            except HypervisorError as error:
                if f"error: {_ABSENT}" in error.message and "opening" not in error.message:
                    return
                if _OPEN not in error.message or time.monotonic() > end:
                    raise
                time.sleep(AGAIN)
            else:
                return

    def is_base(self, name: str) -> bool:
        """``rbd snap ls``."""
        return bool(self._snapshot(name))

    def protect(self, name: str) -> None:
        """``rbd snap create`` and ``protect``; another host may do the same."""
        at = ("--image", name, "--snap", SNAPSHOT)
        for words, fine in ((("create", *at, "--no-progress"), _THERE), (("protect", *at), _DONE)):
            try:
                self._rbd(f"keep {name}", "snap", *words)
            except HypervisorError as error:
                if fine not in error.message:
                    raise

    def remove_base(self, name: str) -> None:
        """``rbd children``, ``snap unprotect``, ``snap rm``, ``rm``. What another host fills just now, clones or
        removes stops it."""
        if self.size(name) is None:
            return
        protected = self._snapshot(name)
        try:
            if protected is not None:
                if self._children(name):
                    return
                at = ("--image", name, "--snap", SNAPSHOT)
                if protected:
                    self._rbd(f"remove {name}", "snap", "unprotect", *at)
                self._rbd(f"remove {name}", "snap", "rm", *at, "--no-progress")
            self.remove(name)
        except HypervisorError as error:
            if not (_OPEN in error.message or self.size(name) is None or self._children(name) or
                    (protected is None and self._snapshot(name) is not None)):
                raise

    def _snapshot(self, name: str) -> bool | None:
        """Whether the snapshot of a base is protected; ``None`` where there is none."""
        found = self._seen(name, "snap", "ls") or ()
        return next((one.get("protected") == "true" for one in found if one["name"] == SNAPSHOT), None)

    def _seen(self, name: str, *words: str) -> Any:
        """What ``rbd`` *words* say of an image; ``None`` where there is none."""
        try:
            return self._look(name, *words)
        except HypervisorError as error:
            if f"opening image {name}: {_ABSENT}" in error.message:
                return None
            raise

    def _children(self, name: str) -> bool:
        return bool(self._look(name, "children"))

    def _look(self, name: str, *words: str) -> Any:
        return json.loads(self._rbd(f"look at {name}", *words, "--format=json", "--image", name))

    def room(self) -> tuple[int, int]:
        """``ceph df``: what the pool holds and may hold still, each counted once, however often it is kept."""
        told = json.loads(self._run("ceph", "look for room", "df", "--format=json"))
        found: dict[str, Any] | None = next((one for one in told["pools"] if one["name"] == self.pool), None)
        if found is None:
            raise HypervisorError(f"Ceph has no pool {self.pool!r}, as which libvirt knows it. Make it (ceph osd pool "
                                  "create), or define libvirt's pool anew.")
        free = int(found["stats"]["max_avail"])
        return free + int(found["stats"].get("stored", found["stats"]["bytes_used"])), free

    def _new(self, name: str, what: str, *words: str) -> None:
        try:
            self._rbd(what, *words)
        except HypervisorError as error:
            if _THERE in error.message:
                raise Conflict(f"The pool {self.pool!r} of Ceph has an image called {name} already.") from None
            raise

    def _rbd(self, what: str, *words: str, limit: float = LIMIT) -> str:
        return self._run("rbd", what, *words, "--pool", self.pool, limit=limit)

    def _run(self, tool: str, what: str, *words: str, limit: float = LIMIT) -> str:
        monitors = ",".join(f"{f'[{name}]' if ':' in name else name}{f':{port}' if port else ''}"
                            for name, port in self.place.hosts)
        who = [*(["--id", self.place.user] if self.place.user else []), *(["-m", monitors] if monitors else [])]
        return run([tool, *who, *words], f"{what} in the pool {self.pool!r} of Ceph", limit)


@dataclass(frozen=True)
class RoomSeen:
    """What was seen of a pool's room, or why nothing was: a cluster that does not answer takes its time."""

    pool: str
    at: float
    room: tuple[int, int]
    error: HypervisorError | None = None

    @classmethod
    def look(cls, pool: str, tools: RbdTools) -> RoomSeen:
        """Now."""
        try:
            return cls(pool, time.monotonic(), tools.room())
        except HypervisorError as error:
            return cls(pool, time.monotonic(), (0, 0), error)

    def is_good(self, pool: str) -> bool:
        """Whether it is of this pool, and of within the last minute."""
        return self.pool == pool and time.monotonic() < self.at + GOOD

    def told(self) -> tuple[int, int]:
        """Bytes in all, and free ones. Raises ``HypervisorError``."""
        if self.error is not None:
            raise HypervisorError(self.error.message)
        return self.room
