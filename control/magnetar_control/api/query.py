# SPDX-License-Identifier: GPL-3.0-or-later
"""What the queries of several OpenStack APIs have alike."""

from __future__ import annotations

from collections.abc import Collection

from magnetar_control.web import Request
from magnetar_core.errors import InvalidField


def check_known(request: Request, known: Collection[str], listed: str = "this is") -> None:
    """Raises ``InvalidField`` for a parameter that nothing acts on: who asks would take the list for another one.
    *listed*: what there is a list of, such as "users are". Names with __ are forms of others, and not told."""
    for name, _value in request.query:
        if name not in known:
            told = ", ".join(sorted(one for one in known if "__" not in one))
            raise InvalidField(name[:80], f"is nothing by which {listed} listed; there are {told}")
