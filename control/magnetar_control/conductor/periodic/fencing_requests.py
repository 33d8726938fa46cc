# SPDX-License-Identifier: GPL-3.0-or-later
"""The work on administrators' requests to fence or unfence hosts, each in a thread of its own, since a fence agent may
take minutes."""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.store.hosts import fencings
from magnetar_control.store.hosts.fencing_requests import (
    FencingRequest,
    end_fencing_request,
    expiry_error,
    fetch_open_fencing_requests,
)
from magnetar_core.errors import FencingFailed, MagnetarError

log = logging.getLogger(__name__)
#: Seconds between two looks at the requests, and the number of requests that are served at the same time.
POLL_INTERVAL, MOST = 1.0, 16


class FencingRequests:
    """The threads of one conductor that process administrators' requests to fence or unfence hosts."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self.threads: dict[str, threading.Thread] = {}

    def serve_requests(self) -> bool:
        """Start threads for the open fencing requests of the conductor's cell, and return whether there are open
        requests."""
        with self.conductor.store.api.read() as connection:
            requests = fetch_open_fencing_requests(connection, self.conductor.cell.id)
        self.threads = {id: thread for id, thread in self.threads.items() if thread.is_alive()}
        for request in requests:
            if request.id not in self.threads and len(self.threads) < MOST:
                thread = threading.Thread(target=self.serve, args=(request,), daemon=True,
                                          name=f"fencing {request.host}")
                self.threads[request.id] = thread
                thread.start()
        return bool(requests)

    def serve(self, request: FencingRequest) -> None:
        """Fence or unfence the host of *request*, and end the request. The request stays open, and is tried again
        later, while another thread or conductor fences or unfences the host, or the database does not answer."""
        try:
            if self._is_busy(request):
                return
            error = self._try(request)
            with self.conductor.store.api.write() as connection:
                end_fencing_request(connection, request, error)
        except DBAPIError as failure:
            log.warning("request to fence or unfence host %s: %s", request.host, failure.orig)

    def _is_busy(self, request: FencingRequest) -> bool:
        """Return whether another thread or conductor fences or unfences the host of *request*, so that the request must
        wait."""
        with self.conductor.store.api.read() as connection:
            fencing = fencings.fetch_fencing_row(connection, request.host)
        return fencing is not None and fencing.busy and not request.expired

    def _try(self, request: FencingRequest) -> MagnetarError | None:
        """Fence or unfence the host of *request*, unless that is already done. Return the error if it fails, otherwise
        ``None``."""
        store, host = self.conductor.store, request.host
        try:
            if request.expired:
                raise expiry_error(request)
            with store.api.read() as connection:
                fencing = fencings.fetch_fencing_row(connection, host)
            service = HostFencing(store, self.conductor.settings)
            if request.fence:
                service.fence_host(host, request.requested_by, confirmed=request.confirmed)
            elif fencing is not None and fencing.state != fencings.UNFENCED:
                service.unfence_host(host, request.requested_by, confirmed=request.confirmed)
        except MagnetarError as error:
            return error
        except DBAPIError:
            raise
        except Exception as error:
            log.exception("request to fence or unfence host %s failed", host)
            return FencingFailed(f"The conductor failed ({type(error).__name__}); its log says why. Look at the host, "
                                 "and repeat this.")
        return None
