# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking actions from the queues of a conductor's cell and of cell0, and running several at the same time."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import request_id
from magnetar_control.announcement import renew_or_end
from magnetar_control.store.actions import actions
from magnetar_control.store.actions.action_row import ActionRow
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import Conflict
from magnetar_core.power import ERROR, OFFLOADED, SHELVED, SOFT_DELETED

from .conductor import Conductor
from .leased_actions import HostBusy
from .retry import AGAIN, TRIES
from .work import Continuation, LeaseLost, RunningAction
from .worker_places import GUESTS

log = logging.getLogger(__name__)
#: vm_states of shelved and soft-deleted servers, which keep them after an unexpected failure.
CALM = (SHELVED, OFFLOADED, SOFT_DELETED)
Flow = Callable[[RunningAction], None]
#: Seconds that actions in hand may continue after the conductor is told to stop.
GRACE = 20.0
#: Seconds to wait after creates were taken from cell0, for more that can begin together. A single action does not wait.
GATHER = 0.03
#: Seconds after the end of an action's delay when the queue is read, so that it is surely over.
DUE = 0.002


class ActionRunner:
    """The part of a conductor that leases actions (reserves operations on servers, such as a resize, for a limited
    time) from the queues of its cell and of cell0, and runs them in worker threads."""

    def __init__(self, conductor: Conductor, flows: Mapping[str, Mapping[str, Any]]) -> None:
        self.conductor = conductor
        self._pool = ThreadPoolExecutor(conductor.settings.workers + GUESTS, thread_name_prefix="work")
        self._threads: list[threading.Thread] = []
        store = conductor.store
        self._served = [conductor.database, *([store.cell0] if conductor.schedules else ())]
        #: Flows by the name of the action's database.
        self._flows = {self._served[0].name: flows["cell"], store.cell0.name: flows["cell0"]}
        self._gone: Mapping[str, Flow] = flows["gone"]
        self._leaves: Callable[[RunningAction], bool] = flows["leaves"]["*"]
        self._together: Mapping[str, Callable[[Sequence[RunningAction]], list[RunningAction]]] = flows["together"]
        conductor.slots.left = {database.name: False for database in self._served}
        conductor.slots.on_free = self._notify_runners

    def start(self, *more: Callable[[], None]) -> None:
        """Start the threads that lease actions from the queues and renew the leases. *more*: further functions to run,
        each in a thread of its own, until ``conductor.over`` is set."""
        self.conductor.read_hosts()
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
        """Return whether the conductor is not stopping and all threads that ``start`` has started are alive."""
        return not self.conductor.over.is_set() and all(thread.is_alive() for thread in self._threads)

    def stop(self, grace: float = GRACE) -> None:
        """Stop leasing actions, wait at most *grace* seconds for running actions to end, and put the remaining actions
        back into the queue."""
        self.conductor.over.set()
        for database in self._served:
            database.signals.notify(servers.ACTIONS_CHANGED)
        ended = threading.Thread(target=lambda: self._pool.shutdown(wait=True, cancel_futures=True), daemon=True)
        ended.start()
        ended.join(grace)
        self.conductor.announcement.leave()
        for database in self._served:
            try:
                actions.requeue_held_actions(database, self.conductor.holder)
            except DBAPIError:
                log.warning("database %s is away; what is in hand is taken over when its lease ends", database.name)

    def _take(self, database: Database) -> None:
        conductor, left = self.conductor, self.conductor.slots.left
        while not conductor.over.is_set():
            signal_count = database.signals.count(servers.ACTIONS_CHANGED)
            room = conductor.slots.reserve_slots(conductor.over)
            taken: Sequence[Any] = ()
            begun: list[Any] = []
            try:
                if room:
                    likely, left[database.name] = left[database.name], True  # for those that end now
                    with conductor.choosing(database):
                        taken, left[database.name] = actions.lease_next_actions(
                            database, conductor.holder, room, conductor.settings.limits(), likely,
                            conductor.leased_actions.now())
                        begun = [action for action in taken if self._begins(database, action)]
            except DBAPIError as error:
                log.warning("database %s: %s", database.name, error.orig)
                conductor.over.wait(1.0)
            finally:
                conductor.slots.release_slots(room - len(begun))
            self._submit(database, begun)
            if taken and database is conductor.store.cell0:
                conductor.over.wait(GATHER)
            if len(taken) < room:  # there were no more
                database.signals.wait(servers.ACTIONS_CHANGED, signal_count, self._pause(database))

    def _pause(self, database: Database) -> float | None:
        """Return the maximum seconds until the next read of the queue of *database*: the time until the next delayed
        action is due. A signal for a new action ends the pause earlier. ``None``: use the default pause."""
        if not self.conductor.slots.left[database.name]:
            return None
        try:
            due = actions.seconds_until_due(database)
        except DBAPIError:
            return None
        return None if due is None else due + DUE

    def _begins(self, database: Database, action: ActionRow) -> bool:
        """Count an action that was leased from the queue as running for its host. Return ``False`` if the action
        already runs in this conductor: the queue returned the action again, because its lease had expired."""
        return self.conductor.leased_actions.begin((database.name, action.id), action.host, action.waits_for)

    def _submit(self, database: Database, taken: Sequence[Any]) -> None:
        """Pass leased actions to worker threads. Creations in cell0 at their first attempt go to one thread together,
        because they are scheduled together; all other actions go to one thread each."""
        kinds: dict[str, list[Any]] = {}
        for action in taken:
            first = database is self.conductor.store.cell0 and action.attempts == 1 and action.action in self._together
            kinds.setdefault(action.action if first else "", []).append(action)
        for name, several in kinds.items():
            if name and len(several) > 1:
                self._run_in_worker(self._begin_together, database, several)
            else:
                for action in several:
                    self._run_in_worker(self._do, Continuation(database, action))

    def _run_in_worker(self, do: Callable[..., None], *arguments: Any) -> None:
        """Run the function *do* with *arguments* in a worker thread. Do nothing if the conductor is
        stopping: then ``stop`` puts the leased actions back into the queue."""
        with contextlib.suppress(RuntimeError):
            self._pool.submit(do, *arguments)

    def _begin_together(self, database: Database, taken: Sequence[Any]) -> None:
        """Run the joint first step of the leased actions *taken*, such as scheduling several servers together. Then
        continue with the first action in this worker thread, and with each other action in another worker thread."""
        first, *further = self._begun(database, taken)
        for continuation in further:
            self._run_in_worker(self._do, continuation)
        self._do(first)

    def _begun(self, database: Database, taken: Sequence[Any]) -> list[Continuation | None]:
        """Run the joint first step of the leased actions *taken*. Return, for each action, the ``Continuation`` that a
        worker thread must run next; ``None`` if there is nothing more to do now. For an action that was left out of the
        joint step, return a ``Continuation`` that runs it alone."""
        works: dict[int, RunningAction] = {}
        try:
            with database.read() as connection:
                rows = servers.fetch_server_rows(connection, [action.server_id for action in taken])
            works = {action.id: RunningAction(self.conductor, database, action, row) for action in taken
                     if (row := rows.get(action.server_id)) is not None and not row.deleted_at}
            self.conductor.running_actions.add_actions({(database.name, number): work
                                                        for number, work in works.items()})
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
            keys = [(database.name, action.id) for action in taken]
            self.conductor.running_actions.remove_actions(keys)
            for key in keys:
                self.conductor.leased_actions.end(key)
        going = {number: work.continuation for number, work in works.items() if number not in alone}
        return [going[action.id] if action.id in going else Continuation(database, action) for action in taken]

    def _do(self, continuation: Continuation | None) -> None:
        """Run an action in a worker thread, and then its continuations one after the other. *continuation*: the action;
        ``None`` to do nothing."""
        with self.conductor.slots.working():
            while continuation and not self.conductor.over.is_set():  # the rest is given back
                self._begins(continuation.database, continuation.action)
                continuation = self._act(*continuation)

    def _notify_runners(self) -> None:
        for database in self._served:
            if self.conductor.slots.left[database.name]:
                database.signals.notify(servers.ACTIONS_CHANGED)

    def _act(self, database: Database, action: ActionRow, server: ServerRow | None,
             event: int | None) -> Continuation | None:
        """Run one action, and return the continuation that the same thread must run next, if any. *server*: the
        server's row; read from the database if ``None``. *event*: the number of an event that has already begun, if
        any."""
        key, named = (database.name, action.id), request_id.set(action.request_id)
        work = None
        try:
            work = RunningAction(self.conductor, database, action, server, event)
            self.conductor.running_actions.add_actions({key: work})
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
            self.conductor.running_actions.remove_actions([key])
            self.conductor.leased_actions.end(key)
            if work and work.last_report and not work.matches(work.last_report[1]):
                self.conductor.recheck(*work.last_report)
            request_id.reset(named)
        return work.continuation if work else None

    def _not_continued(self, *works: RunningAction) -> None:
        """Stop counting the continuations of *works* as running, because no thread will run them."""
        for work in works:
            if work.continuation:
                self.conductor.leased_actions.end((work.continuation.database.name, work.continuation.action.id))

    def _unexpected(self, database: Database, action: ActionRow, error: Exception) -> None:
        """Handle an exception that the action's flow (the function that executes the action) did not handle: a database
        that does not answer, or a bug.

        Put the action back into the queue. After the last attempt, end the action as failed and set the server to
        error, unless the server is shelved or soft-deleted. If the database cannot be written, do nothing: another
        attempt follows when the lease expires.
        """
        try:
            work = RunningAction(self.conductor, database, action) if action.attempts >= TRIES else None
            if work is None or (work.server and work.server.leaving):  # a server that leaves its cell cannot stay
                pause = AGAIN * min(action.attempts, 10)  # about eight minutes in total, for a database that is away
                with database.write() as connection:
                    actions.requeue_action_row(connection, action.id, self.conductor.holder, database.clock(pause))
            else:
                keeps_state = not work.rule.task or (work.server and work.server.vm_state in CALM)
                work.failed(error, **({} if keeps_state else {"vm_state": ERROR}))
        except (DBAPIError, LeaseLost) as again:
            log.warning("action %s of server %s is taken when its lease ends: %s", action.id, action.server_id, again)

    def _flow(self, work: RunningAction, flows: Mapping[str, Flow]) -> None:
        action = work.action
        if work.server is None or (work.server.deleted_at and action.action not in ("delete", "forceDelete")):
            if work.server is not None and action.action in self._gone:
                self._gone[action.action](work)
            with work.write() as connection:
                actions.end_action_row(connection, action.id, self.conductor.holder, "failed", "The server is deleted.")
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
            work.put_back(AGAIN, attempts=max(1, action.attempts - 1))  # this was no attempt

    def _tell(self, work: RunningAction) -> None:
        action = work.action
        log.info("%s begins", action.action, extra={"request_id": action.request_id, "server": work.id,
                                                    "host": work.server.host, "action": action.action})

    def _beat(self, database: Database) -> None:
        """Until the conductor stops, regularly renew the conductor's heartbeat and the leases of running actions in
        *database*, and set the event ``cancelled`` of those that were cancelled, so that these actions
        stop. Each database has its own thread, since a query to one database may hang."""
        while not self.conductor.over.is_set():
            if database is self._served[0]:
                with statement_timeout(actions.LEASE / 2, refused=False):
                    renew_or_end(self.conductor.announcement)
            works = self.conductor.running_actions.actions_of_database(database.name)
            try:
                if works:
                    with statement_timeout(actions.LEASE / 2, refused=False):
                        cancelled = actions.renew_action_leases(database, self.conductor.holder, works)
                    for number in cancelled & works.keys():
                        works[number].cancelled.set()
            except DBAPIError as error:
                log.warning("database %s: no heartbeat: %s", database.name, error.orig)
            self.conductor.over.wait(actions.HEARTBEAT)
