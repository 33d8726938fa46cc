# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type migration: runs this host's part of a migration, as source or target; see
``migrations``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import NATIVE, source, source_cleanup, target
from magnetar_agent.reconcile.documents import Fields
from magnetar_agent.reconcile.task import Verb
from magnetar_core.errors import InUse
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Migration
from magnetar_core.kinds.migration import PHASES
from magnetar_core.plan import Step

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: The phases of each side: name, the note in the document's state when the phase is reached, and its verb.
PHASE_VERBS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "source": (("prepared", "claimed", "claim"), ("moved", "moved", "move"), ("settled", "left", "leave")),
    "target": (("prepared", "prepared", "prepare"), ("settled", "settled", "settle")),
}
TEXT = {
    "claim": "keep others from the server", "move": "send the server", "leave": "remove the server from this host",
    "prepare": "let the server in", "settle": "close the way", "recover": "take the server back",
    "abandon": "forget what has come",
}
ABORT_VERBS = {"source": "recover", "target": "abandon"}
VERBS: Mapping[str, Callable[..., None]] = {
    "claim": source.claim_server, "move": source.move_server, "leave": source_cleanup.clean_up_source,
    "recover": source_cleanup.recover_source,
    "prepare": target.prepare_target, "settle": target.clean_up_target, "abandon": target.abandon_target,
}
#: The number of ended migrations that are kept as a record.
MOST_ENDED = 1000


def plan_migration(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """Yield the steps from the current state *have* of a migration to the requested fields *want* (``None``: end the
    migration). *have*: the document's fields, and ``done``, the names of the completed steps.

    A migration goes through the phases ``prepared``, ``moved`` and ``settled`` in this order. If *want* has an earlier
    phase than the current one, there are no steps.
    """
    if want is None:
        have = have or {"done": (), "side": "source"}
        if PHASE_VERBS[have["side"]][-1][1] not in have["done"] and have["done"]:
            yield Step(ABORT_VERBS[have["side"]], TEXT[ABORT_VERBS[have["side"]]])
        return
    done = (have or {}).get("done", ())
    for phase, mark, verb in PHASE_VERBS[want["side"]]:
        if PHASES.index(phase) <= PHASES.index(want["phase"]) and mark not in done:
            yield Step(verb, TEXT[verb])


class MigrationDriver:
    """The resource driver of migrations. The source host and the target host each store a document (JSON file with the
    desired state) of the same migration."""

    kind = Migration
    unique_names = False
    verbs: Mapping[str, Verb] = VERBS

    def locate(self, host: LocalHost, key: str) -> str:
        """Return *key* unchanged: it is the migration's uuid already."""
        return key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* of the migration in the form in which they are stored. *document*: the
        stored migration, ``None`` for a new one.

        Before the migration begins, check that it can succeed. On the source, also add ``manifest``: the server's
        requirements, which the target checks. After that, the phase never goes back: if ``phase`` in *want* is earlier
        than the stored phase, the stored phase stays.
        """
        if document is None or (want["side"] == "source" and not document.state.get("claimed")
                                and not document.state.get("moved")):
            host.links.required()
            id = document.id if document else want.get("id")
            if want["side"] == "source":
                want = {**want, "manifest": source.build_manifest(host, source.check_source(host, want, id))}
            else:
                target.check_migration_target(host, want)
        elif document.state.get("claimed") or want["side"] == "target":
            least = max(want["phase"], document.want["phase"], key=PHASES.index)
            want = {**want, "phase": least}
        return want

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Do nothing: migrations have no fixed fields, so none is ever recreated."""

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse`` if the migration's document must not be removed yet: the server has moved, and the cleanup on
        this host is not complete."""
        if document.state.get("moved") and not document.state.get("left"):
            raise InUse("The server has moved to the target, and the source has not removed its copy yet. Run the "
                        "migration again; it continues where it was.")
        if document.state.get("arrived") and not document.state.get("settled"):
            raise InUse("The server has arrived here, and the migration is not complete yet. Run the migration again; "
                        "it continues where it was.")

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return ``None``: ``observe`` needs no snapshot of the host for a migration."""
        return None

    def sweep(self, host: LocalHost) -> None:
        """Remove the documents of the oldest completed migrations; the newest ``MOST_ENDED`` stay."""
        ended = sorted((d for d in host.documents.list("migration") if _ended(d)), key=lambda d: d.updated_at)
        for document in ended[:-MOST_ENDED]:
            host.documents.remove(document)

    def left(self, host: LocalHost) -> list[str]:
        """Return an empty list: a migration has no files except its document, so none can be orphaned."""
        return []

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the document's fields, and ``done``: the names of the steps that this host has completed. *snapshot*:
        not used."""
        done = tuple(mark for _phase, mark, _verb in PHASE_VERBS[document.want["side"]] if document.state.get(mark))
        return {**document.want, "done": done}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps from the current state *have* to the requested fields *want* (``None``: end the migration),
        as ``plan_migration`` does."""
        return plan_migration(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the migration as API responses show it, with its status and progress. *have*, *snapshot*: not used."""
        progress = host.progress.get(document.id)
        values = {**document.want, "id": document.id, "name": document.name, "host": host.name,
                  "created_at": document.created_at, "updated_at": document.updated_at,
                  "fault": document.state.get("fault"), "progress": progress, "status": _status(document, progress),
                  NATIVE: document.state.get(NATIVE)}
        return {f.name: values.get(f.name) for f in Migration.fields if SHOW in f.on}


def _ended(document: Document) -> bool:
    return bool(document.state.get("left") or document.state.get("settled"))


def _status(document: Document, progress: Fields | None) -> str:
    state = document.state
    if _ended(document):
        return "completed"
    if state.get("moved") or state.get("arrived"):
        return "moved"
    if progress is not None or state.get("decided"):  # the server is the target's, which only has to report it
        return "running"
    unready = document.want["side"] == "target" and not state.get("prepared")
    return "failed" if unready or state.get("failed") or state.get("fault") else "prepared"
