# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what: Nova's rule names and default checks (``policies``), checked by oslo.policy, overridable by files.

A decision depends on the rule, the caller and whose the target is, and is kept by these. The files are looked at again
every few seconds; one that is missing or wrong keeps the API from starting, and later the rules as they were.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oslo_config import cfg
from oslo_policy import _checks, policy

from magnetar_control.services import Context
from magnetar_core.errors import InvalidField

from . import policy_files
from .policies import BASE, CHECKS, FORMER, POLICIES
from .policy_files import Overrides

log = logging.getLogger(__name__)
#: Rules that ask another server are refused (``policy_files``): what asks one is not loaded, as it takes 5 MiB.
_checks.extension_checks = {}
KEPT = 20000
#: The rule that says who is an administrator (``is_admin`` in checks).
ADMIN = "context_is_admin"
#: Seconds between two looks at the policy files.
LOOK_AGAIN = 2.0


class RuleSet(NamedTuple):
    """All rules that hold: *checks* by name, *enforcer* that decides by them."""

    checks: Mapping[str, str]
    enforcer: policy.Enforcer

    def allows(self, rule: str, target: Mapping[str, Any], credentials: Mapping[str, Any]) -> bool:
        """Whether who has *credentials* may do *rule* to *target*."""
        admin = bool(self.enforcer.enforce(ADMIN, dict(target), {**credentials, "is_admin": False}))
        return bool(self.enforcer.enforce(rule, dict(target), {**credentials, "is_admin": admin}))


def ruled(overrides: Overrides) -> RuleSet:
    """The rules with *overrides*. A rule that they have by its former name only is as it says there, unless that is
    what it was by default then. Raises ``InvalidField`` for rules that lead nowhere, or to themselves."""
    given = overrides.rules
    checks = {**BASE, **{name: CHECKS[word] for name, word in POLICIES.items()}, **given}
    for name, former in FORMER.items():
        check = given.get(former.name)
        if check is not None and name not in given and check.strip() not in (former.check, f"rule:{name}"):
            checks[name] = check
    conf = cfg.ConfigOpts()
    conf([])
    default = "default" if "default" in given else None
    made = policy.Enforcer(conf, rules=policy.Rules.from_dict(checks, default), use_conf=False)
    made.skip_undefined_check = default is not None
    try:
        made.check_rules(raise_on_violation=True)
    except policy.InvalidDefinitionError as error:
        raise policy_files.wrong(overrides.place(given), "a rule that is not there, or one that leads to itself: "
                                 f"{error}") from None
    return RuleSet(checks, made)


class Policy:
    """Decides by rule names. *file* and the files in *folders* override rules, later ones what earlier ones say. Raises
    ``InvalidField`` where one is missing or wrong."""

    def __init__(self, file: Path | None = None, folders: Sequence[Path] = ()) -> None:
        logging.getLogger("oslo_policy").setLevel(logging.CRITICAL)  # what is wrong with a file is said here
        self.file, self.folders = file, tuple(folders)
        self._lock = threading.Lock()
        self._decided: dict[Any, bool] = {}
        self._looked, self._seen = time.monotonic(), policy_files.mark(self.file, self.folders)
        self._rules = self._make()

    def _make(self) -> RuleSet:
        overrides = policy_files.read(self.file, self.folders)
        made = ruled(overrides)
        for text in overrides.warnings():
            log.warning("%s", text)
        return made

    def allows(self, rule: str, context: Context, project_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether *context* may do *rule* to what belongs to *project_id* and *user_id* (its own when left out)."""
        project = context.project_id if project_id is None else project_id
        user = context.user_id if user_id is None else user_id
        key = (rule, context.roles, context.project_id, context.user_id, project, user, context.scope,
               context.for_user)
        self._look()
        found = self._decided.get(key)
        if found is None:
            if rule not in POLICIES and rule != ADMIN:
                raise LookupError(f"The rule {rule} has no default.")
            with self._lock:
                found = self._rules.allows(rule, {"project_id": project, "user_id": user}, credentials_of(context))
                if len(self._decided) > KEPT:
                    self._decided.clear()
                self._decided[key] = found
        return found

    def _look(self) -> None:
        """Read the files again when they have changed."""
        if not (self.file or self.folders) or time.monotonic() - self._looked < LOOK_AGAIN:
            return
        with self._lock:
            self._looked, seen, before = time.monotonic(), policy_files.mark(self.file, self.folders), self._seen
            if seen == before:
                return
            self._seen = seen
            try:
                self._rules = self._make()
            except InvalidField as error:
                log.error("%s The rules stay as they were before.", error.message)  # noqa: TRY400 - it says all
                return
            self._decided.clear()
            log.info("%s: the rules are read again", self.file or ", ".join(map(str, self.folders)))


def credentials_of(context: Context) -> dict[str, Any]:
    """What checks read of who asks, by the names of oslo.context."""
    return {"roles": sorted(context.roles), "project_id": context.project_id, "user_id": context.user_id,
            "user_domain_id": context.user_domain_id, "project_domain_id": context.project_domain_id,
            "system_scope": "all" if context.scope == "system" else None,
            "service_roles": ["service"] if context.for_user else []}
