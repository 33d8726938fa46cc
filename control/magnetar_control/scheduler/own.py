# SPDX-License-Identifier: GPL-3.0-or-later
"""Custom filters and weighers: functions ``(host, spec)`` of installed packages, found by entry points. *host* is a
``HostState``, *spec* a ``RequestSpec``; the functions must change neither."""

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


def load_custom_function(group: str, name: str) -> Function | None:
    """Return the custom filter or weigher function *name*, loaded from the entry points of *group* in installed
    packages; ``None`` if no package has such a function. Raises ``ValueError`` if the entry point cannot be loaded or
    is not callable."""
    for entry_point in entry_points(group=group, name=name):
        try:
            function: Any = entry_point.load()
        except Exception as error:
            raise ValueError(f"{name} of {entry_point.value} cannot be loaded: {error}") from error
        if not callable(function):
            raise ValueError(  # noqa: TRY004 - an operator's setting is wrong
                f"{name} must be a function of a host and a request, and {entry_point.value} is none")
        return function  # type: ignore[no-any-return]
    return None


def guard_custom_function(name: str, function: Function, otherwise: Any) -> Function:
    """Return a wrapper of the custom filter or weigher *function*. If *function* raises an error for a host, the
    wrapper logs the error with *name*, and returns *otherwise*."""
    def call(host: HostState, spec: RequestSpec) -> Any:
        try:
            return function(host, spec)
        except Exception:
            log.exception("%s failed for host %s", name, host.name, extra={"host": host.name})
            return otherwise
    call.__doc__ = function.__doc__
    return call
