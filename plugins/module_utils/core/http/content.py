# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer of a resource's content, such as that of an image, in pieces: receive it from an agent over a separate
connection, or read it from a file.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
from typing import Any, BinaryIO, Callable, Iterator, Optional, Union

from ..errors import InvalidField, MagnetarError, Unreachable

PIECE = 1 << 20
#: Maximum seconds without data from the server.
SILENCE = 60.0


def receive_content(connect: Callable[[], http.client.HTTPConnection], target: str, headers: dict[str, str],
                    refused: Callable[[int, bytes], Any], unreachable: Callable[[Exception, bool], MagnetarError],
                    ) -> tuple[Iterator[bytes], int]:
    """Send ``GET`` for the route *target* over a new connection; return an iterator over the content in pieces, and its
    size in bytes. *connect*: returns an open connection. *refused*: called with status and body of a response other
    than 200; raises the error. *unreachable*: called with an exception and whether the connection was open; returns the
    error to raise.
    """
    connection = None
    try:
        connection = connect()
        connection.sock.settimeout(SILENCE)
        connection.request("GET", target, None, headers)
        response = connection.getresponse()
        if response.status != 200:
            refused(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        if connection is not None:
            connection.close()
        raise unreachable(error, connection is not None) from None
    except MagnetarError:
        if connection is not None:
            connection.close()
        raise
    size = int(response.headers["content-length"])
    return _pieces(connection, response, size, unreachable), size


def _pieces(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, size: int,
            unreachable: Callable[[Exception, bool], MagnetarError]) -> Iterator[bytes]:
    remaining = size
    try:
        while remaining:
            piece = response.read(min(PIECE, remaining))
            if not piece:
                raise Unreachable("The agent ended the connection after %d of %d bytes. Ask again."
                                  % (size - remaining, size))
            remaining -= len(piece)
            yield piece
    except (OSError, socket.timeout, http.client.HTTPException) as error:
        raise unreachable(error, True) from None
    finally:
        connection.close()


def upload_file(path: Union[str, os.PathLike[str]], progress: Optional[Callable[[dict[str, Any]], None]],
                deadline: float, send: Callable[[Iterator[bytes], int], dict[str, Any]]) -> dict[str, Any]:
    """Send the file at *path* with the function *send* (called with pieces and size), and return its result. If the
    server has too many uploads, repeat after the time that the server names, until *deadline* (monotonic clock).
    *progress*: called with the progress of the upload. Raises ``InvalidField`` for an unreadable file, and the errors
    of *send*.
    """
    while True:
        try:
            with open(path, "rb") as stream:
                total = os.fstat(stream.fileno()).st_size
                return send(file_pieces(stream, total, progress), total)
        except OSError as error:
            raise InvalidField("filename", "cannot be read: %s" % error.strerror, str(path)) from None
        except MagnetarError as error:
            pause = error.retry_after
            if pause is None or not error.again or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)


def file_pieces(stream: BinaryIO, total: int, progress: Optional[Callable[[dict[str, Any]], None]]) -> Iterator[bytes]:
    """Yield the content of *stream*, a file of *total* bytes, in pieces. *progress*: called with a mapping of ``done``
    and ``total`` bytes after each piece.
    """
    done = 0
    while True:
        piece = stream.read(PIECE)
        if not piece:
            return
        yield piece
        done += len(piece)
        if progress:
            progress({"phase": "upload", "done": done, "total": total, "unit": "bytes"})
