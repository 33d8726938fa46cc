# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what: Nova's rule names and default roles (``POLICIES``), checked by oslo.policy, overridable by a file.

A decision depends on the rule, the caller and whose the target is, and is kept by these; the file is looked at again
every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from oslo_config import cfg
from oslo_policy import policy

from magnetar_control.services import Context
from magnetar_control.web import Fault

from .policies import POLICIES

#: Role words to oslo.policy checks. Admins pass every one.
CHECKS = {
    "any": "@",
    "reader": "role:admin or (role:reader and project_id:%(project_id)s)",
    "member": "role:admin or (role:member and project_id:%(project_id)s)",
    "manager": "role:admin or (role:manager and project_id:%(project_id)s)",
    "admin": "role:admin",
    "owner": "role:admin or user_id:%(user_id)s",
    "service": "role:admin or role:service",
    "nobody": "!",
}
KEPT = 20000
#: Seconds between two looks at the policy file.
LOOK_AGAIN = 2.0


class Policy:
    """Decides by rule names."""

    def __init__(self, file: Path | None = None) -> None:
        logging.getLogger("oslo_policy").setLevel(logging.ERROR)  # it warns of every rule that a file leaves out
        self.file = file
        self._lock = threading.Lock()
        self._decided: dict[Any, bool] = {}
        self._looked, self._changed = 0.0, 0.0
        self._enforcer = self._make()

    def _make(self) -> policy.Enforcer:
        conf = cfg.ConfigOpts()
        conf([])
        enforcer = policy.Enforcer(conf, policy_file=str(self.file or "magnetar-has-no-policy-file.yaml"))
        for name, role in POLICIES.items():
            enforcer.register_default(policy.RuleDefault(name, CHECKS[role]))
        enforcer.load_rules()
        return enforcer

    def allows(self, rule: str, context: Context, project_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether *context* may do *rule* to what belongs to *project_id* and *user_id* (its own when left out)."""
        project = context.project_id if project_id is None else project_id
        user = context.user_id if user_id is None else user_id
        key = (rule, context.roles, context.project_id, context.user_id, project, user)
        self._look()
        found = self._decided.get(key)
        if found is None:
            credentials = {"roles": sorted(context.roles), "project_id": context.project_id,
                           "is_admin": context.is_admin, "user_id": context.user_id}
            with self._lock:
                found = bool(self._enforcer.enforce(rule, {"project_id": project, "user_id": user}, credentials))
                if len(self._decided) > KEPT:
                    self._decided.clear()
                self._decided[key] = found
        return found

    def check(self, rule: str, context: Context, project_id: str | None = None, user_id: str | None = None) -> None:
        """Raises ``Fault`` 403 in Nova's words."""
        if not self.allows(rule, context, project_id, user_id):
            raise Fault(403, f"Policy doesn't allow {rule} to be performed.")

    def _look(self) -> None:
        """Read the file again when it has changed."""
        if self.file is None or time.monotonic() - self._looked < LOOK_AGAIN:
            return
        self._looked = time.monotonic()
        try:
            changed = self.file.stat().st_mtime
        except OSError:
            return
        if changed != self._changed:
            with self._lock:
                self._changed, self._enforcer = changed, self._make()
                self._decided.clear()
