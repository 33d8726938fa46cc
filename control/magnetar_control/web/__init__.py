# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP for the services of the control plane: ``Request`` in, ``Answer`` or ``Fault`` out, in threads."""

from __future__ import annotations

from .answer import Answer, Fault, fault_of
from .request import Request
from .routing import Route, Router

__all__ = ["Answer", "Fault", "Request", "Route", "Router", "fault_of"]
