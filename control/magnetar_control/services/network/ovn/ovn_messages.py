# SPDX-License-Identifier: GPL-3.0-or-later
"""A fast parser for the messages of OVN's databases, with orjson.

The parser of ``ovs`` looks at each character in Python if its C module was not built. That takes most of the CPU time
of a change and of the first copy of a large database, and other threads wait meanwhile.
"""

from __future__ import annotations

import re
from typing import Any, Self

import orjson
import ovs.json

#: The tokens that show where a message ends: whole strings, and braces outside of strings. A string may continue in the
#: next piece, also directly after a backslash.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|(?P<open>\\?)\Z)|[{}]', re.DOTALL)


class MessageParser(ovs.json.Parser):  # type: ignore[misc]
    """A parser of one message (JSON-RPC, an object) in pieces, as ``ovs.jsonrpc`` calls it."""

    def __new__(cls, *_words: Any, **_more: Any) -> Self:
        """Create the object directly: the base class would create an object of the registered class, which is this one,
        and so call this method again."""
        return object.__new__(cls)

    def __init__(self, check_trailer: bool = False) -> None:
        super().__init__(check_trailer)
        self._pieces: list[str] = []
        self._depth, self._open = 0, ""  # the open string, as its beginning

    def feed(self, s: str) -> int:
        """Override the base class: parse the next piece *s*, and return how many of its characters belong to the
        message. Files (``check_trailer``) are parsed by the base class."""
        if self.check_trailer:
            return int(super().feed(s))
        if self._depth == 0 and (begin := s.lstrip(" \t\r\n")) and begin[0] != "{":
            self.error, self.done = f"a message begins with {begin[0]!r}", True
            return 0
        open_length, text, self._open = len(self._open), self._open + s, ""
        for token in _TOKEN.finditer(text):
            bracket = token.group()
            if bracket == "{":
                self._depth += 1
            elif bracket == "}":
                self._depth -= 1
                if self._depth == 0:
                    s, self.done = s[:token.end() - open_length], True
                    break
            elif token["open"] is not None:
                self._open = '"' + token["open"]
        self._pieces.append(s)
        return len(s)

    def finish(self) -> Any:
        """Override the base class: return the message, or a ``str`` with the error if it is invalid."""
        if self.check_trailer or self.error is not None:
            return super().finish()
        try:
            return orjson.loads("".join(self._pieces))
        except orjson.JSONDecodeError as error:
            return str(error)


def register_message_parser() -> None:
    """Make connections of ``ovs`` use this parser, even if the C module of ``ovs`` is built: the C parser counts bytes,
    this one characters."""
    ovs.json.PARSER, ovs.json.Parser = ovs.json.PARSER_PY, MessageParser
