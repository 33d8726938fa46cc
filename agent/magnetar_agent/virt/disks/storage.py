# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in libvirt's storage pools (LVM, RBD). The pools are the operator's: they are used, and never made.

Those of RBD that start by themselves (autostart) are started with each new connection to libvirt: it cannot look
whether they run (``storagePoolUpdateState``), so it takes them for stopped whenever it starts, and starts pools by
itself only once after each boot.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host import zeros
from magnetar_agent.host.storage import Disk, NetworkSource, PoolContent
from magnetar_agent.virt.tools.process import run
from magnetar_agent.virt.tools.templates import fill
from magnetar_core.errors import Conflict, HypervisorError, NoSpace

from .rbd import RbdTools, RoomSeen
from .rbd_export import exported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from magnetar_agent.host.storage import CephImage
    from magnetar_agent.virt.connection.pool import ConnectionPool

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Seconds between two tries to start a pool.
AGAIN = 20.0
#: What LVM's tools, file systems and libvirt say when there is no room.
_FULL = ("insufficient free space", "insufficient suitable", "not enough free space", "no space left on device")
#: The agent's unit may not speak to the device mapper; systemd starts what may.
_SYSTEMD = Path("/run/systemd/system")
_OUTSIDE = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=exec", "--")


class Storage:
    """The part of ``LocalHypervisor`` about storage pools."""

    connection: ConnectionPool
    templates: Path
    qemu_user: Callable[[], tuple[int, int]]
    _rbd_room: RoomSeen | None = None

    def start_pools(self, conn: Any) -> None:
        """virStoragePoolCreate, until all of RBD run, or the connection ends: after a power cut hosts are up before
        the cluster is."""
        wanted = (libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_RBD | libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_AUTOSTART |
                  libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_INACTIVE)
        said = ""
        try:
            while left := conn.listAllStoragePools(wanted):
                for pool in left:
                    name = pool.name()
                    try:
                        pool.create()
                        log.info("started the storage pool %s, which libvirt had taken for stopped", name)
                    except libvirt.libvirtError as error:
                        if said != str(error):
                            log.warning("the storage pool %s does not start: %s", name, said := str(error))
                        time.sleep(AGAIN)
        except libvirt.libvirtError:
            return  # the next connection begins anew

    def check_pool(self, pool: str) -> None:
        """virStoragePoolIsActive."""
        self._in(pool, "look", lambda _found: None)

    def contents(self, pool: str) -> dict[str, PoolContent]:
        """virStoragePoolListAllVolumes."""
        return self._in(pool, "list what is there", lambda found: {
            one.name(): _content(found, one) for one in found.listAllVolumes()})

    def content(self, pool: str, name: str) -> PoolContent | None:
        """virStorageVolLookupByName; virStoragePoolRefresh when it is not known."""
        def look(found: Any) -> PoolContent | None:
            there = _lookup(found, name)
            if there is None:
                found.refresh()
                there = _lookup(found, name)
            return None if there is None else _content(found, there)
        return self._in(pool, f"look for {name}", look)

    def make_content(self, pool: str, name: str, size: int) -> None:
        """virStorageVolCreateXML."""
        def make(found: Any) -> None:
            if _lookup(found, name) is not None:
                raise Conflict(f"The storage pool {pool!r} has content called {name} already.")
            found.createXML(fill("volume.xml.j2", {"name": name, "size": size}, self.templates))
        self._in(pool, f"make {name}", make, changes=True)

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """virStorageVolResize, and lvextend, since libvirt has no such thing for LVM."""
        def grow(found: Any) -> str | None:
            there = _lookup(found, name)
            if there is None:
                raise HypervisorError(f"The content {name} is gone from the storage pool {pool!r}. Restore it there.")
            try:
                if there.info()[1] < size:
                    there.resize(size)
                return None
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                    raise
            found.refresh()  # what lvextend did, libvirt does not know by itself
            there = _lookup(found, name)
            return str(there.path()) if there is not None and there.info()[1] < size else None
        path = self._in(pool, f"grow {name}", grow, changes=True)
        if path:
            _roomy(lambda: _extend(path, size))
            self._in(pool, "look again", lambda found: found.refresh())

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        """virStorageVolWipe, which knows no size, virStorageVolDelete."""
        def look(found: Any) -> str | None:
            there = _lookup(found, name)
            return None if there is None else str(there.path())

        def wipe_all(found: Any) -> None:
            there = _lookup(found, name)
            if there is not None:
                there.wipe(0)

        def remove(found: Any) -> None:
            there = _lookup(found, name)
            if there is not None:
                there.delete(0)

        if wipe == 0:
            self._in(pool, f"wipe {name}", wipe_all, wipes=True)
        elif wipe is not None and (path := self._in(pool, f"look for {name}", look)) is not None:
            _zero(Path(path), wipe)  # not within a call to libvirt, which others may wait for
        self._in(pool, f"remove {name}", remove, changes=True)

    def pool_room(self, pool: str) -> tuple[int, int]:
        """virStoragePoolGetInfo: as libvirt knows it since it last changed something there, or looked."""
        def look(found: Any) -> tuple[int, int]:
            _state, total, _used, free = found.info()
            return int(total), int(free)
        return self._in(pool, "look for room", look)

    def rbd_pool(self, pool: str) -> RbdTools:
        """Its place is what libvirt has of it, but for the key, which Ceph's tools read as qemu-img does."""
        return RbdTools(self._in(pool, "look", lambda found: rbd(found.XMLDesc(), "", found)))

    def export_image(self, image: CephImage) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """See ``rbd_export``."""
        return exported(image, self.qemu_user())

    def rbd_room(self, pool: str) -> tuple[int, int]:
        """``ceph df``, since libvirt tells of the whole cluster, copies of all that is stored included. A pool that
        does not run has none, whatever was seen before."""
        tools = self.rbd_pool(pool)
        if self._rbd_room is None or not self._rbd_room.is_good(pool):
            self._rbd_room = RoomSeen.look(pool, tools)
        return self._rbd_room.told()

    def _in(self, pool: str, what: str, function: Callable[[Any], T], changes: bool = False,
            wipes: bool = False) -> T:
        """Return the result of *function* on the pool, which must run. See ``ConnectionPool.ask_storage``."""
        def call(conn: Any) -> T:
            try:
                found = conn.storagePoolLookupByName(pool)
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
                    raise
                raise Conflict(f"libvirt has no storage pool {pool!r}. Define it on the host (virsh pool-define) and "
                               "start it, then repeat the call.") from None
            if not found.isActive():
                raise Conflict(f"The storage pool {pool!r} of libvirt does not run. Start it on the host "
                               f"(virsh pool-start {pool}), then repeat the call.")
            return function(found)
        return _roomy(lambda: self.connection.ask_storage(f"{what} in the storage pool {pool!r}", pool, call, changes,
                                                          wipes))


def _extend(path: str, size: int) -> None:
    words = ["lvextend", "--quiet", "--size", f"{size}b", "--", path]
    run([*_OUTSIDE, *words] if _SYSTEMD.is_dir() else words, f"grow the logical volume {path}")


def _zero(path: Path, size: int) -> None:
    """Overwrite the first *size* bytes, or as many as there are."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            zeros.write(descriptor, 0, min(size, zeros.size_of(descriptor)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HypervisorError(f"{path} cannot be overwritten: {error.strerror}. It is not removed.") from error


def _roomy(work: Callable[[], T]) -> T:
    """The result of *work*; an error about room is told as one."""
    try:
        return work()
    except HypervisorError as error:
        if any(words in error.message.lower() for words in _FULL):
            raise NoSpace(f"{error.message.rstrip('.')}. Free some, then repeat the call.") from None
        raise


def _lookup(pool: Any, name: str) -> Any:
    try:
        return pool.storageVolLookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_STORAGE_VOL:
            return None
        raise


def _content(pool: Any, volume: Any) -> PoolContent:
    kind, size, _allocated = volume.info()
    if kind == libvirt.VIR_STORAGE_VOL_NETWORK:
        place = rbd(pool.XMLDesc(), volume.name(), pool)
        return PoolContent(size, Disk(Path(place.name), "", "raw", remote=place))  # as in a definition
    path = Path(volume.path())  # of what is a link to a device in a folder, libvirt says that it is a file
    return PoolContent(size, Disk(path, "", "raw", block=kind == libvirt.VIR_STORAGE_VOL_BLOCK or
                                  path.is_block_device()))


def rbd(xml: str, name: str, pool: Any) -> NetworkSource:
    """How QEMU reaches the image *name* of a pool of type rbd, after the pool's *xml*."""
    source = ET.fromstring(xml).find("source")  # noqa: S314 (libvirt wrote it)
    if source is None or not source.findtext("name"):
        raise HypervisorError("The storage pool does not say where it is: its XML has no name of a Ceph pool.")
    auth = source.find("auth")
    secret = None if auth is None else auth.find("secret")
    uuid = None if secret is None else secret.get("uuid")
    if secret is not None and uuid is None:
        uuid = pool.connect().secretLookupByUsage(
            libvirt.VIR_SECRET_USAGE_TYPE_CEPH, secret.get("usage", "")).UUIDString()
    return NetworkSource("rbd", f"{source.findtext('name')}/{name}",
                  hosts=tuple((one.get("name", ""), one.get("port")) for one in source.findall("host")),
                  user=None if auth is None else auth.get("username"), secret=uuid)
