# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar policy``: the list of rules, a sample file, and the check of a user's permissions."""

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
#: Attributes of the caller that a credentials file may have, and attributes of a target.
CREDENTIALS = ("user_id", "project_id", "user_domain_id", "project_domain_id", "system_scope", "domain_id")
TARGET = ("project_id", "user_id")
LINE = 110


class RuleLine(NamedTuple):
    """A policy rule as ``magnetar policy list`` shows it. ``check``: the effective check string. ``default``: the
    default check string. ``what``: a description. ``operations``: the API operations that check the rule."""

    name: str
    check: str
    default: str
    what: str
    operations: tuple[str, ...]


def add_policy_commands(command: Any, group: Any) -> None:
    """Add the command group ``policy`` with its commands. *command*, *group*: the functions of ``cli`` that add a
    command and a command group."""
    every = group("policy", "List the rules that say who may do what, say who passes them, print a file of them.")
    look = command(every, "list", run_policy_list,
                   "List all rules with their checks and the operations that ask for them. "
                   "A check that is not the default is marked with *.",
                   "magnetar policy list\n  magnetar policy list servers:create --file policy.yaml")
    look.add_argument("--json", action="store_true", help="as a JSON list of {name, check, default, what, operations}")
    make = command(every, "generate", run_policy_generate,
                   "Print a policy file with all default rules, commented out.",
                   "magnetar policy generate > policy.yaml")
    check = command(every, "check", run_policy_check,
                    "Report which rules a user passes. Status 1 if the user fails a named "
                    "rule.", "magnetar policy check --as member\n  magnetar policy check "
                    "os_compute_api:servers:create --as reader --project 6f70656e\n  magnetar policy check "
                    "--credentials token.json --target project_id=other")
    look.add_argument("rules", nargs="*", metavar="RULE", help="names of rules, or parts of them")
    check.add_argument("rules", nargs="*", metavar="RULE", help="names of rules; by default, all")
    for parser in (look, check):
        parser.add_argument("--file", type=Path, metavar="FILE", help="policy file, in place of the settings' files")
    check.add_argument("--as", dest="roles", metavar="ROLES", help="roles of the token, separated by commas (each "
                       "includes the next ones: admin, manager, member, reader); default: $OS_ROLES")
    check.add_argument("--project", metavar="ID", help="project of the user; default: $OS_PROJECT_ID, or the project "
                       "of the target")
    check.add_argument("--user", metavar="ID", help="id of the user; default: $OS_USER_ID, or the user of the target")
    check.add_argument("--credentials", type=Path, metavar="FILE", help="the user as JSON, in place of these options: "
                       "a token of the identity service ({token: ...}), or {roles, project_id, user_id, ...}")
    check.add_argument("--target", action="append", default=[], metavar="NAME=VALUE", help="owner of the target: "
                       "project_id and user_id; by default, the user's own")
    check.add_argument("--json", action="store_true", help="as a JSON object of rules to true and false")
    make.set_defaults(file=None)


def list_rule_lines(rules: RuleSet) -> list[RuleLine]:
    """Return a ``RuleLine`` for each policy rule that any API operation checks, sorted by name."""
    from magnetar_control.api.nova.operations import OPERATIONS
    from magnetar_control.compute.access.policies import CHECKS, FURTHER, OF_V1, POLICIES

    operations_by_rule: dict[str, list[ApiOperation]] = {}
    for operation in OPERATIONS:
        operations_by_rule.setdefault(operation.policy or "", []).append(operation)
    rule_lines = []
    for name, role in sorted(POLICIES.items()):
        further = FURTHER.get(name)
        names = frozenset(further.of.split()) if further else frozenset()
        served = [*operations_by_rule.get(name, ()), *(operation for operation in OPERATIONS
                                                       if operation.name in names)]
        if served:
            rule_lines.append(RuleLine(name, rules.checks[name], CHECKS[role], further.what if further else "",
                                       tuple(dict.fromkeys(map(_operation_text, served)))))
    rule_lines += [RuleLine(name, rules.checks[name], CHECKS[POLICIES[name]], rule.what, (rule.of,))
                   for name, rule in OF_V1.items()]
    return sorted(rule_lines)


def _operation_text(operation: ApiOperation) -> str:
    return f"{operation.method} {operation.path}" + (f" ({operation.action})" if operation.action else "")


def _load_rules(options: argparse.Namespace) -> RuleSet:
    """Return the policy rules of the files that the option ``--file`` names, by default of the policy files in the
    settings. Raises ``InvalidField``."""
    from magnetar_control.compute.access import policy_files
    from magnetar_control.compute.access.policy import build_rule_set

    if options.file:
        return build_rule_set(policy_files.read_policy_files(options.file))
    settings = configuration.load_settings(options.config)
    return build_rule_set(policy_files.read_policy_files(settings.policy_file,
                                                         [Path(folder) for folder in settings.policy_dirs]))


def run_policy_list(options: argparse.Namespace) -> int:
    """Run ``magnetar policy list``: print the policy rules, or only rules whose names contain a given text. Return the
    exit status, which is 1 if there are no such rules."""
    rule_lines = [line for line in list_rule_lines(_load_rules(options))
                  if not options.rules or any(part in line.name for part in options.rules)]
    if options.json:
        print(json.dumps([line._asdict() for line in rule_lines], indent=1))
    for line in () if options.json else rule_lines:
        print(f"{line.name}\n    {'* ' if line.check != line.default else ''}{line.check}")
        print(*(f"    {text}" for text in (*textwrap.wrap(line.what, LINE), *line.operations)), sep="\n")
    return 0 if rule_lines else 1


def run_policy_generate(_given: argparse.Namespace) -> int:
    """Run ``magnetar policy generate``: print a sample policy file."""
    print("\n".join(sample_policy_lines()))
    return 0


def sample_policy_lines() -> Iterator[str]:
    """Yield the lines of a policy file that contains all rules with their defaults, each commented out."""
    from magnetar_control.compute.access.policies import BASE, FORMER
    from magnetar_control.compute.access.policy import build_rule_set
    from magnetar_control.compute.access.policy_files import Overrides

    yield "# Rules of the compute service. Remove the # before those that you change; the others stay as they are."
    yield ""
    yield "# Rules that others refer to."
    yield from (f'#"{name}": "{check}"' for name, check in BASE.items())
    for line in list_rule_lines(build_rule_set(Overrides())):
        yield ""
        yield from (f"# {text}" for text in (*textwrap.wrap(line.what, LINE), *line.operations))
        if line.name in FORMER:
            yield f"# Formerly {FORMER[line.name].name}"
        yield f'#"{line.name}": "{line.default}"'


def run_policy_check(options: argparse.Namespace) -> int:
    """Run ``magnetar policy check``: print which rules the given credentials pass. Return the exit status. Raises
    ``InvalidField``."""
    rules, credentials = _load_rules(options), _credentials(options)
    target = {**{name: credentials.get(name) for name in TARGET}, **_target(options.target)}
    names = [line.name for line in list_rule_lines(rules)]
    for name in options.rules:
        if name not in rules.checks:
            raise InvalidField("RULE", "must be the name of a rule; `magnetar policy list` has them", name)
    passed = {name: rules.allows(name, target, credentials) for name in options.rules or names}
    if options.json:
        print(json.dumps(passed, indent=1))
    else:
        print(*(f"{'passed' if passes else 'failed'}: {name}" for name, passes in passed.items()), sep="\n")
    return 1 if options.rules and not all(passed.values()) else 0


def _target(pairs: Sequence[str]) -> Mapping[str, str]:
    target = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if name not in TARGET or not sign:
            raise InvalidField("--target", "must be project_id=ID or user_id=ID: rules are asked with no more", pair)
        target[name] = value
    return target


def _credentials(options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the credentials to check (roles, project_id, user_id), from the command line options or the environment.
    Raises ``InvalidField``."""
    if options.credentials:
        return _credentials_of_file(options.credentials)
    roles = options.roles if options.roles is not None else os.environ.get("OS_ROLES")
    if not roles:
        raise InvalidField("--as", "is needed: roles, or --credentials with a file")
    return {"roles": expand_roles(roles.replace(",", " ").split()),
            "project_id": options.project or os.environ.get("OS_PROJECT_ID") or "own-project",
            "user_id": options.user or os.environ.get("OS_USER_ID") or "own-user"}


def expand_roles(roles: Sequence[str]) -> list[str]:
    """Return *roles* and the roles that they imply (admin implies manager, member and reader, and so on), sorted."""
    order = ("admin", "manager", "member", "reader")
    at = min((order.index(role) for role in roles if role in order), default=len(order))
    return sorted({*roles, *order[at:]})


def _credentials_of_file(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        document = document.get("token", document)
        roles = [role["name"] if isinstance(role, dict) else role for role in document["roles"]]
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise InvalidField("--credentials", f"must be a JSON file of a token or of credentials, and {file} is not "
                                            f"({type(error).__name__}: {error})") from None
    shown: dict[str, Any] = {name: document[name] for name in CREDENTIALS if name in document}
    for noun in ("user", "project"):
        if isinstance(document.get(noun), dict):
            shown[f"{noun}_id"] = document[noun].get("id")
            shown[f"{noun}_domain_id"] = (document[noun].get("domain") or {}).get("id")
    if (document.get("system") or {}).get("all"):
        shown["system_scope"] = "all"
    return {**shown, "roles": roles}
