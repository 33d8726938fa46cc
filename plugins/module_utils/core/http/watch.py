# SPDX-License-Identifier: GPL-3.0-or-later
"""The client's side of an agent's stream of events: server-sent events (HTML standard) over a separate connection."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence

from ..errors import MagnetarError, Unreachable

if TYPE_CHECKING:
    Events = Iterator[tuple[str, dict[str, Any]]]

#: Missed heartbeats after which an agent counts as unreachable.
HEARTBEATS = 3


def follow_events(connect: Callable[[], http.client.HTTPConnection], headers: dict[str, str],
                  refused: Callable[[int, bytes], Any], unreachable: Callable[[Exception, bool], MagnetarError],
                  interval: float, timeout: Optional[float], events: Sequence[str] = ()) -> Events:
    """Yield ``(event, document)`` from an agent until it closes the connection, as ``Client.watch`` describes.
    *connect*, *refused*, *unreachable*: as in ``receive_content``.
    """
    silence = timeout or HEARTBEATS * interval
    query = "interval=%s" % interval + ("&events=" + ",".join(events) if events else "")
    yield from follow_stream(connect, "/v1/watch?" + query, headers, refused, unreachable, silence)


def follow_stream(connect: Callable[[], http.client.HTTPConnection], target: str, headers: dict[str, str],
                  refused: Callable[[int, bytes], Any], unreachable: Callable[[Exception, bool], MagnetarError],
                  silence: float) -> Events:
    """Yield ``(event, document)`` of the stream at *target*, a path with its query, until the server closes it.
    *silence*: seconds without anything after which the server counts as unreachable. Other parameters: as for
    ``follow_events``.
    """
    connection = None
    try:
        connection = connect()
        connection.sock.settimeout(silence)
        connection.request("GET", target, None, headers)
        response = connection.getresponse()
        if response.status != 200:
            refused(response.status, response.read())
        yield from parse_events(response)
    except (socket.timeout, TimeoutError) as error:
        if connection is None:
            raise unreachable(error, False) from None
        raise silent_agent_error(silence) from None
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(error, connection is not None) from None
    finally:
        if connection is not None:
            connection.close()


def parse_events(stream: Any) -> Events:
    """Yield the server-sent events in *stream* (an object with ``readline``) as (name, decoded JSON data). Unknown
    fields are ignored.
    """
    event, data = "message", []
    while True:
        line = stream.readline()
        if not line:
            return
        name, _colon, value = line.decode("utf-8").rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif not name and not value:
            if data:
                yield event, json.loads("\n".join(data))
            event, data = "message", []


def silent_agent_error(silence: float) -> Unreachable:
    """Return the error for an agent that sent nothing for *silence* seconds."""
    return Unreachable("The agent has sent nothing for %g s, not even a heartbeat: it hangs, or the network between is "
                       "cut. Watch again; see `journalctl -u magnetar-agent` there." % silence)
