# SPDX-License-Identifier: GPL-3.0-or-later
"""The conductor: takes actions from the queues of its cell and of cell0, and does several at once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import Agents, request_id
from magnetar_control.delivery import Delivery
from magnetar_control.services import Services
from magnetar_control.settings import Settings
from magnetar_control.store.actions import actions
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.hosts import conductors
from magnetar_control.store.servers import servers
from magnetar_control.store.store import Store
from magnetar_core.errors import Conflict
from magnetar_core.power import ERROR, OFFLOADED, SHELVED, SOFT_DELETED

from .environment import Environment
from .host_shares import HostBusy, Key
from .retry import AGAIN, TRIES
from .work import Continuation, LeaseLost, Work

log = logging.getLogger(__name__)
#: vm_states of servers that are put away: they stay so where something unexpected fails.
CALM = (SHELVED, OFFLOADED, SOFT_DELETED)
Flow = Callable[[Work], None]
#: Seconds that actions in hand may go on after the conductor is told to stop.
GRACE = 20.0
#: Seconds to wait for more free workers after all were busy; seconds to wait after creates were taken from cell0, for
#: more that can begin together. A single action waits for neither.
FREED, GATHER = 0.04, 0.03
#: Actions that may wait for a guest to shut down beside those that are worked on; each keeps a thread.
GUESTS = 64


class Conductor(Environment):
    """The conductor of one process. *cell*: name of its cell. *schedules*: whether it also takes new servers from
    cell0; at least one conductor of the cloud must."""

    def __init__(self, settings: Settings, store: Store, services: Services, agents: Agents, cell: str,
                 flows: Mapping[str, Mapping[str, Any]], delivery: Delivery, schedules: bool = True) -> None:
        super().__init__(settings, store, services, agents, cell, delivery)
        self.over, self.schedules = threading.Event(), schedules
        #: Called with a host and what it said of a server during an action that has left the server otherwise.
        self.recheck: Callable[[str, Mapping[str, Any]], None] = lambda _host, _document: None
        self._pool = ThreadPoolExecutor(settings.workers + GUESTS, thread_name_prefix="work")
        self._free, self._guests = threading.BoundedSemaphore(settings.workers), threading.BoundedSemaphore(GUESTS)
        self._worker = threading.local()  # ``placed``: whether this thread has one of the places that ``_free`` counts
        #: Those whose flow goes on. All in hand, also those that wait for a worker, are in ``shares``.
        self._held: dict[tuple[str, int], Work] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._served = [store.cell(self.cell.id), *([store.cell0] if schedules else ())]
        #: Flows by the name of the action's database.
        self._flows = {self._served[0].name: flows["cell"], store.cell0.name: flows["cell0"]}
        self._gone: Mapping[str, Flow] = flows["gone"]
        self._leaves: Callable[[Work], bool] = flows["leaves"]["*"]
        self._together: Mapping[str, Callable[[Sequence[Work]], list[Work]]] = flows["together"]
        #: By database: whether the last look left actions in the queue, which the end of others may make available.
        self._left = {database.name: False for database in self._served}

    def tell_action(self, host: str, document: Mapping[str, Any]) -> bool:
        """Hand what a host said of a server to the action of that server; returns whether one is in hand here."""
        with self._lock:
            found = [work for work in self._held.values() if work.id == document["id"]]
            for work in found:
                work.heard = host, document
            return bool(found)

    def start(self, *more: Callable[[], None]) -> None:
        """Start to work; *more* run in threads of their own until ``over`` is set."""
        self.read_hosts()
        for database in self._served:
            database.listen()
            self._thread(f"take {database.name}", partial(self._take, database))
            self._thread(f"beat {database.name}", partial(self._beat, database))
        for function in more:
            self._thread(getattr(function, "__name__", "more"), function)

    def _thread(self, name: str, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def works(self) -> bool:
        """Whether the threads that take actions and keep leases are alive."""
        return not self.over.is_set() and all(thread.is_alive() for thread in self._threads)

    def stop(self, grace: float = GRACE) -> None:
        """Take no more actions, end those in hand within *grace* seconds, and give the others back."""
        self.over.set()
        for database in self._served:
            database.bell.ring(servers.ACTIONS_BELL)
        ended = threading.Thread(target=lambda: self._pool.shutdown(wait=True, cancel_futures=True), daemon=True)
        ended.start()
        ended.join(grace)
        with contextlib.suppress(DBAPIError):
            conductors.gone(self.database, self.holder)
        for database in self._served:
            try:
                actions.let_go(database, self.holder)
            except DBAPIError:
                log.warning("database %s is away; what is in hand is taken over when its lease ends", database.name)

    def _take(self, database: Database) -> None:
        limits = self.settings.limits()
        while not self.over.is_set():
            seen = database.bell.count(servers.ACTIONS_BELL)
            room = self._room()
            taken: Sequence[Any] = ()
            begun: list[Any] = []
            try:
                if room:
                    likely, self._left[database.name] = self._left[database.name], True  # for those that end meanwhile
                    with self.choosing(database):
                        taken, self._left[database.name] = actions.take(
                            database, self.holder, room, limits, likely, self.shares.now())
                        begun = [action for action in taken if self._begins(database, action)]
            except DBAPIError as error:
                log.warning("database %s: %s", database.name, error.orig)
                self.over.wait(1.0)
            finally:
                for _at in range(room - len(begun)):
                    self._free.release()
            self._submit(database, begun)
            if taken and database is self.store.cell0:
                self.over.wait(GATHER)
            if len(taken) < room:  # there was no more
                database.bell.wait(servers.ACTIONS_BELL, seen)

    def _begins(self, database: Database, action: Any) -> bool:
        """Whether an action that was taken is to begin now. One in hand here, whose lease ran out, goes on instead."""
        return self.shares.begin((database.name, action.id), action.host, action.waits_for)

    def _submit(self, database: Database, taken: Sequence[Any]) -> None:
        """Hand actions that were taken to workers: each by itself, or several with a common first step together."""
        kinds: dict[str, list[Any]] = {}
        for action in taken:
            first = database is self.store.cell0 and action.attempts == 1 and action.action in self._together
            kinds.setdefault(action.action if first else "", []).append(action)
        for name, several in kinds.items():
            if name and len(several) > 1:
                self._hand_out(self._begin_together, database, several)
            else:
                for action in several:
                    self._hand_out(self._do, Continuation(database, action))

    def _hand_out(self, do: Callable[..., None], *in_hand: Any) -> None:
        """To a worker, unless the conductor ends: what it has taken is given back then."""
        with contextlib.suppress(RuntimeError):
            self._pool.submit(do, *in_hand)

    def _room(self) -> int:
        """Reserve all free workers; returns how many. Waits a moment when none is free, and then a little longer for
        more: one query for several actions costs a fraction."""
        count = 1 if self._free.acquire(blocking=False) else 0
        if not count:
            count = 1 if self._free.acquire(timeout=0.2) else 0
            self.over.wait(FREED)
        while count and self._free.acquire(blocking=False):
            count += 1
        return count

    def _begin_together(self, database: Database, taken: Sequence[Any]) -> None:
        """In a worker: begin several actions at once. Those with a continuation get workers of their own."""
        first, *others = self._begun(database, taken)
        for one in others:
            self._hand_out(self._do, one)
        self._do(first)

    def _begun(self, database: Database, taken: Sequence[Any]) -> list[Continuation | None]:
        """Begin several actions at once. Returns the continuation of each: ``None`` where it has ended, the action
        itself where it could not begin together with others."""
        works: dict[int, Work] = {}
        try:
            with database.read() as connection:
                rows = servers.rows(connection, [action.server_id for action in taken])
            works = {action.id: Work(self, database, action, row) for action in taken
                     if (row := rows.get(action.server_id)) is not None and not row.deleted_at}
            with self._lock:
                self._held.update({(database.name, number): work for number, work in works.items()})
            for work in works.values():
                self._tell(work)
            begin = self._together[taken[0].action]
            alone = {work.action.id for work in begin(list(works.values()))} if works else set()
        except Exception as error:
            log.exception("%s of %d servers: it is tried again", taken[0].action, len(taken))
            for action in taken:
                self._unexpected(database, action, error)
            return [works[action.id].continuation if action.id in works else None for action in taken]
        except BaseException:
            self._not_continued(*works.values())
            raise
        finally:
            with self._lock:
                for key in [(database.name, action.id) for action in taken]:
                    self._held.pop(key, None)
                    self.shares.end(key)
        going = {number: work.continuation for number, work in works.items() if number not in alone}
        return [going[action.id] if action.id in going else Continuation(database, action) for action in taken]

    def _do(self, in_hand: Continuation | None) -> None:
        """In a worker: do an action and its continuations."""
        self._worker.placed = True
        try:
            while in_hand and not self.over.is_set():  # what is left is given back
                self._begins(in_hand.database, in_hand.action)
                in_hand = self._act(*in_hand)
        finally:
            if self._worker.placed:
                self._free.release()
            self._ring()

    @contextlib.contextmanager
    def resting(self, key: Key) -> Iterator[None]:
        """In a worker: others have its place, and its host's, while it waits for a guest. It goes on beside them."""
        if not getattr(self._worker, "placed", False) or not self._guests.acquire(blocking=False):
            yield
            return
        self._worker.placed = False
        try:
            with super().resting(key):
                self._free.release()
                self._ring()
                yield
        finally:
            self._guests.release()

    def others_wait(self) -> bool:
        return any(self._left.values())

    def _ring(self) -> None:
        for one in self._served:
            if self._left[one.name]:
                one.bell.ring(servers.ACTIONS_BELL)

    def _act(self, database: Database, action: Any, server: Any, event: int | None) -> Continuation | None:
        """Do one action; the server's row may be given. Returns its continuation."""
        key, named = (database.name, action.id), request_id.set(action.request_id)
        work = None
        try:
            work = Work(self, database, action, server, event)
            with self._lock:
                self._held[key] = work
            self._flow(work, self._flows[database.name])
            work.flush()
        except LeaseLost:
            log.warning("action %s of server %s was taken over", action.id, action.server_id)
        except Exception as error:
            log.exception("action %s of server %s: it is tried again", action.id, action.server_id,
                          extra={"request_id": action.request_id})
            self._unexpected(database, action, error)
        except BaseException:
            self._not_continued(*([work] if work else []))
            raise
        finally:
            with self._lock:
                self._held.pop(key, None)
                self.shares.end(key)
            if work and work.heard and not work.matches(work.heard[1]):
                self.recheck(*work.heard)
            request_id.reset(named)
        return work.continuation if work else None

    def _not_continued(self, *works: Work) -> None:
        """Their thread ends: what they continue with is counted as in hand already, and nobody will do it."""
        for work in works:
            if work.continuation:
                self.shares.end((work.continuation.database.name, work.continuation.action.id))

    def _unexpected(self, database: Database, action: Any, error: Exception) -> None:
        """After an exception that no flow handles (a database that is away, or a bug): try again for a while; at last
        the server is in error, unless it is shelved or soft-deleted, so that nothing is stuck. When not even that can
        be written, the lease ends."""
        try:
            work = Work(self, database, action) if action.attempts >= TRIES else None
            if work is None or (work.server and work.server.leaving):  # one that leaves its cell cannot stay
                pause = AGAIN * min(action.attempts, 10)  # in all some eight minutes, for a database that is away
                with database.write() as connection:
                    actions.put_back(connection, action.id, self.holder, database.clock(pause))
            else:
                kept = not work.rule.task or (work.server and work.server.vm_state in CALM)
                work.failed(error, **({} if kept else {"vm_state": ERROR}))
        except (DBAPIError, LeaseLost) as again:
            log.warning("action %s of server %s is taken when its lease ends: %s", action.id, action.server_id, again)

    def _flow(self, work: Work, flows: Mapping[str, Flow]) -> None:
        action = work.action
        if work.server is None or (work.server.deleted_at and action.action not in ("delete", "forceDelete")):
            if work.server is not None and action.action in self._gone:
                self._gone[action.action](work)
            with work.write() as connection:
                actions.ended(connection, action.id, self.holder, "failed", "The server is deleted.")
            return
        if self._leaves(work):
            return
        self._tell(work)
        flow = flows.get(action.action)
        if flow is None:  # the API refuses these; another try would not help
            work.failed(Conflict(f"Nothing here does {action.action}: the server has no host."))
            return
        try:
            flow(work)
        except HostBusy as busy:
            log.info("%s waits: %s", action.action, busy, extra={"request_id": action.request_id, "server": work.id})
            work.put_back(AGAIN, attempts=max(1, action.attempts - 1))  # this was none

    def _tell(self, work: Work) -> None:
        action = work.action
        log.info("%s begins", action.action, extra={"request_id": action.request_id, "server": work.id,
                                                    "host": work.server.host, "action": action.action})

    def _beat(self, database: Database) -> None:
        """Write heartbeats, renew leases, hear what is cancelled. One thread for each database, since one may hang."""
        while not self.over.is_set():
            if database is self._served[0]:
                try:
                    with statement_timeout(actions.LEASE / 2, refused=False):
                        conductors.present(self.database, self.holder, self.name)
                except DBAPIError as error:
                    log.warning("database %s: not seen there: %s", self.database.name, error.orig)
            with self._lock:
                held = {number: work for (name, number), work in self._held.items() if name == database.name}
            try:
                if held:
                    with statement_timeout(actions.LEASE / 2, refused=False):
                        cancelled = actions.beat(database, self.holder, held)
                    for number in cancelled & held.keys():
                        held[number].cancelled.set()
            except DBAPIError as error:
                log.warning("database %s: no heartbeat: %s", database.name, error.orig)
            self.over.wait(actions.HEARTBEAT)
