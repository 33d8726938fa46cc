# SPDX-License-Identifier: GPL-3.0-or-later
"""Access control by oslo.policy, with Nova's rules and default checks (``policies``), which files can override.

A decision depends on the rule, the caller and the target's owner; it is cached for each combination of them. The files
are checked for changes every few seconds. A missing or invalid file prevents the start of the API; when the API runs
already, the previous rules stay in force.
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
#: Rules that ask another server are refused (``policy_files``), so their checks are not loaded: they take 5 MiB.
_checks.extension_checks = {}
CACHE_SIZE = 20000
#: The rule that decides who is an administrator (``is_admin`` in checks).
ADMIN = "context_is_admin"
#: Seconds between two checks of the policy files for changes.
RECHECK_INTERVAL = 2.0


class RuleSet(NamedTuple):
    """The effective policy rules. *checks*: the check string of each rule, by the rule's name. *enforcer*: the
    oslo.policy enforcer that evaluates them."""

    checks: Mapping[str, str]
    enforcer: policy.Enforcer

    def allows(self, rule: str, target: Mapping[str, Any], credentials: Mapping[str, Any]) -> bool:
        """Return whether *rule* allows the caller with *credentials* (the result of ``credentials_of``) to act on
        *target* (its project_id and user_id)."""
        admin = bool(self.enforcer.enforce(ADMIN, dict(target), {**credentials, "is_admin": False}))
        return bool(self.enforcer.enforce(rule, dict(target), {**credentials, "is_admin": admin}))


def build_rule_set(overrides: Overrides) -> RuleSet:
    """Return the policy rules of Nova with *overrides* applied. An override under a rule's former name also applies,
    unless the current name is overridden too, or the override equals the former default. Raises ``InvalidField`` for a
    rule that refers to a missing rule or to itself."""
    overriding = overrides.rules
    checks = {**BASE, **{name: CHECKS[role] for name, role in POLICIES.items()}, **overriding}
    for name, former in FORMER.items():
        check = overriding.get(former.name)
        if check is not None and name not in overriding and check.strip() not in (former.check, f"rule:{name}"):
            checks[name] = check
    conf = cfg.ConfigOpts()
    conf([])
    default = "default" if "default" in overriding else None
    made = policy.Enforcer(conf, rules=policy.Rules.from_dict(checks, default), use_conf=False)
    made.skip_undefined_check = default is not None
    try:
        made.check_rules(raise_on_violation=True)
    except policy.InvalidDefinitionError as error:
        raise policy_files.invalid_policy_file(overrides.file_paths(overriding),
                                               "a rule that is not there, or one that leads to itself: "
                                               f"{error}") from None
    return RuleSet(checks, made)


class Policy:
    """The policy of the cloud: decides whether a caller passes a rule. The file *file* and the files in *folders*
    override the default rules; later files take precedence. Raises ``InvalidField`` when a file is missing or invalid.
    """

    def __init__(self, file: Path | None = None, folders: Sequence[Path] = ()) -> None:
        logging.getLogger("oslo_policy").setLevel(logging.CRITICAL)  # this module reports errors of files itself
        self.file, self.folders = file, tuple(folders)
        self._lock = threading.Lock()
        self._decided: dict[Any, bool] = {}
        self._looked, self._seen = time.monotonic(), policy_files.policy_files_stamp(self.file, self.folders)
        self._rules = self._make()

    def _make(self) -> RuleSet:
        overrides = policy_files.read_policy_files(self.file, self.folders)
        made = build_rule_set(overrides)
        for text in overrides.warnings():
            log.warning("%s", text)
        return made

    def allows(self, rule: str, context: Context, project_id: str | None = None, user_id: str | None = None) -> bool:
        """Return whether the policy rule *rule* allows the caller with the token *context* to act on a target that
        belongs to *project_id* and *user_id* (default: the caller's own)."""
        project = context.project_id if project_id is None else project_id
        user = context.user_id if user_id is None else user_id
        key = (rule, context.roles, context.project_id, context.user_id, project, user, context.scope,
               context.for_user)
        self._reload_changed_files()
        decision = self._decided.get(key)
        if decision is None:
            if rule not in POLICIES and rule != ADMIN:
                raise LookupError(f"The rule {rule} has no default.")
            with self._lock:
                decision = self._rules.allows(rule, {"project_id": project, "user_id": user}, credentials_of(context))
                if len(self._decided) > CACHE_SIZE:
                    self._decided.clear()
                self._decided[key] = decision
        return decision

    def _reload_changed_files(self) -> None:
        """Read the policy files again if they have changed, but check for changes only every ``RECHECK_INTERVAL``
        seconds. If a file is invalid, log the error and continue with the previous rules."""
        if not (self.file or self.folders) or time.monotonic() - self._looked < RECHECK_INTERVAL:
            return
        with self._lock:
            self._looked, stamp, previous_stamp = time.monotonic(), policy_files.policy_files_stamp(
                self.file, self.folders), self._seen
            if stamp == previous_stamp:
                return
            self._seen = stamp
            try:
                self._rules = self._make()
            except InvalidField as error:
                log.error("%s The rules stay as they were before.", error.message)  # noqa: TRY400 - it says all
                return
            self._decided.clear()
            log.info("%s: the rules are read again", self.file or ", ".join(map(str, self.folders)))


def credentials_of(context: Context) -> dict[str, Any]:
    """Return the roles, project, user, domains and scope of *context* under the names that policy rules of OpenStack
    use."""
    return {"roles": sorted(context.roles), "project_id": context.project_id, "user_id": context.user_id,
            "user_domain_id": context.user_domain_id, "project_domain_id": context.project_domain_id,
            "system_scope": "all" if context.scope == "system" else None,
            "service_roles": ["service"] if context.for_user else []}
