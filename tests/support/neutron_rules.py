# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes tests/cases/access/neutron_rules.yml: which users may set and see which attributes, by Neutron's published
policies.

``python -m tests.support.neutron_rules NEUTRON NEUTRON_LIB > tests/cases/access/neutron_rules.yml`` reads two git
repositories at HEAD. The names of rules and their checks are facts of the policies; nothing else is taken.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

#: Persona to project and roles. Project red has the things; its network and all that can be shared are shared with
#: project blue. Keystone implies the lower roles.
MEMBER = frozenset({"member", "reader"})
PERSONAS: Mapping[str, tuple[str, frozenset[str]]] = {
    "owner": ("red", MEMBER), "manager": ("red", MEMBER | {"manager"}), "reader": ("red", frozenset({"reader"})),
    "shared": ("blue", MEMBER), "stranger": ("green", MEMBER),
    "admin": ("operators", MEMBER | {"manager", "admin"})}
#: Noun of the rules to the things that a share makes visible.
SHARED = {"network", "port", "subnet", "subnetpool", "address_scope", "address_group", "security_group", "policy"}
NOUNS = (*sorted(SHARED), "router", "floatingip", "trunk", "rbac_policy")
#: Attributes with a check of the value: the values that the test sends.
SENT = {"device_owner": "network:dhcp", "target_tenant": "*", "target_project": "*"}
RULE = re.compile(rf"(create|update|get|delete)_({'|'.join(NOUNS)})((?::[a-z_:]+)?)")
#: Tags have routes of their own.
TAGS = ":tags"


def text_of(repository: str, path: str) -> str:
    """Return the text of the file *path* at HEAD of a git repository, or for a folder the names in it."""
    return subprocess.run(["git", "-C", repository, "show", f"HEAD:{path}"], capture_output=True, text=True,
                          check=True).stdout


def value_of(node: ast.expr, known: Mapping[str, Any]) -> str:
    """Return the text that an expression of a policy file evaluates to; raises ``KeyError`` when it is not a text."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.Name(id=name):
            return str(known[name])
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return str(known[module][name])
        case ast.BinOp(left=left, right=right):
            return value_of(left, known) + value_of(right, known)
        case ast.Call(args=arguments):  # policy_or
            return " or ".join(f"({value_of(each, known)})" for each in arguments)
    raise KeyError(ast.unparse(node))


def constants(source: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return *known* with the constant texts of the module *source* added."""
    found = dict(known)
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                try:
                    found[name] = value_of(value, found)
                except KeyError:
                    continue
    return found


def rules(neutron: str, lib: str) -> dict[str, str]:
    """Return the check of each rule, by the rule's name."""
    policy = constants(text_of(lib, "neutron_lib/policy/__init__.py"), {})
    lib_rules = constants(text_of(lib, "neutron_lib/policy/rules.py"), {**policy, "policy": policy,
                                                                      "neutron_policy": policy})
    modules = {"neutron_policy": policy, "lib_rules": lib_rules}
    modules["base"] = constants(text_of(neutron, "neutron/conf/policies/base.py"), modules)
    found = {}
    for line in text_of(neutron, "neutron/conf/policies").splitlines():
        if not line.endswith(".py"):
            continue
        source = text_of(neutron, f"neutron/conf/policies/{line}")
        known = constants(source, modules)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("RuleDefault"):
                words = {word.arg: word.value for word in node.keywords}
                name, check = words.get("name") or node.args[0], words.get("check_str") or node.args[1]
                found[value_of(name, known)] = value_of(check, known)
    return found


class Check:
    """One check of Neutron's policies for a *persona* and a resource of the kind *noun*."""

    def __init__(self, rules: Mapping[str, str], persona: str, verb: str, noun: str, attribute: str) -> None:
        self.rules, self.persona, self.noun, self.attribute = rules, persona, noun, attribute
        self.project, self.roles = PERSONAS[persona]
        new = verb == "create" or (noun == "port" and persona == "shared")
        self.target = self.project if new else "red"

    def holds(self, check: str) -> bool:
        """Return whether the persona passes the *check*."""
        words = iter(re.findall(r"[()]|[^\s()]+", re.sub(r"%\(([^)]*)\)s", r"@\1", check)))
        return not check or self._either([*words])

    def _either(self, words: list[str]) -> bool:
        found = self._all(words)
        while words and words[0] == "or":
            words.pop(0)
            found = self._all(words) or found
        return found

    def _all(self, words: list[str]) -> bool:
        found = self._one(words)
        while words and words[0] == "and":
            words.pop(0)
            found = self._one(words) and found
        return found

    def _one(self, words: list[str]) -> bool:
        word = words.pop(0)
        if word == "not":
            return not self._one(words)
        if word == "(":
            found = self._either(words)
            words.pop(0)
            return found
        return self._atom(word)

    def _atom(self, word: str) -> bool:
        kind, _colon, rest = word.partition(":")
        match kind:
            case "rule":
                return self.holds(self.rules[rest])
            case "role":
                return rest in self.roles
            case "project_id":
                return self.project == (self.target if rest == "@project_id" else "red")
            case "field":
                return self._field(rest)
        return False

    def _field(self, rest: str) -> bool:
        _noun, _colon, condition = rest.partition(":")
        if condition == "shared=True":
            return self.noun in SHARED and self.persona == "shared"
        name, _equals, value = condition.partition("=")
        sent = SENT.get(name, "") if name == self.attribute.rpartition(":")[2] else ""
        return sent.startswith(value[2:]) if value.startswith("~^") else sent == value


def persons(known: Mapping[str, str], rule: str) -> Iterator[str]:
    """Yield the personas that pass a *rule*, the rule of its operation, and the rule of the whole attribute."""
    match = RULE.fullmatch(rule)
    assert match
    verb, noun, attribute = match.groups()
    above = [f"{verb}_{noun}{attribute[:at]}" for at, letter in enumerate(attribute) if letter == ":"]
    for persona in PERSONAS:
        check = Check(known, persona, verb, noun, attribute)
        if all(check.holds(known[each]) for each in (*above, rule) if each in known):
            yield persona


def main(neutron: str, lib: str) -> None:
    """Print the file to standard output."""
    known = rules(neutron, lib)
    commit = subprocess.run(["git", "-C", neutron, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True,
                            check=True).stdout.strip()
    print("# SPDX-License-Identifier: GPL-3.0-or-later\n# Written by tests/support/neutron_rules.py of Neutron "
          f"{commit}.\n# Who passes each rule of attributes, and those above it. The persona is explained there.")
    for rule in sorted(known):
        if RULE.fullmatch(rule) and not rule.endswith(TAGS):
            print(f"{rule}: [{', '.join(persons(known, rule))}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
