# SPDX-License-Identifier: GPL-3.0-or-later
"""The sections of the control plane's processes in the report on SIGUSR2 (``magnetar_core.daemon.report``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from magnetar_core.daemon.report import REPORT

from .settings_file import printable_settings, url_without_secrets

if TYPE_CHECKING:
    from .serve import Parts


@contextlib.contextmanager
def reporting_parts(parts: Parts) -> Iterator[None]:
    """Add sections about *parts* to the reports of this process while the ``with`` block runs. The process writes a
    report about itself when it gets SIGUSR2. During the block, reports are written to the folder in the setting
    ``report_dir``."""
    REPORT.folder = lambda: parts.settings.report_dir
    for title, describe in SECTIONS.items():
        REPORT.add_section(title, lambda describe=describe: describe(parts))  # type: ignore[misc]
    try:
        yield
    finally:
        for title in SECTIONS:
            REPORT.remove_section(title)
        REPORT.folder = lambda: None


def _describe_settings(parts: Parts) -> Iterator[str]:
    return printable_settings(parts.settings)


def _describe_databases(parts: Parts) -> Iterator[str]:
    """Yield the open databases with the connections of their pools. No query is sent."""
    for database in parts.store.opened_databases():
        yield f"{database.name}: {url_without_secrets(database.url.render_as_string(hide_password=False))}" \
              f"{', hangs' if database.breaker.hangs else ''}"
        for use, engine in (("transactions", database.engine), ("reads", database.reading)):
            yield f"  {use}: {engine.pool.status()}"


def _describe_actions(parts: Parts) -> Iterator[str]:
    """Yield the actions that the conductor of this process has leased, by host, and those that a worker runs."""
    if parts.working is None:
        return
    limits = parts.working.leased_actions.now()
    for host, count in sorted(limits.held.items()):
        yield f"leased for host {host}: {count}"
    for (database, number), action in list(parts.working.running_actions.actions.items()):
        yield f"runs: {action.action.action} of server {action.id}, {action.action.request_id} " \
              f"({database} {number}, try {action.action.attempts})"


#: The sections by title, in the order of the report. A new section is added here.
SECTIONS: Mapping[str, Callable[[Parts], Iterable[str]]] = {
    "Settings": _describe_settings, "Databases": _describe_databases, "Actions": _describe_actions}
