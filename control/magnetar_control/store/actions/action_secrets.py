# SPDX-License-Identifier: GPL-3.0-or-later
"""The password among the arguments of an action: kept while the action waits or runs, and erased in the transaction
that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

#: The argument's name.
ADMIN_PASS = "admin_pass"  # noqa: S105 - a name


def argument(password: str | None) -> Mapping[str, str]:
    """The argument of an action that tells the guest a *password*, if there is one."""
    return {ADMIN_PASS: password} if password else {}


def forgotten(args: str) -> str | None:
    """The arguments of an action, JSON text, without its password; ``None`` where they have none."""
    if f'"{ADMIN_PASS}"' not in args:
        return None
    kept: dict[str, Any] = {name: value for name, value in orjson.loads(args).items() if name != ADMIN_PASS}
    return orjson.dumps(kept).decode()
