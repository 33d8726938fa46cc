# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents are found by what they say, as they are on the disk and after each change."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_agent.documents import Document, Documents
from magnetar_core.errors import Ambiguous


def server(id: str, name: str, *macs: str) -> Document:
    return Document("server", id, name, {"networks": [{"mac": mac} for mac in macs]})


def macs(document: Document) -> list[str]:
    return [nic["mac"] for nic in document.want["networks"]]


def having(documents: Documents, mac: str) -> list[str]:
    return sorted(one.id for one in documents.having("server", "mac", mac))


def test_they_are_found_by_what_an_index_says(tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    documents.write(server("one", "web", "a", "b"))
    documents.index("server", "mac", macs)
    documents.write(server("two", "web", "b"))
    assert (having(documents, "a"), having(documents, "b"), having(documents, "c")) == (["one"], ["one", "two"], [])
    documents.write(server("one", "web", "c"))
    assert (having(documents, "a"), having(documents, "b"), having(documents, "c")) == ([], ["two"], ["one"])
    documents.remove(server("two", "web"))
    documents.remove(server("two", "web"))
    assert having(documents, "b") == []
    again = Documents(tmp_path)
    again.index("server", "mac", macs)
    assert having(again, "c") == ["one"]


def test_what_is_changed_and_not_written_is_not_found(tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    documents.index("server", "mac", macs)
    document = server("one", "web", "a")
    documents.write(document)
    document.want["networks"].append({"mac": "b"})
    assert (having(documents, "a"), having(documents, "b")) == (["one"], [])


def test_names_are_found_before_and_after_a_start(tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    documents.write(server("1", "web"))
    documents.write(server("2", "web"))
    for found in (documents, Documents(tmp_path)):
        with pytest.raises(Ambiguous):
            found.find("server", "web")
    documents.write(server("2", "db"))
    for found in (documents, Documents(tmp_path)):
        one, other = found.find("server", "web"), found.find("server", "db")
        assert one and other and (one.id, other.id) == ("1", "2")
    documents.remove(server("1", "web"))
    assert documents.find("server", "web") is None and documents.look("server", "1") is None
