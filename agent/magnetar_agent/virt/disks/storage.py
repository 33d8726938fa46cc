# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in libvirt's storage pools (LVM, RBD). The operator creates the pools; the agent only uses them.

RBD pools with autostart are started with each new connection to libvirt. libvirt cannot check whether they run
(``storagePoolUpdateState``), so it considers them stopped after each start of its own, and autostarts pools only once
after each boot.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host import zeros
from magnetar_agent.host.storage import Disk, NetworkSource, PoolContent
from magnetar_agent.virt.tools.process import run_program
from magnetar_agent.virt.tools.templates import fill_template
from magnetar_core.errors import Conflict, HypervisorError, NoSpace

from .rbd import RbdTools, RoomSeen
from .rbd_export import exported_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from magnetar_agent.host.storage import CephImage
    from magnetar_agent.virt.connection.pool import ConnectionPool

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Seconds between two attempts to start a pool.
AGAIN = 20.0
#: Seconds for which the identity of a pool counts as unchanged.
IDENTITY_TTL = 600.0
#: Messages of LVM's tools, file systems and libvirt when there is no room.
_FULL = ("insufficient free space", "insufficient suitable", "not enough free space", "no space left on device")
#: The prefix for LVM's tools: the agent's unit may not use the device mapper, so systemd starts them in their own unit.
_SYSTEMD = Path("/run/systemd/system")
_OUTSIDE = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=exec", "--")


class Storage:
    """The methods of ``LocalHypervisor`` for libvirt storage pools."""

    connection: ConnectionPool
    templates: Path
    qemu_user: Callable[[], tuple[int, int]]
    _rbd_room: RoomSeen | None = None
    #: By pool, when its identity was read, and the identity.
    _identities: Mapping[str, tuple[float, str]] = MappingProxyType({})

    def start_pools(self, conn: Any) -> None:
        """Start stopped RBD storage pools with autostart, and retry until all run or the connection *conn* ends: after
        a power failure, a host may boot before the Ceph cluster is available."""
        flags = (libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_RBD | libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_AUTOSTART |
                 libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_INACTIVE)
        last_error = ""
        try:
            while stopped_pools := conn.listAllStoragePools(flags):
                for pool in stopped_pools:
                    name = pool.name()
                    try:
                        pool.create()
                        log.info("started the storage pool %s, which libvirt had taken for stopped", name)
                    except libvirt.libvirtError as error:
                        if last_error != str(error):
                            log.warning("the storage pool %s does not start: %s", name, last_error := str(error))
                        time.sleep(AGAIN)
        except libvirt.libvirtError:
            return  # the next connection begins again

    def check_pool(self, pool: str) -> None:
        """Raise ``Conflict`` if libvirt has no storage pool *pool* or the pool is not active."""
        self._in(pool, "look", lambda _found: None)

    def contents(self, pool: str) -> dict[str, PoolContent]:
        """Return ``{name: volume}`` of all volumes in the storage pool *pool*."""
        return self._in(pool, "list what is there", lambda storage_pool: {
            volume.name(): _content(storage_pool, volume) for volume in storage_pool.listAllVolumes()})

    def content(self, pool: str, name: str) -> PoolContent | None:
        """Return the volume *name* in the storage pool *pool*; ``None`` if there is none. Refreshes the pool first if
        libvirt does not know the volume."""
        def look(storage_pool: Any) -> PoolContent | None:
            volume = _lookup(storage_pool, name)
            if volume is None:
                storage_pool.refresh()
                volume = _lookup(storage_pool, name)
            return None if volume is None else _content(storage_pool, volume)
        return self._in(pool, f"look for {name}", look)

    def make_content(self, pool: str, name: str, size: int) -> None:
        """Create the raw volume *name* of *size* bytes in the storage pool *pool*. Raises ``Conflict`` if it exists."""
        def make(storage_pool: Any) -> None:
            if _lookup(storage_pool, name) is not None:
                raise Conflict(f"The storage pool {pool!r} has content called {name} already.")
            storage_pool.createXML(fill_template("volume.xml.j2", {"name": name, "size": size}, self.templates))
        self._in(pool, f"make {name}", make, changes=True)

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """Grow the volume *name* in the storage pool *pool* to *size* bytes. For LVM this runs lvextend, because
        libvirt cannot resize logical volumes."""
        def grow(storage_pool: Any) -> str | None:
            volume = _lookup(storage_pool, name)
            if volume is None:
                raise HypervisorError(f"The content {name} is gone from the storage pool {pool!r}. Restore it there.")
            try:
                if volume.info()[1] < size:
                    volume.resize(size)
                return None
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                    raise
            storage_pool.refresh()  # libvirt does not notice lvextend by itself
            volume = _lookup(storage_pool, name)
            return str(volume.path()) if volume is not None and volume.info()[1] < size else None
        path = self._in(pool, f"grow {name}", grow, changes=True)
        if path:
            _roomy(lambda: _extend(path, size))
            self._in(pool, "look again", lambda storage_pool: storage_pool.refresh())

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        """Erase and remove the volume *name* in the storage pool *pool*. *wipe*: number of bytes at the beginning to
        erase; 0 for the whole volume; ``None`` to erase nothing. A missing volume is ignored."""
        def look(storage_pool: Any) -> str | None:
            volume = _lookup(storage_pool, name)
            return None if volume is None else str(volume.path())

        def wipe_all(storage_pool: Any) -> None:
            volume = _lookup(storage_pool, name)
            if volume is not None:
                volume.wipe(0)

        def remove(storage_pool: Any) -> None:
            volume = _lookup(storage_pool, name)
            if volume is not None:
                volume.delete(0)

        if wipe == 0:
            self._in(pool, f"wipe {name}", wipe_all, wipes=True)
        elif wipe is not None and (path := self._in(pool, f"look for {name}", look)) is not None:
            _zero(Path(path), wipe)  # outside of a call to libvirt, which other callers may wait for
        self._in(pool, f"remove {name}", remove, changes=True)

    def pool_room(self, pool: str) -> tuple[int, int]:
        """Return the total and the free bytes of the storage pool *pool*, as of libvirt's last change or refresh of the
        pool."""
        def look(storage_pool: Any) -> tuple[int, int]:
            _state, total, _used, free = storage_pool.info()
            return int(total), int(free)
        return self._in(pool, "look for room", look)

    def rbd_pool(self, pool: str) -> RbdTools:
        """Return the Ceph pool that libvirt's storage pool *pool* refers to. The Ceph programs read the key from
        ``/etc/ceph``."""
        return RbdTools(self._in(pool, "look", lambda storage_pool: rbd_source(storage_pool.XMLDesc(), "",
                                                                               storage_pool)))

    def pool_identity(self, pool: str) -> str:
        """Return a text that is equal on all hosts with the same storage: Ceph's FSID/POOL, or the uuid of the LVM
        volume group. Cached for ``IDENTITY_TTL`` seconds, because reading it starts a process."""
        known = self._identities.get(pool)
        if known is None or time.monotonic() > known[0] + IDENTITY_TTL:
            kind, group = self._in(pool, "look", lambda storage_pool: _type_and_source(storage_pool.XMLDesc()))
            identity = self.rbd_pool(pool).identity() if kind == "rbd" else _group_uuid(group)
            self._identities = {**self._identities, pool: (known := (time.monotonic(), identity))}
        return known[1]

    def export_image(self, image: CephImage) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Return a context manager that yields the size in bytes and the content, in chunks, of an RBD image; see
        ``rbd_export``."""
        return exported_image(image, self.qemu_user())

    def rbd_room(self, pool: str) -> tuple[int, int]:
        """Return the total and the free bytes of the Ceph pool behind *pool*, from ``ceph df``: libvirt reports the
        whole cluster with all replicas. Raises ``Conflict`` if the storage pool is not active."""
        tools = self.rbd_pool(pool)
        if self._rbd_room is None or not self._rbd_room.is_good(pool):
            self._rbd_room = RoomSeen.read(pool, tools)
        return self._rbd_room.total_and_free()

    def _in(self, pool: str, purpose: str, function: Callable[[Any], T], changes: bool = False,
            wipes: bool = False) -> T:
        """Call *function* with libvirt's storage pool *pool*, and return its result. *purpose*, *changes*, *wipes*: see
        ``ConnectionPool.ask_storage``. Raises ``Conflict`` if there is no such pool or it is not active, and
        ``NoSpace`` if it is full."""
        def call(conn: Any) -> T:
            try:
                storage_pool = conn.storagePoolLookupByName(pool)
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
                    raise
                raise Conflict(f"libvirt has no storage pool {pool!r}. Define it on the host (virsh pool-define) and "
                               "start it, then repeat the call.") from None
            if not storage_pool.isActive():
                raise Conflict(f"The storage pool {pool!r} of libvirt does not run. Start it on the host "
                               f"(virsh pool-start {pool}), then repeat the call.")
            return function(storage_pool)
        return _roomy(lambda: self.connection.ask_storage(f"{purpose} in the storage pool {pool!r}", pool, call,
                                                          changes, wipes))


def _extend(path: str, size: int) -> None:
    words = ["lvextend", "--quiet", "--size", f"{size}b", "--", path]
    run_program([*_OUTSIDE, *words] if _SYSTEMD.is_dir() else words, f"grow the logical volume {path}")


def _type_and_source(xml: str) -> tuple[str, str]:
    """Return the type of a libvirt storage pool (such as rbd) and the name of its source (Ceph pool or volume group).
    *xml*: the pool's XML."""
    pool = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    return pool.get("type", ""), pool.findtext("source/name") or pool.findtext("name") or ""


def _group_uuid(group: str) -> str:
    """Return the uuid of the LVM volume group named *group*."""
    words = ["vgs", "--noheadings", "--options", "vg_uuid", "--", group]
    return run_program([*_OUTSIDE, *words] if _SYSTEMD.is_dir() else words,
                       f"read the uuid of the volume group {group}").strip()


def _zero(path: Path, size: int) -> None:
    """Overwrite the first *size* bytes of the volume at *path* with zeros; the whole volume if it is smaller."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            zeros.write_zeros(descriptor, 0, min(size, zeros.open_file_size(descriptor)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HypervisorError(f"{path} cannot be overwritten: {error.strerror}. It is not removed.") from error


def _roomy(work: Callable[[], T]) -> T:
    """Return the result of *work*. If it raises ``HypervisorError`` about a lack of space, raise ``NoSpace`` instead.
    """
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
        place = rbd_source(pool.XMLDesc(), volume.name(), pool)
        return PoolContent(size, Disk(Path(place.name), "", "raw", remote=place))  # as in a definition
    path = Path(volume.path())  # for a link to a device in a folder, libvirt reports a file
    return PoolContent(size, Disk(path, "", "raw", block_device=kind == libvirt.VIR_STORAGE_VOL_BLOCK or
                                  path.is_block_device()))


def rbd_source(xml: str, name: str, pool: Any) -> NetworkSource:
    """Return the network source of the RBD image *name* for QEMU. *xml*: the XML of the libvirt storage pool *pool*,
    which has the type rbd."""
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
                  hosts=tuple((host.get("name", ""), host.get("port")) for host in source.findall("host")),
                  user=None if auth is None else auth.get("username"), secret=uuid)
