# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of OVN's databases are read in C.

The parser of ``ovs`` looks at each character in Python, where its module in C was not built. That is most of
the CPU of a change and of the first copy of a large database, and other threads wait for it.
"""

from __future__ import annotations

import re
from typing import Any, Self

import orjson
import ovs.json

#: What says where a message ends: strings as a whole, and braces outside of them. A string may go on in the next piece,
#: from a backslash on.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|(?P<open>\\?)\Z)|[{}]', re.DOTALL)


class MessageParser(ovs.json.Parser):  # type: ignore[misc]
    """Takes the text of one message (JSON-RPC, an object) in pieces, as ``ovs.jsonrpc`` calls it."""

    def __new__(cls, *_words: Any, **_more: Any) -> Self:
        """The base asks whoever is registered, which is this class."""
        return object.__new__(cls)

    def __init__(self, check_trailer: bool = False) -> None:
        super().__init__(check_trailer)
        self._pieces: list[str] = []
        self._depth, self._open = 0, ""  # how what is open reads as a string's begin

    def feed(self, s: str) -> int:
        """How many characters of *s* belong to the message. A file (*check_trailer*) is read as ever."""
        if self.check_trailer:
            return int(super().feed(s))
        if self._depth == 0 and (begin := s.lstrip(" \t\r\n")) and begin[0] != "{":
            self.error, self.done = f"a message begins with {begin[0]!r}", True
            return 0
        before, text, self._open = len(self._open), self._open + s, ""
        for token in _TOKEN.finditer(text):
            word = token.group()
            if word == "{":
                self._depth += 1
            elif word == "}":
                self._depth -= 1
                if self._depth == 0:
                    s, self.done = s[:token.end() - before], True
                    break
            elif token["open"] is not None:
                self._open = '"' + token["open"]
        self._pieces.append(s)
        return len(s)

    def finish(self) -> Any:
        """The message; what is wrong with it, a ``str``."""
        if self.check_trailer or self.error is not None:
            return super().finish()
        try:
            return orjson.loads("".join(self._pieces))
        except orjson.JSONDecodeError as error:
            return str(error)


def register() -> None:
    """Have connections of ``ovs`` read so, also where its own module in C is built, which counts bytes."""
    ovs.json.PARSER, ovs.json.Parser = ovs.json.PARSER_PY, MessageParser
