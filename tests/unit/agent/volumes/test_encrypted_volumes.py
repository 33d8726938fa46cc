# SPDX-License-Identifier: GPL-3.0-or-later
"""Encrypted volumes of a host: their keys, what has them, and what is refused."""

from __future__ import annotations

import json

import pytest

from magnetar_core.errors import Conflict, InvalidField
from tests.unit.agent.conftest import Host

KEY = "0123456789abcdef" * 4


def _documents(host: Host) -> str:
    return "".join(json.dumps([one.want, one.state]) for noun in ("volume", "volume_snapshot")
                   for one in host.agent.host.documents.list(noun))


def test_a_key_stands_in_no_document(host: Host) -> None:
    wanted = {"size": 1, "format": "luks", "key": KEY}
    shown = host.ensure("volume", "hidden", wanted).resource
    assert shown and shown["format"] == "luks" and "key" not in shown and KEY not in _documents(host)
    assert not host.ensure("volume", "hidden", wanted).steps
    host.restart()
    assert host.ensure("volume", "hidden", {"size": 2}).steps


def test_a_copy_is_encrypted_too(host: Host) -> None:
    host.ensure("volume", "hidden", {"size": 1, "format": "luks"})
    host.ensure("volume_snapshot", "then", {"volume": "hidden"})
    for source in ({"source_volume": "hidden"}, {"snapshot": "then"}):
        with pytest.raises(InvalidField, match="encrypted"):
            host.ensure("volume", "copy", {**source, "format": "raw"})
        shown = host.ensure("volume", "copy", source).resource
        assert shown and shown["format"] == "luks"
        host.ensure("volume", "copy", None)


def test_what_cannot_be_encrypted_is_refused(host: Host) -> None:
    with pytest.raises(InvalidField, match="multiattach"):
        host.ensure("volume", "hidden", {"size": 1, "format": "luks", "multiattach": True})
    with pytest.raises(InvalidField, match="luks"):
        host.ensure("volume", "plain", {"size": 1, "key": KEY})
    host.ensure("volume", "hidden", {"size": 1, "format": "luks"})
    with pytest.raises(Conflict, match="clear text"):
        host.ensure("image", "leak", {"source": {"volume": "hidden"}})


def test_without_the_key_of_the_host_nothing_is_opened(host: Host) -> None:
    host.ensure("volume", "hidden", {"size": 1, "format": "luks"})
    (host.root / "state" / "keys" / "seal").unlink()
    with pytest.raises(Conflict, match="Restore that file"):
        host.ensure("volume", "hidden", {"size": 2})
