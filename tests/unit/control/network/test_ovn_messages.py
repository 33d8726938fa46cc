# SPDX-License-Identifier: GPL-3.0-or-later
"""How messages of OVN's databases are read."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import ovs.json
import pytest
from ovs import jsonrpc

from magnetar_control.services.network.ovn import ovn, ovn_messages  # noqa: F401 - ovn has it registered

MESSAGES = [
    {"id": 1, "result": [{}], "error": None},
    {"method": "update", "params": [{"a{": "}\"\\", "b": [["map", []], 1.5, -2**63, True]}], "id": None},
    {"text": "\\\\\"{{{ \u00fc \U0001f600 }", "tail": "\\"},
    {},
]


def read(text: str, size: int) -> list[object]:
    """As ``ovs.jsonrpc`` reads what comes in pieces of this size."""
    found, parser, left = [], ovs.json.Parser(), ""
    while text or left:
        left, text = (left, text) if left else (text[:size], text[size:])
        left = left[parser.feed(left):]
        if parser.is_done():
            found.append(parser.finish())
            parser = ovs.json.Parser()
    return found


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10000])
def test_messages_in_any_pieces(size, ascii_only):
    assert ovs.json.Parser is ovn_messages.MessageParser
    assert read("".join(json.dumps(one, ensure_ascii=ascii_only) for one in MESSAGES), size) == MESSAGES
    assert read(" \n".join(json.dumps(one, indent=1) for one in MESSAGES), size) == MESSAGES


@pytest.mark.parametrize("text", ['x{"a": 1}', '["a"]', '"{"', "}", '{"a": }', '{"a": nul}', '{"a": "\n"}'])
def test_what_is_no_message_is_said(text):
    parser = ovs.json.Parser()
    parser.feed(text)
    assert parser.is_done()
    assert isinstance(parser.finish(), str)  # so that ovs.jsonrpc ends the connection


def test_half_a_message_is_none():
    parser = ovs.json.Parser()
    assert parser.feed('{"a": {"b": "c') == 14
    assert not parser.is_done()


def test_a_long_string_is_looked_at_once():
    """However many pieces it comes in."""
    def seconds(pieces: int) -> float:
        parser, begin = ovs.json.Parser(), time.process_time()
        parser.feed('{"a": "')
        for _one in range(pieces):
            parser.feed(r"\"x" * 1000)
        assert parser.feed('"} ') == 2
        assert parser.finish() == {"a": '"x' * 1000 * pieces}
        return time.process_time() - begin

    assert seconds(3000) < 100 * max(seconds(100), 0.001)


def test_no_parser_counts_bytes(monkeypatch):
    """Where the module in C of ``ovs`` is built, a connection takes what a parser answers for a number of bytes."""
    monkeypatch.setattr(ovs.json, "PARSER", ovs.json.PARSER_C)
    ovn_messages.register_message_parser()
    stream = SimpleNamespace(name="test", recv=lambda _size: (0, said.pop()), close=lambda: None)
    said = [b"", json.dumps({"id": 1, "result": "\u00fc" * 9, "error": None}, ensure_ascii=False).encode() * 2]
    line = jsonrpc.Connection(stream)
    assert [line.recv()[1].result for _message in range(2)] == ["\u00fc" * 9] * 2


def test_other_text_is_read_as_ever():
    assert ovs.json.from_string('["a", {"b": 1.5}]') == ["a", {"b": 1.5}]
    assert isinstance(ovs.json.from_string('{"a": 1} x'), str)
