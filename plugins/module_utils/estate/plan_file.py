# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of a plan: JSON that only its owner can read, since the requests in it may hold secrets."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile

from ..core.errors import InvalidField

FORMAT = 1


def plan_digest(plan):
    """Return a digest of *plan*, from all its content except its id and time."""
    content = {name: value for name, value in plan.items() if name not in ("id", "created_at")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def new_plan(drift, items, created_at):
    """Return a new plan (a mapping) for *drift*. *items*: the items of the plan, in the order in which they are applied
    later. *created_at*: the time of creation. The key ``id`` of the plan is its ``plan_digest``.
    """
    plan = {"format": FORMAT, "created_at": created_at, "places": dict(sorted(drift.places.items())), "items": items,
            "unmanaged": drift.unmanaged, "unchanged": drift.unchanged}
    return dict(plan, id=plan_digest(plan))


def read_plan(path, plan_id=None):
    """Read and return the plan in the file *path*. Raises ``InvalidField`` if the file is not a plan, is incomplete, or
    was edited, or is another plan than *plan_id*.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            plan = json.load(stream)
    except OSError as error:
        raise InvalidField("plan", "cannot be read: %s" % error.strerror, path) from None
    except ValueError:
        raise InvalidField("plan", "is no plan: it is not JSON. Make it with state: planned", path) from None
    if not isinstance(plan, dict) or not {"format", "places", "items", "id"} <= set(plan):
        raise InvalidField("plan", "is no plan of this module. Make it with state: planned", path)
    if plan["format"] != FORMAT:
        raise InvalidField("plan", "is of another release of the collection (format %s). Make it again"
                           % plan["format"], path)
    if plan_digest(plan) != plan["id"]:
        raise InvalidField("plan", "was edited or is incomplete: its content does not fit its id. Make it again", path)
    if plan_id and plan["id"] != plan_id:
        raise InvalidField("plan_id", "is not the plan in the file, which is %s: another run has made it since. Read "
                           "that plan, and approve it" % plan["id"], plan_id)
    return plan


def same_plan(path, plan):
    """Return whether the file *path* contains a plan with the same content as *plan*, apart from the time."""
    try:
        return read_plan(path)["id"] == plan["id"]
    except InvalidField:
        return False


def write_file(option, path, text, private=False):
    """Write *text* to the file *path* atomically. *private*: only its owner can read it. Raises ``InvalidField`` for
    the module option *option* if that fails.
    """
    folder = os.path.dirname(path) or "."
    try:
        handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), dir=folder)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if not private:
                os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidField(option, "cannot be written: %s" % error.strerror, path) from None
