# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch request, which creates, updates or removes many resources. Items that need no change are found from one
snapshot of the host, the others run in parallel."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.reconcile import ensure_resource, without_fields_of_clouds
from magnetar_core.errors import Cancelled, MagnetarError, mask_unforeseen_error
from magnetar_core.operations import CURRENT, Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import Change, checked_request

if TYPE_CHECKING:
    from magnetar_agent.drivers import Driver, Drivers
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_core.fields import Kind

log = logging.getLogger(__name__)


def ensure_many(drivers: Drivers, kind: type[Kind], items: list[tuple[str, Fields | None, Mapping[str, Any]]],
                dry_run: bool, operation: Operation) -> list[dict[str, Any]]:
    """Create, update or remove many resources independently. *items*: (key, requested fields, options such as
    ``on_immutable``, the policy for changes of fixed fields) of each resource. If the fields are ``None``, the resource
    is removed. Return a dict for each item in the same order: its key with the result or the error.

    The state of the host is read once, to find items that need no change; the others are processed by a few threads.
    Raises ``Cancelled``, with the keys of finished items, if the operation was cancelled before all were done.
    """
    driver = drivers.of(kind)
    looked = _UnchangedItems(drivers.host, driver)
    answers: list[dict[str, Any] | None] = [looked.unchanged(*item) for item in items]
    waiting = [(at, items[at]) for at, answer in enumerate(answers) if answer is None]
    done = 0

    def one(item: tuple[str, Fields | None, Mapping[str, Any]]) -> dict[str, Any]:
        nonlocal done
        key, want, permissions = item
        item_operation = _ItemOperation(operation, key)
        CURRENT.set(item_operation)  # the thread is the batch's own
        try:
            operation.raise_if_cancelled()
            answer = ensure_resource(drivers, kind, key, want, permissions, dry_run, item_operation).as_dict()
        except MagnetarError as error:
            answer = {"error": error.as_dict()}
        except Exception as error:
            log.exception("item %s of a batch", key, extra={"request_id": operation.request_id})
            answer = {"error": mask_unforeseen_error(error).as_dict()}
        done += 1
        with suppress(Cancelled):  # this item has its answer
            operation.advance(done, len(waiting), unit="items")
        return {"key": key, **answer}

    if waiting:
        with ThreadPoolExecutor(drivers.host.settings.parallel, thread_name_prefix="batch") as pool:
            for (at, _item), answer in zip(waiting, pool.map(one, [item for _at, item in waiting]), strict=True):
                answers[at] = answer
    results = [answer for answer in answers if answer is not None]
    _raise_if_cancelled(results)
    return results


def _raise_if_cancelled(results: list[dict[str, Any]]) -> None:
    """Raise ``Cancelled``, with the keys of the finished items, if *results* contain cancelled items."""
    stopped = [result["error"]["message"] for result in results
               if result.get("error", {}).get("code") == Cancelled.code]
    if not stopped:
        return
    done = [result["key"] for result in results if "error" not in result]
    reasons = " ".join(text for text in dict.fromkeys(stopped) if text != Cancelled().message)
    raise Cancelled(f"The operation was cancelled. {len(done)} of {len(results)} were done by then, and stay. "
                    f"{reasons}".strip(), done=done)


class _ItemOperation(Operation):
    """The operation (background task) for one item of a batch, a request with many resources. It is cancelled together
    with the batch, but has separate progress."""

    def __init__(self, whole: Operation, key: str) -> None:
        super().__init__(whole.name, whole.kind, key, whole.request_id, whole.caller, cloud=whole.cloud)
        self._whole = whole

    def raise_if_cancelled(self) -> None:
        """Raise ``Cancelled`` if the whole batch was cancelled."""
        self._whole.raise_if_cancelled()


class _UnchangedItems:
    """The check for items of a batch that need no change. It reads the state of the host only once, and takes no locks,
    because it changes nothing."""

    def __init__(self, host: LocalHost, driver: Driver) -> None:
        self.host, self.driver, self.kind = host, driver, driver.kind
        self.snapshot = driver.snapshot(host)

    def unchanged(self, key: str, want: Fields | None, permissions: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the result for an item that needs no change. Return ``None`` if it may need a change, or may be
        invalid: the caller must then process it. *key*: the resource's name or uuid. *want*: the requested fields;
        ``None`` to remove the resource. *permissions*: options of the request, such as ``on_immutable``, the policy for
        changes of fixed fields (``fail``, ``recreate``, …)."""
        try:
            located = self.driver.locate(self.host, key)
            document = self.host.documents.find(self.kind.noun, located)
            if want is None or document is None or document.deleting or document.state.get("unfinished"):
                return None
            requested = checked_request(self.kind, located, without_fields_of_clouds(self.kind, want))
            change = Change(self.kind, requested, permissions, False)
            change.check_id(document.id, document.name)
            completed = self.driver.complete(self.host, change.wanted(document.want), document)
            have = self.driver.observe(self.host, document, self.snapshot)
            if completed != document.want or next(iter(self.driver.plan(completed, have)), None):
                return None
            shown = self.driver.show(self.host, document, have, self.snapshot)
        except MagnetarError:
            return None
        return {"key": key, **Result([], [], shown).as_dict()}
