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
    """A faster parser of a JSON-RPC message that arrives in pieces. It replaces ``ovs.json.Parser``, with the same
    methods."""

    def __new__(cls, *_words: Any, **_more: Any) -> Self:
        """Create the object directly. ``ovs.json.Parser.__new__`` would create an object of the registered parser
        class, which is this class, and so call this method again without end."""
        return object.__new__(cls)

    def __init__(self, check_trailer: bool = False) -> None:
        super().__init__(check_trailer)
        self._pieces: list[str] = []
        self._depth, self._open = 0, ""  # the open string, as its beginning

    def feed(self, s: str) -> int:
        """Override the base class: parse the next piece *s*, and return how many of its characters belong to the
        message. If ``check_trailer`` is set (only for files), let the base class parse."""
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
    """Make all connections of ``ovs`` use ``MessageParser``, even if the C parser of ``ovs`` is installed: the C parser
    counts bytes instead of characters, which is wrong for text that is not ASCII."""
    ovs.json.PARSER, ovs.json.Parser = ovs.json.PARSER_PY, MessageParser
