# SPDX-License-Identifier: GPL-3.0-or-later
"""Fencing of hosts: switch a host off by its fence agent, confirm that, and keep the host down until it is unfenced.

The row of the fencing is written before the agent runs, so a crash leaves it ``requested``, and any fencing may be
repeated. docs/explanation/evacuation.md has the rules."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import Connection, select

from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import migrations as table
from magnetar_control.store.hosts import fencings, hosts
from magnetar_control.store.hosts.fencings import FencingRow
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.servers.migrations import ENDED, EVACUATION
from magnetar_control.store.store import Store
from magnetar_core.errors import Conflict, FencingFailed, InvalidRequest, MagnetarError, NotFound

from .fence_agents import OFF, ON, host_power, longest_fencing, switch_host
from .fence_devices import FenceDevice, fence_devices

#: The agent of a fencing that an administrator has confirmed instead of a fence agent.
BY_HAND = "by hand"
#: Seconds for which a confirmed fencing is believed without asking the fence agent again; seconds for an attempt
#: without an agent.
CONFIRMED, WITHOUT_AGENT = 30.0, 10.0


class HostStatus(NamedTuple):
    """The last fencing of a host, and the host's power state. ``agent``: the name of the host's fence agent; ``None``
    for a host without a power device. ``power``: ``on``, ``off``, or ``None`` if unknown. ``problem``: the reason why
    the fence agent could not report the power state, otherwise ""."""

    host: str
    agent: str | None
    fencing: FencingRow | None
    power: str | None
    problem: str = ""

    @property
    def contradicts(self) -> bool:
        """Whether the host is on although its last fencing has switched it off."""
        return self.power == ON and self.fencing is not None and self.fencing.state == fencings.FENCED


class HostFencing:
    """The fencing of hosts: the methods switch hosts off and on with the power devices in *settings*, and record this
    in the database."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.devices = store, fence_devices(settings)

    def fence_host(self, host: str, by: str, *, confirmed: bool = False) -> FencingRow:
        """Switch a host off, and make sure that it counts as disabled and down until it is unfenced. *by*: the
        requester, as a text. *confirmed*: the host was switched off by hand, so no fence agent is run. Raises
        ``FencingFailed``, ``Conflict``, ``InvalidRequest``, ``NotFound``."""
        self._find_host(host)
        device = None if confirmed else self.devices.get(host)
        if device is None and not confirmed:
            raise InvalidRequest(f"Host {host} has no power device in the setting fencing. Add one; or switch the host "
                                 f"off by hand, and then run `magnetar host fence {host} --confirmed`.")
        with self._attempt(host, device, by, to_fence=True) as attempt:
            if device is not None:
                switch_host(device, OFF)
            how = "Switched off by hand, as confirmed" if device is None else f"Switched off by {device.agent}"
            message = f"Fenced at {utc_now()[:19]} for {by}. {how}. Use it again with: magnetar host unfence {host}"
            self._write(lambda connection: fencings.hold_fenced_host(connection, host, attempt, message), host)
        return self._fetch(host)

    def unfence_host(self, host: str, by: str, *, confirmed: bool = False) -> FencingRow:
        """Switch a fenced host on, and restore the status that it had before. *by*: the requester, as a text.
        *confirmed*: an administrator switches the host on by hand, so no fence agent is run. Raises ``FencingFailed``,
        ``Conflict``, ``InvalidRequest``, ``NotFound``."""
        row = self._find_host(host)
        fencing = self._find_fencing(host)
        if fencing is None or fencing.state == fencings.UNFENCED:
            raise InvalidRequest(f"Host {host} is not fenced. `magnetar host fence-status` lists the fenced hosts.")
        device = None if confirmed or fencing.agent == BY_HAND else self.devices.get(host)
        with self._attempt(host, device, by, to_fence=False) as attempt:
            self._check_no_evacuation(row)
            if device is not None:
                switch_host(device, ON)
            how = f"Switched on by {device.agent}" if device else "To be switched on by hand"
            message = f"Unfenced at {utc_now()[:19]} for {by}. {how}."
            self._write(lambda connection: fencings.release_fenced_host(connection, host, attempt, message), host)
        return self._fetch(host)

    def confirm_fenced(self, host: str, by: str, since: str, *, answers: bool) -> bool:
        """Return ``True`` if servers may be evacuated from *host*, because the host has no power device or is certainly
        off. If the host has a power device and is not known to be off, fence the host first. Return ``False`` while
        another process switches the host off or on.

        *by*: the requester, to be saved with the fencing. *since*: if an attempt to fence the host has failed after
        this time, raise the error of that attempt instead of making a new one. *answers*: whether the host's agent
        answers. Raises ``FencingFailed``, also if the agent answers although an administrator has confirmed that the
        host is off.
        """
        fencing, device = self._find_fencing(host), self.devices.get(host)
        if fencing is not None and fencing.busy:
            return False
        if fencing is not None and fencing.state == fencings.FENCED and fencing.agent == BY_HAND:
            if answers:
                raise FencingFailed(f"Host {host} was confirmed to be switched off by hand, but its agent answers. "
                                    f"Switch it off, and run `magnetar host fence {host}` again.")
            return True
        if device is None:
            return True
        if fencing is not None and fencing.state == fencings.FENCED and (fencing.confirmed_at or "") > utc_now(
                -CONFIRMED):
            return True
        if fencing is not None and fencing.state == fencings.FAILED and (fencing.ended_at or "") > since:
            raise FencingFailed(fencing.message)
        self.fence_host(host, by)
        return True

    def check_known_off(self, host: str, volumes: Sequence[str], *, disks: bool = False,
                        fences_itself: bool = False) -> None:
        """Raise ``Conflict`` if a guest on the host may still write to data of the server, because the host is not
        known to be off. A host is known to be off if it was fenced, confirmed to be off (``host fence --confirmed``),
        forced down or removed.

        *volumes*: uuids of volumes to which a guest on the host can still write. *disks*: whether the guest can also
        write to the server's own disks, because these are on shared storage. Without *volumes* and *disks*, raise
        nothing. *fences_itself*: also raise nothing for a host with a power device, because the evacuation fences such
        a host first.
        """
        if not (volumes or disks) or (fences_itself and host in self.devices):
            return
        fencing = self._find_fencing(host)
        with self.store.api.read() as connection:
            row = hosts.fetch_host_row(connection, host)
        if row is None or row.forced_down or (fencing is not None and fencing.state == fencings.FENCED):
            return
        place = f"Volume {volumes[0]} of the server lies in a pool" if volumes else (
            "The disks of the server lie on storage")
        raise Conflict(f"{place} that several hosts reach, so a guest on host {host} can still write to "
                       f"{'it' if volumes else 'them'}: only when the host is known to be off can the server be "
                       f"evacuated. Fence it with `magnetar host fence {host}`; without a power device, switch it off "
                       "by hand, and add --confirmed.")

    def is_forced_down(self, host: str) -> bool:
        """Return whether an administrator has forced the host down. Raises ``NotFound``."""
        return self._find_host(host).forced_down

    def host_statuses(self, host: str | None = None) -> list[HostStatus]:
        """Return the status of *host*; by default of all hosts that have a power device or were fenced. Runs the fence
        agents to get the power states. Raises ``NotFound``."""
        if host is not None:
            self._find_host(host)
        with self.store.api.read() as connection:
            rows = {row.host: row for row in fencings.fetch_fencing_rows(connection)}
        return [self._status_of(name, rows.get(name))
                for name in ([host] if host is not None else sorted({*rows, *self.devices}))]

    def _status_of(self, host: str, fencing: FencingRow | None) -> HostStatus:
        device = self.devices.get(host)
        if device is None:
            return HostStatus(host, None, fencing, None)
        try:
            return HostStatus(host, device.agent, fencing, host_power(device))
        except MagnetarError as error:
            return HostStatus(host, device.agent, fencing, None, error.message)

    @contextmanager
    def _attempt(self, host: str, device: FenceDevice | None, by: str, *, to_fence: bool) -> Iterator[str]:
        """Record that an attempt to switch the host off (*to_fence*) or on begins, and yield the id of the attempt. If
        the ``with`` block raises an error, save its message; with *to_fence*, also set the fencing's state to failed.
        If this process crashes, another attempt may begin once the longest possible duration of this attempt is over.
        *device*: ``None`` if the host is switched by hand. *by*: the requester. Raises ``Conflict`` while another
        process switches the host off or on."""
        attempt = str(uuid.uuid4())
        with self.store.api.write() as connection:
            if not fencings.claim_fencing(
                    connection, host, attempt, agent=device.agent if device else BY_HAND, by=by, to_fence=to_fence,
                    seconds=longest_fencing(device) if device else WITHOUT_AGENT):
                row = fencings.fetch_fencing_row(connection, host)
                until = (row.busy_until or "")[:19] if row else ""
                raise Conflict(f"Host {host} is being switched by another process until {until} at the latest. Wait "
                               "for its end; if that process has died, repeat this after that time.")
        try:
            yield attempt
        except BaseException as error:
            columns = {"message": f"Interrupted ({type(error).__name__})."}
            if isinstance(error, MagnetarError):
                columns = {"message": error.message, **({"state": fencings.FAILED} if to_fence else {})}
            with self.store.api.write() as connection:
                fencings.end_fencing(connection, host, attempt, ended_at=utc_now(), **columns)
            raise

    def _write(self, write: Callable[[Connection], bool], host: str) -> None:
        with self.store.api.write() as connection:
            if not write(connection):
                raise Conflict(f"Another process has switched host {host} meanwhile, or removed it. See `magnetar host "
                               f"fence-status {host}`, and repeat this.")

    def _find_host(self, host: str) -> HostRow:
        with self.store.api.read() as connection:
            row = hosts.fetch_host_row(connection, host)
        if row is None or row.name != host:
            raise NotFound(f"There is no host {host} in the cloud. `openstack compute service list` lists the hosts.")
        return row

    def _find_fencing(self, host: str) -> FencingRow | None:
        with self.store.api.read() as connection:
            return fencings.fetch_fencing_row(connection, host)

    def _fetch(self, host: str) -> FencingRow:
        row = self._find_fencing(host)
        if row is None:
            raise NotFound(f"Host {host} was removed from the cloud meanwhile.")
        return row

    def _check_no_evacuation(self, row: HostRow) -> None:
        """Raise ``Conflict`` while a server is being evacuated from the host: if the host were switched on now, the
        server's guest could start on this host as well as on its new host."""
        with self.store.cell(row.cell_id).read() as connection:
            open_one = connection.execute(select(table.c.server_id).where(
                table.c.source == row.name, table.c.type == EVACUATION, table.c.status.not_in(ENDED)).limit(1)).scalar()
        if open_one:
            raise Conflict(f"Host {row.name} stays off: server {open_one} is being evacuated from it. Repeat this when "
                           "`openstack server migration list --type evacuation` shows no open evacuation.")
