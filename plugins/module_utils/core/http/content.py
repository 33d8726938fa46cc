# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of a resource, piece by piece: from an agent on a connection of its own, or of a file."""

from __future__ import annotations

import http.client
import os
import socket
import time
from typing import Any, BinaryIO, Callable, Iterator, Optional, Union

from ..errors import InvalidField, MagnetarError, Unreachable

PIECE = 1 << 20
#: Seconds within which something must come.
SILENCE = 60.0


def received(connect: Callable[[], http.client.HTTPConnection], target: str, headers: dict[str, str],
             refused: Callable[[int, bytes], Any], unreachable: Callable[[Exception, bool], MagnetarError],
             ) -> tuple[Iterator[bytes], int]:
    """The pieces and their size as a whole; see ``Client.receive``."""
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
    left = size
    try:
        while left:
            piece = response.read(min(PIECE, left))
            if not piece:
                raise Unreachable("The agent ended the connection after %d of %d bytes. Ask again."
                                  % (size - left, size))
            left -= len(piece)
            yield piece
    except (OSError, socket.timeout, http.client.HTTPException) as error:
        raise unreachable(error, True) from None
    finally:
        connection.close()


def sent(path: Union[str, os.PathLike[str]], progress: Optional[Callable[[dict[str, Any]], None]], deadline: float,
         send: Callable[[Iterator[bytes], int], dict[str, Any]]) -> dict[str, Any]:
    """Send the file at *path* by *send*, from its beginning each time: where others are sending too much, as often as
    the answer says when to ask again, until *deadline*. Raises ``InvalidField``, and what *send* raises."""
    while True:
        try:
            with open(path, "rb") as stream:
                total = os.fstat(stream.fileno()).st_size
                return send(of_file(stream, total, progress), total)
        except OSError as error:
            raise InvalidField("filename", "cannot be read: %s" % error.strerror, str(path)) from None
        except MagnetarError as error:
            pause = error.retry_after
            if pause is None or not error.again or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)


def of_file(stream: BinaryIO, total: int, progress: Optional[Callable[[dict[str, Any]], None]]) -> Iterator[bytes]:
    """What is in a file of *total* bytes; *progress* is told how far it is."""
    done = 0
    while True:
        piece = stream.read(PIECE)
        if not piece:
            return
        yield piece
        done += len(piece)
        if progress:
            progress({"phase": "upload", "done": done, "total": total, "unit": "bytes"})
