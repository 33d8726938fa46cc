# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may set and see which attribute: Neutron's published rules, each asked as everybody (tests/cases/access)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_control.api.network import resources
from magnetar_control.api.network.app import network_application
from magnetar_control.services import Context
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.quotas import OF_ENGINE, RESOURCES
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Unauthenticated
from tests.support.control.serving import Asker
from tests.support.neutron_rules import NOUNS, PERSONAS, RULE, SHARED

FOLDER = Path(__file__).parents[4] / "cases" / "access"
NEUTRON, TOLD = (yaml.safe_load((FOLDER / f"neutron_{name}.yml").read_text()) for name in ("rules", "attributes"))
RULES = TOLD["rules"]
WHO = {name: Context(name, project, roles, token=name) for name, (project, roles) in PERSONAS.items()}
PATHS = {form.name: form.path for form in (*resources.FORMS, *resources.OF_ENGINE)}
KINDS = {"policy": "qos_policy"}


def _authenticate(request: Any) -> None:
    request.context = WHO.get(request.headers.get("x-auth-token", ""))
    if request.context is None:
        raise Unauthenticated("The request you have made requires authentication.")


class Things:
    """A network of red that blue may use, an external one, and more as cases need them."""

    def __init__(self, service: EmbeddedNetworks) -> None:
        self.admin = Asker(network_application(service, _authenticate), WHO["admin"])
        self.numbers = itertools.count(20)
        self.lan = self.network("red")
        self.ext = self.made("network", "operators", {
            "provider:network_type": "flat", "provider:physical_network": "ext", "router:external": True})
        # Addresses that are drawn are none of those that requests choose: 10.1.0.{n}.
        self.subnet = self.made("subnet", "red", {"network_id": self.lan, "cidr": "10.1.0.0/20", "allocation_pools": [
            {"start": "10.1.8.1", "end": "10.1.15.254"}]})
        self.made("subnet", "operators", {"network_id": self.ext, "cidr": "192.0.2.0/24", "enable_dhcp": False})

    def made(self, noun: str, project: str, fields: dict[str, Any]) -> str:
        """Return the id of a new thing."""
        return self.admin("POST", f"/v2.0/{PATHS[noun]}", {noun: {"project_id": project, **fields}})[noun]["id"]

    def network(self, project: str) -> str:
        """Return a network of the project that blue may use."""
        id = self.made("network", project, {"name": "lan"})
        self.share("network", id, "blue")
        return id

    def share(self, noun: str, id: str, target: str) -> str:
        """Share a thing with the project *target*."""
        return self.made("rbac_policy", "red", {"object_type": KINDS.get(noun, noun), "object_id": id,
                                                "action": "access_as_shared", "target_tenant": target})

    def filled(self, value: Any, project: str) -> Any:
        """Return *value* with what stands in braces, of the *project* where it is owned."""
        if isinstance(value, dict):
            return {name: self.filled(each, project) for name, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each, project) for each in value]
        if not isinstance(value, str) or "{" not in value:
            return value
        number = next(self.numbers) if "{n}" in value or "{mac}" in value else 0
        words = {"{lan}": lambda: self.lan, "{subnet}": lambda: self.subnet, "{ext}": lambda: self.ext,
                 "{n}": lambda: str(number), "{mac}": lambda: f"52:54:00:00:00:{number:02x}",
                 "{network}": lambda: self.network(project),
                 "{port}": lambda: self.made("port", project, {"network_id": self.lan})}
        for word, found in words.items():
            if word in value:
                value = value.replace(word, found())
        return value

    def target(self, noun: str, persona: str) -> str:
        """Return a new thing of red, which blue may use; a port of blue for blue."""
        project = "blue" if (noun, persona) == ("port", "shared") else "red"
        if noun == "network":
            return self.network("red")
        if noun == "subnet":
            return self.made(noun, "red", {"network_id": self.network("red"), "cidr": "10.1.0.0/24"})
        id = self.made(noun, project, self.filled(TOLD["new"][noun], project))
        if noun in SHARED - {"port"}:
            self.share(noun, id, "blue")
        return id


@pytest.fixture
def things(sqlite: Database, engine: Any) -> Things:
    found = EmbeddedNetworks(sqlite, default_cidr=None, engine=engine, gateways=["h1"], limits=dict.fromkeys(
        (*RESOURCES, *OF_ENGINE), -1))
    found.bootstrap()
    return Things(found)


def _passes(things: Things, rule: str, persona: str) -> str:
    """Return ``may`` or ``may not``, or what else is wrong."""
    verb, noun, attribute = RULE.fullmatch(rule).groups()
    told, who, path = RULES[rule], things.admin.as_(WHO[persona]), f"/v2.0/{PATHS[noun]}"
    send = things.filled(told.get("send", {}), who.context.project_id)
    where = path if verb == "create" else f"{path}/{things.target(noun, persona)}"
    if verb == "get":
        status, found = who.ask("GET", where)
        shown = status == 200 and (not attribute or found[noun].get(attribute[1:], told) is not told)
        return "may" if shown else "may not"
    if verb == "create":
        status, found = who.ask("POST", path, {noun: {
            **things.filled(TOLD["new"][noun], who.context.project_id), **send}})
    elif verb == "delete":
        status, found = who.ask("DELETE", where)
    else:
        status, found = who.ask("PUT", where, {noun: send or {"description": "new"}})
    refused = (400,) if told.get("lacking") else (told.get("refused"), 403, 404)
    if status < 300 or status in told.get("answers", ()):
        return "may"
    return "may not" if status in refused else f"{status} {found}"


@pytest.mark.slow
@pytest.mark.parametrize("noun", NOUNS)
def test_who_may_set_and_see_an_attribute(things, noun):
    wrong = []
    for rule in (one for one in NEUTRON if RULE.fullmatch(one)[2] == noun):
        told = RULES[rule]
        expected = [] if told.get("lacking") else told.get("ours", NEUTRON[rule])
        for persona in PERSONAS:
            found = _passes(things, rule, persona)
            if found != ("may" if persona in expected else "may not"):
                wrong.append(f"{rule} as {persona}: {found}")
    assert not wrong, "\n".join(wrong)


def test_each_rule_is_asked_and_each_difference_says_why():
    assert RULES.keys() == NEUTRON.keys()
    for rule, told in RULES.items():
        assert told.keys() <= {"send", "answers", "ours", "why", "refused", "lacking"}, rule
        assert ("ours" in told) == ("why" in told), rule
        assert told.get("ours") != NEUTRON[rule], f"{rule} is as Neutron's"
