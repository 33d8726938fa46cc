# SPDX-License-Identifier: GPL-3.0-or-later
"""Bodies of ``POST /v1/server/{key}/guest``: commands for the guest agent of a server, the same for agents and clouds.

Each request is short, and may be repeated: a program has a key (``run_id``) and is never started twice, and a piece of
a file has its place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..fields import Field, Kind
from ..kinds.common import REQUEST
from ..values import Base64, Choices, Integer, ListOf, MapOf, Text, Value

#: The most bytes of a file in one request.
PIECE = 2**20
#: The most bytes of a program's input, and of a file in one question to a guest agent: with base64 they fit into
#: 64 KiB. libvirt (9.0) garbles a longer question when the socket's buffer is full, since it sends its beginning again.
INPUT = 45 * 2**10
#: The most seconds that a request waits for the end of a program.
LONGEST_WAIT = 20
#: Linux takes 128 KiB for one argument of a program, and 4,096 bytes for a path.
_ARGUMENT, _PATH = 2**17 - 1, 4095


def _without_nul(most: int, least: int = 0) -> Text:
    return Text(least, most, r"[^\x00]*", "must not have NUL characters")


PATH = Text(1, _PATH, r"/[^\x00]*", "must be an absolute path in the guest")


class GuestInfoArguments(Kind):
    """The arguments of ``info``: there are none."""


class RunProgramArguments(Kind):
    """The arguments of ``run``, which starts a program in the guest as the user of the guest agent, usually root."""

    path = Field(PATH, "The program.", required=True, sample="/bin/sh")
    arguments = Field(ListOf(_without_nul(_ARGUMENT), 64), "Its arguments.", default=[], secret=True)
    input = Field(Base64(INPUT * 4 // 3 + 4), "Its standard input, at most 45 KiB.", default="", secret=True)
    run_id = Field(REQUEST, "Key of the run: a repeated request with it does not start the program again.",
                   required=True)
    wait = Field(Integer(0, LONGEST_WAIT), "Seconds to wait for its end.", default=0)


class ProgramStatusArguments(Kind):
    """The arguments of ``status``, which returns the outcome of a program once. The guest agent then forgets the
    outcome.
    """

    pid = Field(Integer(1, 2**63 - 1), "The number that run returned.", required=True)
    wait = Field(Integer(0, LONGEST_WAIT), "Seconds to wait for its end.", default=0)


class ReadFileArguments(Kind):
    """The arguments of ``read_file``, which reads a piece of a file."""

    path = Field(PATH, "The file.", required=True)
    offset = Field(Integer(0, 2**53), "Where the piece begins, in bytes.", default=0)
    size = Field(Integer(1, PIECE), "The most bytes to read.", default=PIECE)


class WriteFileArguments(Kind):
    """The arguments of ``write_file``, which writes a piece into an existing file. This command creates no files,
    because every user of the guest could write to a file that the guest agent creates.
    """

    path = Field(PATH, "The file, which must exist.", required=True)
    offset = Field(Integer(0, 2**53), "Where the piece begins, in bytes.", default=0)
    content = Field(Base64(PIECE * 4 // 3 + 4), "The piece, at most 1 MiB.", required=True, secret=True)


#: The arguments of each command.
GUEST_COMMANDS: Mapping[str, type[Kind]] = {
    "info": GuestInfoArguments, "run": RunProgramArguments, "status": ProgramStatusArguments,
    "read_file": ReadFileArguments, "write_file": WriteFileArguments}


class GuestCommandRequest(Kind):
    """Body of ``POST /v1/server/{key}/guest``: a command for the guest agent of a running server."""

    noun, plural = "guest_command", "guest_commands"

    command = Field(Choices(*GUEST_COMMANDS), "The command.", required=True, sample="run")
    args = Field(MapOf(Text(1, 64), Value()), "Arguments of the command.", default={}, secret=True,
                 sample={"path": "/bin/uptime", "run_id": "uptime-1", "wait": 5})


def check_guest_command(body: Any) -> tuple[str, dict[str, Any]]:
    """Validate the *body* of a request for a guest command. Return the command, and its arguments with defaults for
    omitted ones. Raises ``InvalidField``.
    """
    sent = {**GuestCommandRequest.defaults(), **GuestCommandRequest.check(body)}
    rule = GUEST_COMMANDS[sent["command"]]
    return sent["command"], {**rule.defaults(), **rule.check(dict(sent["args"]))}


def printable_guest_text(text: str, most: int = 300) -> str:
    """Return *text*, which may come from an untrusted guest, for use in a message: one line without control characters.
    A line with more than *most* characters is cut to *most* characters, followed by ``...``."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:most * 4])
    line = " ".join(line.split())
    return line if len(line) <= most else line[:most] + "..."
