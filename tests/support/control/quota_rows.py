# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of servers for tests of quotas."""

import itertools
import json

from magnetar_control.store.engine.database import utc_now

NUMBERS = itertools.count(1)
SMALL = {"vcpus": 1, "ram": 512}


def usage_row(project="red", user="alice", flavor=SMALL, **more):
    """Return the columns of a server."""
    return {"id": f"{next(NUMBERS):036d}", "project_id": project, "user_id": user, "name": "web", "vm_state": "active",
            "flavor_id": "1", "flavor": json.dumps(flavor), "created_at": utc_now(), "leaving": None,
            "deleted_at": None, **more}
