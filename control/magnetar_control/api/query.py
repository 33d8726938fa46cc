# SPDX-License-Identifier: GPL-3.0-or-later
"""The check for unknown query parameters, which several OpenStack APIs share."""

from __future__ import annotations

from collections.abc import Collection

from magnetar_control.web import Request
from magnetar_core.errors import InvalidField


def check_known(request: Request, known_names: Collection[str], listed: str = "this is") -> None:
    """Raise ``InvalidField`` if the query has a parameter that is not in *known_names*. Without this check, a client
    would get a list to which the filter was not applied. *listed*: a part of the error message, such as "users are" in
    "… is nothing by which users are listed". The error also names all *known_names*, except comparisons (names with
    ``__``)."""
    for name, _value in request.query:
        if name not in known_names:
            shown_names = ", ".join(sorted(known_name for known_name in known_names if "__" not in known_name))
            raise InvalidField(name[:80], f"is nothing by which {listed} listed; there are {shown_names}")
