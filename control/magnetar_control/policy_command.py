# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar policy``: which rules there are, a file to begin with, and who passes which."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar_core.errors import InvalidField

from . import settings_file as configuration

if TYPE_CHECKING:
    from magnetar_control.api.nova.operation import ApiOperation
    from magnetar_control.compute.access.policy import RuleSet
#: Attributes of who asks that a credentials file may have, and of a target.
CREDENTIALS = ("user_id", "project_id", "user_domain_id", "project_domain_id", "system_scope", "domain_id")
TARGET = ("project_id", "user_id")
LINE = 110


class RuleLine(NamedTuple):
    """A rule as it is listed: the check that holds, the default, and what asks for it."""

    name: str
    check: str
    default: str
    what: str
    operations: tuple[str, ...]


def arguments(command: Any, group: Any) -> None:
    """Add ``policy`` with its actions. *command* adds one to a *group*, as those of ``cli``."""
    every = group("policy", "List the rules that say who may do what, say who passes them, print a file of them.")
    look = command(every, "list", listing, "List all rules: the check that holds, and the operations that ask for it. "
                   "A check that is not the default is marked with *.",
                   "magnetar policy list\n  magnetar policy list servers:create --file policy.yaml")
    look.add_argument("--json", action="store_true", help="as a JSON list of {name, check, default, what, operations}")
    make = command(every, "generate", generate, "Print a policy file with all rules as they are by default, commented "
                   "out.", "magnetar policy generate > policy.yaml")
    check = command(every, "check", checking, "Say which rules somebody passes. Status 1 when a rule that is named is "
                    "not passed.", "magnetar policy check --as member\n  magnetar policy check "
                    "os_compute_api:servers:create --as reader --project 6f70656e\n  magnetar policy check "
                    "--credentials token.json --target project_id=other")
    look.add_argument("rules", nargs="*", metavar="RULE", help="names of rules, or parts of them")
    check.add_argument("rules", nargs="*", metavar="RULE", help="names of rules; all when left out")
    for one in (look, check):
        one.add_argument("--file", type=Path, metavar="FILE", help="policy file, instead of those of the settings")
    check.add_argument("--as", dest="roles", metavar="ROLES", help="roles, with commas between them, as a token has "
                       "them (each includes those below it: admin, manager, member, reader); default: $OS_ROLES")
    check.add_argument("--project", metavar="ID", help="project of who asks; default: $OS_PROJECT_ID, or one's own")
    check.add_argument("--user", metavar="ID", help="user who asks; default: $OS_USER_ID, or oneself")
    check.add_argument("--credentials", type=Path, metavar="FILE", help="who asks instead, as JSON: a token as the "
                       "identity service shows it ({token: ...}), or {roles, project_id, user_id, ...}")
    check.add_argument("--target", action="append", default=[], metavar="NAME=VALUE", help="whose it is what is asked "
                       "about: project_id and user_id; their own when left out")
    check.add_argument("--json", action="store_true", help="as a JSON object of rules to true and false")
    make.set_defaults(file=None)


def lines(rules: RuleSet) -> list[RuleLine]:
    """All rules that something asks, by name."""
    from magnetar_control.api.nova.operations import OPERATIONS
    from magnetar_control.compute.access.policies import CHECKS, FURTHER, POLICIES

    asked: dict[str, list[ApiOperation]] = {}
    for one in OPERATIONS:
        asked.setdefault(one.policy or "", []).append(one)
    found = []
    for name, word in sorted(POLICIES.items()):
        further = FURTHER.get(name)
        names = frozenset(further.of.split()) if further else frozenset()
        served = [*asked.get(name, ()), *(one for one in OPERATIONS if one.name in names)]
        if served:
            found.append(RuleLine(name, rules.checks[name], CHECKS[word], further.what if further else "",
                                  tuple(dict.fromkeys(map(_where, served)))))
    return found


def _where(one: ApiOperation) -> str:
    return f"{one.method} {one.path}" + (f" ({one.action})" if one.action else "")


def _rules(given: argparse.Namespace) -> RuleSet:
    """The rules of the file of the command line, or of the settings. Raises ``InvalidField``."""
    from magnetar_control.compute.access import policy_files
    from magnetar_control.compute.access.policy import ruled

    if given.file:
        return ruled(policy_files.read(given.file))
    found = configuration.load(given.config)
    return ruled(policy_files.read(found.policy_file, [Path(one) for one in found.policy_dirs]))


def listing(given: argparse.Namespace) -> int:
    """``magnetar policy list``. Status 1 when no rule has the name."""
    found = [one for one in lines(_rules(given))
             if not given.rules or any(part in one.name for part in given.rules)]
    if given.json:
        print(json.dumps([one._asdict() for one in found], indent=1))
    for one in () if given.json else found:
        print(f"{one.name}\n    {'* ' if one.check != one.default else ''}{one.check}")
        print(*(f"    {text}" for text in (*textwrap.wrap(one.what, LINE), *one.operations)), sep="\n")
    return 0 if found else 1


def generate(_given: argparse.Namespace) -> int:
    """``magnetar policy generate``."""
    print("\n".join(sample()))
    return 0


def sample() -> Iterator[str]:
    """The lines of a policy file in which everything is commented out."""
    from magnetar_control.compute.access.policies import BASE, FORMER
    from magnetar_control.compute.access.policy import ruled
    from magnetar_control.compute.access.policy_files import Overrides

    yield "# Rules of the compute service. Remove the # before those that you change; the others stay as they are."
    yield ""
    yield "# Rules that others refer to."
    yield from (f'#"{name}": "{check}"' for name, check in BASE.items())
    for one in lines(ruled(Overrides())):
        yield ""
        yield from (f"# {text}" for text in (*textwrap.wrap(one.what, LINE), *one.operations))
        if one.name in FORMER:
            yield f"# Formerly {FORMER[one.name].name}"
        yield f'#"{one.name}": "{one.default}"'


def checking(given: argparse.Namespace) -> int:
    """``magnetar policy check``. Raises ``InvalidField``."""
    rules, credentials = _rules(given), _credentials(given)
    target = {**{name: credentials.get(name) for name in TARGET}, **_target(given.target)}
    known = [one.name for one in lines(rules)]
    for name in given.rules:
        if name not in rules.checks:
            raise InvalidField("RULE", "must be the name of a rule; `magnetar policy list` has them", name)
    passed = {name: rules.allows(name, target, credentials) for name in given.rules or known}
    if given.json:
        print(json.dumps(passed, indent=1))
    else:
        print(*(f"{'passed' if passes else 'failed'}: {name}" for name, passes in passed.items()), sep="\n")
    return 1 if given.rules and not all(passed.values()) else 0


def _target(pairs: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if name not in TARGET or not sign:
            raise InvalidField("--target", "must be project_id=ID or user_id=ID: rules are asked with no more", pair)
        found[name] = value
    return found


def _credentials(given: argparse.Namespace) -> Mapping[str, Any]:
    """Who asks. Raises ``InvalidField``."""
    if given.credentials:
        return _of_file(given.credentials)
    roles = given.roles if given.roles is not None else os.environ.get("OS_ROLES")
    if not roles:
        raise InvalidField("--as", "is needed: roles, or --credentials with a file")
    return {"roles": expanded(roles.replace(",", " ").split()),
            "project_id": given.project or os.environ.get("OS_PROJECT_ID") or "own-project",
            "user_id": given.user or os.environ.get("OS_USER_ID") or "own-user"}


def expanded(roles: Sequence[str]) -> list[str]:
    """*roles* with those that they imply, as tokens of the identity service have them."""
    order = ("admin", "manager", "member", "reader")
    at = min((order.index(role) for role in roles if role in order), default=len(order))
    return sorted({*roles, *order[at:]})


def _of_file(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        found = found.get("token", found)
        roles = [one["name"] if isinstance(one, dict) else one for one in found["roles"]]
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise InvalidField("--credentials", f"must be a JSON file of a token or of credentials, and {file} is not "
                                            f"({type(error).__name__}: {error})") from None
    shown: dict[str, Any] = {name: found[name] for name in CREDENTIALS if name in found}
    for noun in ("user", "project"):
        if isinstance(found.get(noun), dict):
            shown[f"{noun}_id"] = found[noun].get("id")
            shown[f"{noun}_domain_id"] = (found[noun].get("domain") or {}).get("id")
    if (found.get("system") or {}).get("all"):
        shown["system_scope"] = "all"
    return {**shown, "roles": roles}
