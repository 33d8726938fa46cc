# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of what an agent reports about its host, before the cloud uses it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.servers.servers import json_text
from magnetar_core.kinds import Host
from magnetar_core.values import ListOf
from magnetar_core.version import explain_distant_releases, installed_version

#: Python types of each property, and of the items of lists; empty for any type.
_FORMS = {field.name: (field.value.form, field.value.item.form if isinstance(field.value, ListOf) else ())
          for field in Host.fields}
#: Errors of code that reads a malformed report.
MALFORMED = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError)


class HostRefused(Exception):
    """Raised when a host's report is not acceptable. The host then does not count as up. The message explains the
    reason to operators."""


def check_host_report(name: str, report: Any, reported_name: str | None = None,
                      hosts: Container[str] = frozenset()) -> None:
    """Raise ``HostRefused`` unless *report* has the format of an agent's report of its host, and describes the host
    *name*. Properties may be missing or null, as on a host without libvirt.

    An agent that is more than one release older or newer than this conductor is refused.

    *reported_name*: the host name in the agent's earlier reports, which may differ from the cloud's *name* of the host.
    The name in a first report is accepted unless another host in *hosts* has this name.
    """
    if not isinstance(report, Mapping):
        raise HostRefused("its agent's report is malformed: it must be an object")
    for key, value in report.items():
        form, item_form = _FORMS.get(key, ((), ()))
        if value is None or not form:
            continue
        if not isinstance(value, form) or (isinstance(value, bool) and bool not in form):
            raise HostRefused(f"its agent's report is malformed: {key} must be {_type_names(form)}")
        items: Any = value
        if item_form and not all(isinstance(item, item_form) for item in items):
            raise HostRefused(f"its agent's report is malformed: {key} must have items of {_type_names(item_form)}")
    _refuse_other_agent(str(report.get("agent_version") or ""))
    new_name = report.get("name")
    if new_name not in (None, name, reported_name) and (reported_name or new_name in hosts):
        before = f", and was {reported_name!r} before" if reported_name else ""
        raise HostRefused(f"its agent says that it is host {new_name[:64]!r}{before}; correct the agent's host name or "
                          "the endpoint, or remove the host and add it again")
    for key, number in (report.get("metrics") or {}).items():
        if not isinstance(number, int | float):
            raise HostRefused(f"its agent's report is malformed: metrics.{key[:64]} must be a number")


def _refuse_other_agent(version: str) -> None:
    """Raise ``HostRefused`` if an agent of the release *version* does not work with this conductor."""
    own = installed_version()
    if reason := explain_distant_releases(("agent", version), ("conductor", own)):
        raise HostRefused(f"its agent ({version}) does not work with this conductor ({own}): {reason}")


def check_scheduler_reads(states: HostStates, row: HostRow, report: Mapping[str, Any]) -> None:
    """Raise ``HostRefused`` if the scheduler cannot parse *report* about the host of *row*. *states*: the scheduler's
    view of all hosts, which this check does not change."""
    trial = HostStates(states.default_zone, states.rules)
    try:
        trial.changed(row.changed_columns(info=json_text(report)), strict=True)
    except MALFORMED as error:
        raise malformed_report_error(error) from error
    finally:
        trial.gone(row.name)  # its parts refer to each other, and the garbage collector seldom looks


def malformed_report_error(error: Exception) -> HostRefused:
    """Return the error for a host's report that could not be parsed because of *error*."""
    return HostRefused(f"its agent's report is malformed: {type(error).__name__}: {str(error)[:200]}")


def _type_names(form: tuple[type, ...]) -> str:
    words = {str: "a string", int: "an integer", bool: "true or false", list: "a list", tuple: "a list",
             dict: "an object"}
    return " or ".join(dict.fromkeys(words.get(kind, kind.__name__) for kind in form))
