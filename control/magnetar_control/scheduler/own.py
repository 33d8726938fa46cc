# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters and weighers of one's own: functions ``(host, spec)`` of installed packages, found by entry points (spec rows
SCH-04, SCH-10, SCH-11). *host* is a ``HostState``, *spec* a ``RequestSpec``; both are only read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from .host_state import HostState
from .request_spec import RequestSpec

log = logging.getLogger(__name__)
GROUP_FILTERS, GROUP_WEIGHERS = "magnetar.filters", "magnetar.weighers"
Function = Callable[[HostState, RequestSpec], Any]


def found(group: str, name: str) -> Function | None:
    """The function of that name; ``None`` when no package has one. Raises ``ValueError`` when it cannot be loaded, or
    cannot be called."""
    for one in entry_points(group=group, name=name):
        try:
            function: Any = one.load()
        except Exception as error:
            raise ValueError(f"{name} of {one.value} cannot be loaded: {error}") from error
        if not callable(function):
            raise ValueError(  # noqa: TRY004 - an operator's setting is wrong
                f"{name} must be a function of a host and a request, and {one.value} is none")
        return function  # type: ignore[no-any-return]
    return None


def guarded(name: str, function: Function, otherwise: Any) -> Function:
    """The function; a host of which it fails gets *otherwise*, so that an error in it stops no conductor."""
    def call(host: HostState, spec: RequestSpec) -> Any:
        try:
            return function(host, spec)
        except Exception:
            log.exception("%s failed for host %s", name, host.name, extra={"host": host.name})
            return otherwise
    call.__doc__ = function.__doc__
    return call
