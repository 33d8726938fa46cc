# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents are found by what they say, as they are on the disk and after each change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar_agent.reconcile.documents import Document, Documents
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
        assert other == found.peek_by_key("server", "db") is found.peek_by_id("server", "2") is not other
    documents.remove(server("1", "web"))
    assert documents.find("server", "web") is None and documents.peek_by_id("server", "1") is None


def path_of(root: Path, id: str = "one") -> Path:
    return root / "documents" / "server" / f"{id}.json"


def note(documents: Documents, *macs: str) -> None:
    documents.write(server("one", "web", *macs), durable=False)


def test_a_killed_agent_finds_what_was_noted(tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    documents.write(server("one", "web", "a"))
    note(documents, "b")
    note(documents, "c")
    for again in (Documents(tmp_path), Documents(tmp_path)):
        assert again.get("server", "one") == documents.get("server", "one")
    again.write(server("one", "web", "d"))
    assert [path.name for path in path_of(tmp_path).parent.iterdir()] == ["one.json"]
    assert Documents(tmp_path).list("server")[0].want == server("one", "web", "d").want


def test_a_note_ends_with_its_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(tmp_path)
    documents.write(server("one", "web", "a"))
    note(documents, "b")
    monkeypatch.setattr("magnetar_agent.reconcile.documents.boot_id", lambda: "another")
    assert Documents(tmp_path).list("server")[0].want == server("one", "web", "a").want
    assert [path.name for path in path_of(tmp_path).parent.iterdir()] == ["one.json"]


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(path.read_bytes()[:-20]), lambda path: path.write_text("[]"),
    lambda path: path.write_text(path.read_text().replace('"over": [', '"over": [1'))])
def test_a_note_that_is_half_or_older_than_the_file_is_dropped(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    documents = Documents(tmp_path)
    documents.write(server("one", "web", "a"))
    note(documents, "b")
    spoil(Path(f"{path_of(tmp_path)}.note"))
    assert Documents(tmp_path).list("server")[0].want == server("one", "web", "a").want
    assert [path.name for path in path_of(tmp_path).parent.iterdir()] == ["one.json"]


def test_a_note_goes_with_its_document(tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    documents.write(server("one", "web", "a"))
    note(documents, "b")
    documents.remove(server("one", "web"))
    assert not list(path_of(tmp_path).parent.iterdir())
    (path_of(tmp_path, "two").parent / "two.json.note").write_text("{}")
    assert not Documents(tmp_path).list("server")
    assert not list(path_of(tmp_path).parent.iterdir())


def test_a_file_that_an_operator_has_repaired_is_newer_than_its_note(tmp_path: Path) -> None:
    """An editor may write into the same file; an earlier agent, which knows no notes, gets its number again."""
    documents = Documents(tmp_path)
    documents.write(server("one", "web", "a"))
    note(documents, "b")
    with path_of(tmp_path).open("r+") as file:
        text = file.read().replace('"a"', '"c"')
        file.seek(0)
        file.write(text)
    assert Documents(tmp_path).list("server")[0].want == server("one", "web", "c").want
    assert [path.name for path in path_of(tmp_path).parent.iterdir()] == ["one.json"]
