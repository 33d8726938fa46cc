# SPDX-License-Identifier: GPL-3.0-or-later
"""RBD images through Ceph's own tools, ``rbd`` and ``ceph`` (ceph-common): libvirt can neither create clones nor see
images that other hosts have created. The tools find the cluster in the configuration of libvirt's pool, or in
``/etc/ceph/ceph.conf``, and the user's key in ``/etc/ceph``, which only root can read."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.virt.tools.process import run_program
from magnetar_core.errors import Conflict, HypervisorError

if TYPE_CHECKING:
    from magnetar_agent.host.storage import NetworkSource

#: The name of the snapshot that a base has.
SNAPSHOT = "magnetar"
#: The key of the note that an image may have (``rbd image-meta``).
NOTE = "magnetar.owner"
#: Seconds that a tool may take: it waits for a cluster that does not answer. Removing takes time for every object of
#: the image.
LIMIT, REMOVING = 60.0, 3600.0
#: Seconds during which the removal of an open image is repeated, and between two attempts. Ceph takes 30 s to forget a
#: client that has died.
OPEN, AGAIN = 60.0, 2.0
#: Seconds for which the cached size and free space are valid.
GOOD = 60.0
_ABSENT, _THERE, _DONE, _OPEN = ("(2) No such file or directory", "(17) File exists", "already protected",
                                 "still has watchers")


class RbdTools:
    """A Ceph pool, controlled by the programs ``rbd`` and ``ceph``. Implements ``RbdPool``. *place*: the network source
    that all images of the pool have in common (monitors, user, pool)."""

    def __init__(self, place: NetworkSource) -> None:
        self.place, self.pool = place, place.name.partition("/")[0]

    def source(self, name: str) -> NetworkSource:
        """Return the network source of the image *name* for QEMU."""
        return replace(self.place, name=f"{self.pool}/{name}")

    def names(self) -> list[str]:
        """Return the names of the pool's images (``rbd ls``)."""
        return sorted(json.loads(self._rbd("list the images", "ls", "--format=json")))

    def size(self, name: str) -> int | None:
        """Return the size of the image *name* in bytes (``rbd info``); ``None`` if there is no such image."""
        info = self._seen(name, "info")
        return None if info is None else int(info["size"])

    def make(self, name: str, size: int) -> None:
        """Create the empty image *name* of *size* bytes (``rbd create``). Raises ``Conflict`` if it exists."""
        self._new(name, f"make {name}", "create", "--image", name, "--size", f"{size}B")

    def clone(self, base: str, name: str) -> None:
        """Create the image *name* as a clone of the base image *base*, from its protected snapshot (``rbd clone``).
        Raises ``Conflict`` if *name* exists."""
        self._new(name, f"clone {base}", "clone", "--image", base, "--snap", SNAPSHOT, "--dest-pool", self.pool,
                  "--dest", name)

    def grow(self, name: str, size: int) -> None:
        """Grow the image *name* to *size* bytes (``rbd resize``). A larger image is not changed."""
        current_size = self.size(name)
        if current_size is None:
            raise HypervisorError(f"The image {name} is gone from the pool {self.pool!r} of Ceph. Restore it there.")
        if current_size < size:
            self._rbd(f"grow {name}", "resize", "--image", name, "--size", f"{size}B", "--no-progress")

    def remove(self, name: str) -> None:
        """Remove the image *name* (``rbd rm``); a missing image is ignored. While a client has it open, retry for some
        time, then raise ``HypervisorError``."""
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

    def rename(self, name: str, new_name: str) -> None:
        """Rename the image *name* (``rbd rename``). Raises ``Conflict`` if *new_name* exists."""
        self._new(new_name, f"rename {name}", "rename", "--image", name, "--dest-pool", self.pool, "--dest", new_name)

    def annotate(self, name: str, note: str) -> None:
        """Store the text *note* with the image *name* (``rbd image-meta set``)."""
        self._rbd(f"describe {name}", "image-meta", "set", "--image", name, NOTE, note)

    def annotation(self, name: str) -> str | None:
        """Return the text that ``annotate`` has stored with the image *name* (``rbd image-meta list``); ``None`` if
        there is no text or no such image."""
        found = self._seen(name, "image-meta", "list")
        return str(found[NOTE]) if found and NOTE in found else None

    def block_clients(self, name: str) -> list[str]:
        """Block the clients that have the image *name* open (``rbd status``) or locked (``rbd lock ls``), with ``ceph
        osd blocklist add``, and return their addresses. Ceph removes the entries after an hour; a client that starts
        anew has another address."""
        found = [(self._seen(name, "status") or {}).get("watchers"), self._seen(name, "lock", "ls")]
        addresses = sorted({str(client["address"]) for clients in found if clients
                            for client in (clients.values() if isinstance(clients, dict) else clients)})
        for address in addresses:
            self._run("ceph", f"block the client {address} of {name}", "osd", "blocklist", "add", address)
        return addresses

    def is_base(self, name: str) -> bool:
        """Return whether the image *name* has the protected snapshot from which other images are cloned."""
        return bool(self._snapshot(name))

    def protect(self, name: str) -> None:
        """Make the image *name* a base for clones: create its snapshot and protect it. If another host creates or
        protects the snapshot concurrently, this is not an error."""
        at = ("--image", name, "--snap", SNAPSHOT)
        for words, fine in ((("create", *at, "--no-progress"), _THERE), (("protect", *at), _DONE)):
            try:
                self._rbd(f"keep {name}", "snap", *words)
            except HypervisorError as error:
                if fine not in error.message:
                    raise

    def remove_base(self, name: str) -> None:
        """Remove the base image *name* and its snapshot, unless it has clones. If another host uses or removes the
        image concurrently, do nothing."""
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
        """Return whether the snapshot for clones of the image *name* is protected; ``None`` if it has no such snapshot.
        """
        snapshots = self._seen(name, "snap", "ls") or ()
        return next((snapshot.get("protected") == "true" for snapshot in snapshots if snapshot["name"] == SNAPSHOT),
                    None)

    def _seen(self, name: str, *words: str) -> Any:
        """Run ``rbd`` with the arguments *words* for the image *name*, and return the parsed JSON output; ``None`` if
        there is no such image."""
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
        """Return the total and the free bytes of the pool (``ceph df``), without replicas."""
        usage = json.loads(self._run("ceph", "look for room", "df", "--format=json"))
        pool: dict[str, Any] | None = next((candidate for candidate in usage["pools"]
                                            if candidate["name"] == self.pool), None)
        if pool is None:
            raise HypervisorError(f"Ceph has no pool {self.pool!r}, as which libvirt knows it. Make it (ceph osd pool "
                                  "create), or define libvirt's pool again.")
        free = int(pool["stats"]["max_avail"])
        return free + int(pool["stats"].get("stored", pool["stats"]["bytes_used"])), free

    def identity(self) -> str:
        """Return the uuid of the Ceph cluster (``ceph fsid``), a slash, and the name of the pool. This text is equal on
        all hosts that use the same pool."""
        return f"{self._run('ceph', 'read the uuid of the cluster', 'fsid').strip()}/{self.pool}"

    def _new(self, name: str, purpose: str, *words: str) -> None:
        try:
            self._rbd(purpose, *words)
        except HypervisorError as error:
            if _THERE in error.message:
                raise Conflict(f"The pool {self.pool!r} of Ceph has an image called {name} already.") from None
            raise

    def _rbd(self, purpose: str, *words: str, limit: float = LIMIT) -> str:
        return self._run("rbd", purpose, *words, "--pool", self.pool, limit=limit)

    def _run(self, tool: str, purpose: str, *words: str, limit: float = LIMIT) -> str:
        monitors = ",".join(f"{f'[{name}]' if ':' in name else name}{f':{port}' if port else ''}"
                            for name, port in self.place.hosts)
        who = [*(["--id", self.place.user] if self.place.user else []), *(["-m", monitors] if monitors else [])]
        return run_program([tool, *who, *words], f"{purpose} in the pool {self.pool!r} of Ceph", limit)


@dataclass(frozen=True)
class RoomSeen:
    """A cached result of reading a Ceph pool's size and free space: the values, or the error. Without the cache, each
    read would wait for a cluster that does not respond."""

    pool: str
    at: float
    room: tuple[int, int]
    error: HypervisorError | None = None

    @classmethod
    def read(cls, pool: str, tools: RbdTools) -> RoomSeen:
        """Read the size and free space of *pool* with *tools*. Return them as a new ``RoomSeen``, which contains the
        error if the read failed."""
        try:
            return cls(pool, time.monotonic(), tools.room())
        except HypervisorError as error:
            return cls(pool, time.monotonic(), (0, 0), error)

    def is_good(self, pool: str) -> bool:
        """Return whether the cached values belong to *pool* and are at most a minute old."""
        return self.pool == pool and time.monotonic() < self.at + GOOD

    def total_and_free(self) -> tuple[int, int]:
        """Return the cached total and free bytes. Raises the cached ``HypervisorError`` if the read failed."""
        if self.error is not None:
            raise HypervisorError(self.error.message)
        return self.room
