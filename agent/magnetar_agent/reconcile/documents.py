# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents: the requested fields of each resource. One file each, written atomically, read once at the agent's start.

A document is written before its first step is done, and removed after everything of the resource is gone. So after a
crash everything that is found on the host belongs to a document or is an orphan.

Data that only a killed agent must find again, and not a host that lost power, is written next to the file, without
fsync: a note, ``<id>.json.note``. It is valid during this boot, and for the file that it was written for.
"""

from __future__ import annotations

import json
import marshal
import os
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.boot import boot_id
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_core.errors import Ambiguous, MagnetarError, NoSpace
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import utc_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Version of the files' format; ``UPGRADES`` converts earlier ones.
SCHEMA = 1
#: Note in a document's ``state`` while the resource is removed for ``on_immutable: recreate``: the ``want`` of its
#: replacement.
REPLACEMENT = "replacement"
#: Note in a document's ``state``: a cloud has requested the resource, and keeps its own rows of it.
CLOUD = "cloud"
#: Note of a cloud's server since a boot of its host: it does not start before its cloud sends a request for the server,
#: since it may have been evacuated.
HELD = "held"
#: Note of an unfinished change: the revision that its request was planned for. A repetition of the request continues.
PLANNED = "planned"
#: The fields of a document, or the same fields as observed on the host.
Fields = dict[str, Any]
UPGRADES: dict[int, Any] = {}


class UnreadableDocument(MagnetarError):
    """The error for a document file that cannot be parsed. An operator must repair or remove the file, and start the
    agent again."""

    code = "unreadable-document"


@dataclass
class Document:
    """The stored JSON document of one resource. *kind*: the resource type, such as ``server``. *want*: the requested
    fields (the desired state) in normal form. *state*: facts that the agent itself stores about the resource, such as
    which of its disks are complete. *deleting*: set before a deletion begins; after a crash, the agent's next start
    finishes the deletion."""

    kind: str
    id: str
    name: str
    want: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    created_at: str = field(default_factory=utc_timestamp)
    updated_at: str = field(default_factory=utc_timestamp)
    deleting: bool = False
    schema: int = SCHEMA

    def copy(self) -> Document:
        """Return a deep copy. Changes to it take effect when it is written with ``Documents.write``."""
        return Document(**marshal.loads(marshal.dumps(vars(self))))  # noqa: S302 - ours; deepcopy takes ten times as long


class Index:
    """An index to find documents fast by a value in them, such as the MAC of a server's NIC: it maps each value (key)
    to the uuids of the documents that contain it. *keys*: returns a document's values."""

    def __init__(self, keys: Callable[[Document], Iterable[str]]) -> None:
        self._keys = keys
        self.ids: dict[str, set[str]] = {}
        self._of: dict[str, frozenset[str]] = {}

    def put(self, document: Document) -> None:
        """Add the document to the index, under the values (keys) that it contains now instead of its former values."""
        keys = frozenset(self._keys(document))
        if self._of.get(document.id) != keys:
            self.drop(document.id)
            self._of[document.id] = keys
            for key in keys:
                self.ids.setdefault(key, set()).add(document.id)

    def drop(self, id: str) -> None:
        """Remove the document with the uuid *id* from the index."""
        for key in self._of.pop(id, ()):
            ids = self.ids[key]
            ids.discard(id)
            if not ids:
                del self.ids[key]


def _name(document: Document) -> tuple[str]:
    return (document.name,)


class Documents:
    """The documents (desired states and records) of all resources of a host, in files
    ``<root>/documents/<kind>/<id>.json`` and in memory. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root / "documents"
        self._lock, self._boot = threading.RLock(), boot_id()
        self._notes: set[str] = set()  # paths
        #: Documents with only a note from the last agent: files that they mention may not be flushed yet.
        self.noted: list[Document] = []
        self._listeners: list[Callable[[Document, bool], None]] = []
        self._found: dict[str, dict[str, Document]] = {noun: {} for noun in BY_NOUN}
        self._indexes: dict[str, dict[str, Index]] = {noun: {"name": Index(_name)} for noun in BY_NOUN}
        self._load(root)

    def _load(self, root: Path) -> None:
        make_state_folder(root)
        for noun, documents in self._found.items():
            folder = self.root / noun
            make_state_folder(folder, 0o700)
            for path in folder.iterdir():
                if path.suffix == ".json":
                    document = self._noted(path) or _read(path)
                    documents[document.id] = document
                    self._indexes[noun]["name"].put(document)
                elif path.suffix == ".part":
                    path.unlink()  # a write that a crash cut short: it was never acknowledged
            for path in folder.glob("*.note"):
                if str(path) not in self._notes:
                    path.unlink()

    def get(self, kind: str, id: str) -> Document | None:
        """Return a copy of the document of type *kind* with the uuid *id*; ``None`` if there is none."""
        with self._lock:
            document = self._found[kind].get(id)
            return document.copy() if document else None

    def peek_by_id(self, kind: str, id: str) -> Document | None:
        """Return the document with the uuid *id* without copying it, for speed; ``None`` if there is none. The caller
        must not change it or store it."""
        with self._lock:
            return self._found[kind].get(id)

    def find(self, kind: str, key: str) -> Document | None:
        """Return a copy of the document with the uuid *key*, or else with the name *key*; ``None`` if there is none.
        Raises ``Ambiguous``, with the uuids, if several have that name."""
        document = self.peek_by_key(kind, key)
        return document.copy() if document else None

    def peek_by_key(self, kind: str, key: str) -> Document | None:
        """Return the document with the uuid or else the name *key* without copying it, for speed; ``None`` if there is
        none. The caller must not change it or store it. Raises ``Ambiguous`` if several have that name."""
        with self._lock:
            by_id = self._found[kind].get(key.lower())
            if by_id:
                return by_id
            named = self.having(kind, "name", key)
        if len(named) > 1:
            uuids = sorted(d.id for d in named)
            raise Ambiguous(
                f"{len(named)} {BY_NOUN[kind].plural} are called {key!r}: {', '.join(uuids)}. Use one of these uuids.",
                uuids=uuids,
            )
        return named[0] if named else None

    def standing(self, kind: str, key: str) -> Document | None:
        """Return a copy of the document with the uuid or else the name *key*, for another resource that will refer to
        it; ``None`` if there is no such document or its resource is being deleted. Raises ``Ambiguous``."""
        document = self.find(kind, key)
        return None if document is None or document.deleting else document

    def list(self, kind: str) -> list[Document]:
        """Return copies of all documents of the type *kind*, sorted by name and then uuid."""
        with self._lock:
            return sorted((d.copy() for d in self._found[kind].values()), key=lambda d: (d.name, d.id))

    def peek(self, kind: str) -> tuple[Document, ...]:
        """Return all documents of the type *kind* without copying them, for speed, in no order. The caller must not
        change them or store them."""
        with self._lock:
            return tuple(self._found[kind].values())

    def index(self, kind: str, name: str, keys: Callable[[Document], Iterable[str]]) -> None:
        """Create the index *name* of the documents of type *kind*, for the method ``having``. *keys*: returns a
        document's values for the index, such as the MACs of a server's NICs."""
        with self._lock:
            made = self._indexes[kind][name] = Index(keys)
            for document in self._found[kind].values():
                made.put(document)

    def having(self, kind: str, name: str, key: str) -> tuple[Document, ...]:
        """Return the documents of type *kind* that the index *name* lists for the value *key*, such as a MAC (see the
        method ``index``), without copying them, in no order. The caller must not change them or store them. Fast, even
        with many documents. Every type has the index ``name``."""
        with self._lock:
            documents = self._found[kind]
            return tuple(documents[id] for id in self._indexes[kind][name].ids.get(key, ()))

    def listen(self, listener: Callable[[Document, bool], None]) -> None:
        """Call *listener* after each write and removal, with the document and whether it was removed. *listener* must
        return quickly."""
        self._listeners.append(listener)

    def count(self, kind: str) -> int:
        """Return the number of documents of the type *kind*."""
        with self._lock:
            return len(self._found[kind])

    def write(self, document: Document, durable: bool = True) -> None:
        """Write *document* to disk, then to memory. Raises ``NoSpace``, with nothing changed. *durable*: flush it to
        disk; otherwise a loss of power may restore the former document."""
        # In one line: json indents in Python, which takes ten times as long.
        text = json.dumps(vars(document), sort_keys=True)
        try:
            self._store(document, text, durable)
        except OSError as error:
            raise NoSpace(f"The document of {document.kind} {document.name} cannot be written: {error.strerror}. "
                          f"Free some room under {self.root}.") from error
        stored = Document(**json.loads(text))  # as the next start will read it
        with self._lock:
            self._found[stored.kind][stored.id] = stored
            for index in self._indexes[stored.kind].values():
                index.put(stored)
        self._tell(document, False)

    def remove(self, document: Document) -> None:
        """Remove *document* from disk and memory. Does nothing if it is missing."""
        self._discard(document)
        with self._lock:
            self._found[document.kind].pop(document.id, None)
            for index in self._indexes[document.kind].values():
                index.drop(document.id)
        self._tell(document, True)

    def _store(self, document: Document, text: str, durable: bool) -> None:
        path = f"{self.root}/{document.kind}/{document.id}.json"
        if durable:
            write_atomically(path, text.encode() + b"\n")
            self._remove_note(path)
        else:
            self._note(path, text)

    def _discard(self, document: Document) -> None:
        path = self.root / document.kind / f"{document.id}.json"
        path.unlink(missing_ok=True)
        self._remove_note(str(path))
        sync_folder(path.parent)

    def _note(self, path: str, text: str) -> None:
        """Write *text*, a newer version of the document in the file *path*, into the note file beside that file. The
        note file is not flushed: it must survive a crash of the agent, but not a loss of power."""
        content = f'{{"boot": {json.dumps(self._boot)}, "over": {_version(path)}, "document": {text}}}\n'
        write_atomically(f"{path}.note", content.encode(), durable=False)
        self._notes.add(f"{path}.note")

    def _noted(self, path: Path) -> Document | None:
        """Return the document in the note file that ``_note`` has written beside the document file *path*. Return
        ``None`` if there is no note file, or if it is outdated: the host was rebooted or the document file was changed
        after the note file was written."""
        note = Path(f"{path}.note")
        try:
            content = json.loads(note.read_bytes())
            if (content["boot"], content["over"]) != (self._boot, _version(path)):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._notes.add(str(note))
        self.noted.append(document := _document(content["document"], note))
        return document

    def _remove_note(self, path: str) -> None:
        """Remove the note file that ``_note`` has written beside the document file *path*. Called after the document
        file was written or removed, because the note file is outdated then."""
        note = f"{path}.note"
        if note in self._notes:
            with suppress(FileNotFoundError):
                os.unlink(note)  # noqa: PTH108 - as in write_atomically
            self._notes.discard(note)

    def _tell(self, document: Document, removed: bool) -> None:
        for listener in self._listeners:
            listener(document, removed)


def write_atomically(path: Path | str, content: bytes, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the content of the file *path*. A crash leaves either the old or the new content. *mode*: the permission
    bits of the file.

    *durable*: flush it to disk, so that it survives a loss of power. Otherwise a loss of power may leave incomplete
    content, but a crash of the process does not.
    """
    name = os.fspath(path)  # text: each step of a server is written, and a Path takes ten times as long to make
    part = f"{name}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode != 0o600:  # the umask has removed bits
                os.fchmod(descriptor, mode)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, name)  # noqa: PTH105
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(os.path.dirname(name))  # noqa: PTH120


def write_once(path: Path, content: bytes) -> None:
    """Create the file *path* with *content* atomically. Does nothing if it exists: of several processes, even on
    several hosts with a shared folder, the first one creates the file."""
    part = path.with_name(f"{path.name}.{uuid.uuid4()}")
    write_atomically(part, content)
    try:
        with suppress(FileExistsError):
            os.link(part, path)  # atomic on NFS too
    finally:
        part.unlink(missing_ok=True)


def _version(path: Path | str) -> list[int]:
    """Return inode and modification time of the file at *path*, to detect later that it was replaced or edited. Both
    are needed: an editor may keep the inode, and a file system may reuse it."""
    file_stat = os.stat(path)  # noqa: PTH116
    return [file_stat.st_ino, file_stat.st_mtime_ns]


def sync_folder(folder: Path | str) -> None:
    """Flush a folder to disk, so that renames and removals in it survive a loss of power."""
    flush_file(folder, os.O_DIRECTORY)


def flush_file(path: Path | str, flags: int = 0) -> None:
    """Flush the content of a file, or the entries of a folder, to disk. *flags*: additional flags of open(2)."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> Document:
    try:
        return _document(json.loads(path.read_bytes()), path)
    except ValueError as error:
        raise _unreadable(path, error) from error


def _document(content: Any, path: Path) -> Document:
    """Return the document with *content*, the parsed JSON of the file *path*, converted from earlier schemas if
    necessary. Raises ``UnreadableDocument``."""
    try:
        while content["schema"] in UPGRADES:
            content = UPGRADES[content["schema"]](content)
        if content["schema"] != SCHEMA:
            raise UnreadableDocument(
                f"{path} has schema {content['schema']}, and this agent reads up to {SCHEMA}. Start a newer agent.")
        return Document(**content)
    except (TypeError, KeyError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UnreadableDocument:
    return UnreadableDocument(f"{path} cannot be read ({error}). Repair or remove it, then start again.")
