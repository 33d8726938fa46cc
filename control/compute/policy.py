# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what: Nova's rule names and default roles (``POLICIES``), checked by oslo.policy, overridable by a file.

A decision depends on the rule, the caller and whose the target is, and is kept by these. The file is looked at again
every few seconds; one that is missing or wrong keeps the API from starting, and later the rules as they were.
"""

from __future__ import annotations

import difflib
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import yaml
from oslo_config import cfg
from oslo_policy import policy

from magnetar_control.compute.policies import POLICIES
from magnetar_control.services import Context
from magnetar_core.errors import InvalidField

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
log = logging.getLogger(__name__)
KEPT = 20000
_NAMED = re.compile(r"\brule:([^\s()]+)")
#: Seconds between two looks at the policy file.
LOOK_AGAIN = 2.0


class Policy:
    """Decides by rule names. Raises ``InvalidField`` where the file is missing or wrong."""

    def __init__(self, file: Path | None = None) -> None:
        logging.getLogger("oslo_policy").setLevel(logging.CRITICAL)  # what is wrong with a file is said here
        self.file = file
        self._lock = threading.Lock()
        self._decided: dict[Any, bool] = {}
        self._looked, self._seen = time.monotonic(), self._mark()
        self._enforcer = self._make()

    def _make(self) -> policy.Enforcer:
        given = _read(self.file) if self.file else {}
        conf = cfg.ConfigOpts()
        conf([])
        rules = {**{name: CHECKS[role] for name, role in POLICIES.items()}, **given}
        made = policy.Enforcer(conf, rules=policy.Rules.from_dict(rules), use_conf=False)
        try:
            made.check_rules(raise_on_violation=True)
        except policy.InvalidDefinitionError as error:
            raise _wrong(self.file, f"a rule that is not there, or one that leads to itself: {error}") from None
        for name in sorted(given.keys() - POLICIES.keys() - set(_NAMED.findall(" ".join(map(str, given.values()))))):
            like = difflib.get_close_matches(name, POLICIES, 1)
            log.warning("policy_file %s: nothing asks for the rule %s%s", self.file, name,
                        f"; is {like[0]} meant?" if like else "")
        return made

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

    def _mark(self) -> tuple[int, int] | None:
        """What changes with the file; ``None`` when there is none."""
        try:
            found = self.file.stat() if self.file else None
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size) if found else None

    def _look(self) -> None:
        """Read the file again when it has changed."""
        if self.file is None or time.monotonic() - self._looked < LOOK_AGAIN:
            return
        with self._lock:
            self._looked, seen, before = time.monotonic(), self._mark(), self._seen
            if seen == before:
                return
            self._seen = seen
            try:
                self._enforcer = self._make()
            except InvalidField as error:
                log.error("%s The rules stay as they were before.", error.message)  # noqa: TRY400 - it says all
                return
            self._decided.clear()
            log.info("policy_file %s: the rules are read again", self.file)


def _read(file: Path) -> dict[str, Any]:
    """The rules of *file*. Raises ``InvalidField``."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(file, " ".join(str(error).split())) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _wrong(file, "it is no mapping of rules' names to checks")
    for name, text in found.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise _wrong(file, f"the rule {name} is no text; write it in quotes")
        check = str(policy.Rules.from_dict({name: text})[name])
        if check.count("!") > text.count("!"):  # what oslo.policy does not understand is nobody to it
            raise _wrong(file, f"the rule {name} is not understood: {text[:200]!r}")
    return found


def _wrong(file: Path | None, why: str) -> InvalidField:
    return InvalidField("policy_file", f"must be a YAML file of oslo.policy rules, and {file} is not ({why})")
