# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests of administrators to fence or unfence hosts. The API writes a request, and a conductor of the host's cell,
which has the power devices in its settings, serves it. A request without an end is served again after a crash."""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, delete, update

from magnetar_control.store.engine.database import INSERT, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import fencing_requests, hosts
from magnetar_core.errors import Conflict, FencingFailed, MagnetarError, error_from_dict

#: Seconds after which a request that no conductor has served is over, so that it cannot cut a host's power much later.
EXPIRES = 600.0


class FencingRequest(SelectedRow):
    """A row of the table ``fencing_requests``: an operator's request to fence or unfence a host."""

    host: str
    id: str
    fence: bool
    confirmed: bool
    requested_by: str
    requested_at: str
    ended_at: str | None
    error_code: str | None
    error: str | None

    @property
    def expired(self) -> bool:
        """Whether the request has not ended, but is too old to be executed."""
        return self.ended_at is None and self.requested_at < utc_now(-EXPIRES)

    @property
    def failure(self) -> MagnetarError | None:
        """The error with which the request failed; ``None`` if it did not fail."""
        return error_from_dict({"code": self.error_code, "message": self.error}) if self.error else None


_REQUEST = FencingRequest.selection(fencing_requests)


def begin_fencing_request(connection: Connection, host: str, by: str, *, fence: bool, confirmed: bool) -> str:
    """Insert a request to fence or unfence the host, and return the request's id. If an equal request is open, return
    the id of that request. Raises ``Conflict`` while a different request for the host is open. *by*: the user. *fence*:
    false to unfence. *confirmed*: whether the user has switched the host off by hand."""
    last = fetch_fencing_request(connection, host, lock=True)
    if last is not None and last.ended_at is None and not last.expired:
        if (last.fence, last.confirmed) == (fence, confirmed):
            return last.id
        raise Conflict(f"{last.requested_by} has requested at {last.requested_at[:19]} that host {host} is "
                       f"{'fenced' if last.fence else 'unfenced'}, and that is not done yet. Repeat this afterwards.")
    values = {"id": str(uuid.uuid4()), "fence": fence, "confirmed": confirmed, "requested_by": by,
              "requested_at": utc_now(), "ended_at": None, "error_code": None, "error": None}
    connection.execute(INSERT[connection.dialect.name](fencing_requests).values(
        host=host, **values).on_conflict_do_update(index_elements=["host"], set_=values))
    return str(values["id"])


def fetch_fencing_request(connection: Connection, host: str, *, lock: bool = False) -> FencingRequest | None:
    """Return the last fencing request for a host; ``None`` if there was none. *lock*: lock the row until the
    transaction ends."""
    query = _REQUEST.where(fencing_requests.c.host == host)
    return FencingRequest.optional(connection.execute(query.with_for_update() if lock else query).one_or_none())


def fetch_open_fencing_requests(connection: Connection, cell_id: str) -> list[FencingRequest]:
    """Return the open requests for the hosts of a cell, ordered by host."""
    return FencingRequest.several(connection.execute(_REQUEST.join(
        hosts, hosts.c.name == fencing_requests.c.host).where(
            hosts.c.cell_id == cell_id, fencing_requests.c.ended_at.is_(None)).order_by(fencing_requests.c.host)))


def end_fencing_request(connection: Connection, request: FencingRequest, error: MagnetarError | None = None) -> None:
    """Record that a request has ended, with *error* if it failed. Does nothing if the request has already ended, or a
    later request has replaced it."""
    connection.execute(update(fencing_requests).where(
        fencing_requests.c.host == request.host, fencing_requests.c.id == request.id,
        fencing_requests.c.ended_at.is_(None)).values(
            ended_at=utc_now(), error_code=error and error.code, error=error and error.message))


def expiry_error(request: FencingRequest) -> FencingFailed:
    """Return the error for a request that no conductor has executed in time."""
    return FencingFailed(f"No conductor has {'fenced' if request.fence else 'unfenced'} host {request.host} within "
                         f"{EXPIRES:g} seconds. Start a conductor of the host's cell, and repeat this.")


def remove_fencing_request(connection: Connection, host: str) -> None:
    """Remove the request for a host that is being deleted from the cloud."""
    connection.execute(delete(fencing_requests).where(fencing_requests.c.host == host))
