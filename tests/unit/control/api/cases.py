# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and runs the cases of tests/cases/api/<noun>.yml: requests to the Compute API and what it answers.

A file is a list of cases. Each has ``name`` and ``steps``, and if need be:

* ``engine``: ``one`` (SQLite, the default) or ``both`` (PostgreSQL too, where the database has a part in the answer);
* ``each``: a list of maps of variables, or one map of lists (every combination); the case runs once for each;
* ``as``, ``version``, ``base``: for the steps that do not say it themselves (alice, none, ``/v2.1``);
* ``given``: what is there before. ``variables``, ``settings``, ``conductors`` (holder: name), ``hosts`` and ``servers``
  (variable: columns, see ``Compute``; the variable holds the id), ``rows`` (table: list of columns), ``agents``
  (host: what its agent tells).

A step is ``rows``, or a ``request`` (method and path) with ``as``, ``version``, ``base``, ``query`` (a map; it is
quoted), ``body`` and ``sends`` (headers). ``each`` repeats it, as above. What is expected:

* ``status`` (200 if left out), ``headers`` (null: not there), ``json`` (the whole document; null: no content);
* ``has``: values by path (``flavors[0].id``, ``flavors[*].id``), ``lacks``: paths that are not there, ``keys``: all
  keys of the object at a path, or of each of several;
* ``message`` (whole) and ``says`` (a part, or several) of the fault.

``save`` keeps values by path (``.``: the whole document) as variables. ``{id}`` and ``{flavor.id}`` stand for
variables, ``{newest}`` for the number of the newest microversion, ``{too_new}`` for the number after it; a text that is
nothing else becomes their value. A map of one key with ``$`` is computed: see ``COMPUTED``.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import orjson
import yaml
from sqlalchemy import insert

from magnetar_control.api.nova.versions import NEWEST
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import API, CELL
from magnetar_control.store.hosts import conductors, hosts
from magnetar_control.web import Request
from tests.support.control.columns import row_values

from .compute import Agents, Compute, Reply, Teller

FOLDER = Path(__file__).parents[3] / "cases" / "api"
CASE = {"name", "engine", "each", "as", "version", "base", "given", "steps"}
GIVEN = {"variables", "settings", "conductors", "hosts", "servers", "rows", "agents"}
EXPECTED = {"status", "headers", "json", "has", "lacks", "keys", "message", "says"}
STEP = {"request", "as", "version", "base", "query", "body", "sends", "each", "save", *EXPECTED}
SET = {"disabled", "disabled_reason", "forced_down", "memory_mb_reserved"}  # of a host, by operators

VARIABLE = re.compile(r"\{([a-z_]\w*(?:\.\w+)*)\}")
PART = re.compile(r"\[(\*|-?\d+)\]|([^.\[\]]+)")


class Match:
    """Equals the values for which ``holds`` is true."""

    __hash__ = None

    def __init__(self, words, holds):
        self.words, self.holds = words, holds

    def __eq__(self, other):
        return bool(self.holds(other))

    def __repr__(self):
        return f"<{self.words}>"


def _sorted(values):
    return sorted(values, key=repr)


COMPUTED = {
    # Values: [x, 256] is that text so often, 50 is the texts "0" to "49", and lists and maps of parts become one.
    "$repeat": lambda value: value[0] * value[1],
    "$count": lambda value: [str(number) for number in range(value)],
    "$join": lambda value: [one for part in value for one in part],
    "$merge": lambda value: {key: one for part in value for key, one in part.items()},
    # Expectations: a text in which the expression is found, any integer, more than that, that list in any order.
    "$text": lambda value: Match(f"text like {value}", lambda got: isinstance(got, str) and re.search(value, got)),
    "$integer": lambda value: Match("an integer", lambda got: type(got) is int),
    "$above": lambda value: Match(f"above {value!r}", lambda got: got > value),
    "$any_order": lambda value: Match(f"{value!r} in any order", lambda got: _sorted(got) == _sorted(value)),
}


class Loader(yaml.CSafeLoader):
    """YAML in which no key stands twice in a map: The first would be lost. Each process that runs tests reads it, so it
    is the loader in C."""

    def construct_mapping(self, node, deep=False):
        names = [key.value for key, _value in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := {name for name in names if names.count(name) > 1}:
            raise Wrong(f"{', '.join(twice)} stands twice in one map{node.start_mark}")
        return super().construct_mapping(node, deep)


class Case(NamedTuple):
    """One case with the variables of one of its rows."""

    id: str
    told: dict
    variables: dict


class Wrong(Exception):
    """A case that says what cannot be; the message names its file, case and step."""


def read(path):
    """The cases of a file, one for each row of ``each``."""
    found, names = [], set()
    for told in yaml.load(path.read_text(), Loader):
        name = told.get("name") if isinstance(told, dict) else None
        where = f"{path.name}: {name}"
        if not isinstance(name, str) or name in names:
            raise Wrong(f"{where}: a case needs a name of its own")
        names.add(name)
        check(told, where)
        many = rows(told.get("each", [{}]))
        found += [Case(f"{path.stem}: {name}" + (f" {at}" if len(many) > 1 else ""), told, variables)
                  for at, variables in enumerate(many, 1)]
    return found


def check(told, where):
    """Whether the case has only what there is."""
    _known(told, CASE, where)
    _known(told.get("given", {}), GIVEN, f"{where}: given")
    if told.get("engine", "one") not in ("one", "both"):
        raise Wrong(f"{where}: engine is one or both")
    if not told.get("steps"):
        raise Wrong(f"{where}: a case needs steps")
    _version(told, where)
    for number, step in enumerate(told["steps"], 1):
        here = f"{where}: step {number}"
        if "rows" in step:
            _known(step, {"rows"}, here)
            continue
        _known(step, STEP, here)
        if not re.fullmatch(r"(GET|POST|PUT|PATCH|DELETE|\{\w+\}) [/{]\S*", str(step.get("request"))):
            raise Wrong(f"{here}: request is a method and a path (it is {step.get('request')!r})")
        _version(step, here)


def _known(told, known, where):
    if unknown := set(told) - known:
        raise Wrong(f"{where} has no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")


def _version(told, where):
    if not isinstance(told.get("version", ""), str):
        raise Wrong(f"{where}: write the version in quotes, YAML takes it as a number otherwise")


def rows(each):
    """The rows of ``each``: those of the list, or every combination of a map's lists."""
    if isinstance(each, dict):
        return [dict(zip(each, values, strict=True)) for values in product(*each.values())]
    return each


def at(document, path):
    """The value at a path of a document; a list of values if ``[*]`` is in the path. KeyError: There is none."""
    values, many = [document], False
    for number, key in PART.findall(path):
        if number == "*":
            values, many = [one for value in values for one in value], True
            continue
        try:
            values = [value[int(number) if number else key] for value in values]
        except (LookupError, TypeError):
            raise KeyError(f"there is no {path} in {document}") from None
    return values if many else values[0]


def filled(value, variables):
    """The value with variables in their places and computed parts."""
    if isinstance(value, str):
        if whole := VARIABLE.fullmatch(value):
            return variable(whole[1], variables)
        return VARIABLE.sub(lambda found: str(variable(found[1], variables)), value)
    if isinstance(value, list):
        return [filled(one, variables) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (name := str(next(iter(value)))).startswith("$"):
        if name not in COMPUTED:
            raise Wrong(f"{name} is not one of {', '.join(COMPUTED)}")
        return COMPUTED[name](filled(value[name], variables))
    return {filled(key, variables): filled(one, variables) for key, one in value.items()}


def variable(path, variables):
    name = path.partition(".")[0]
    variables.used.add(name)
    if name in variables:
        return at(variables, path)
    if name in variables.row:
        return at({name: filled(variables.row[name], variables)}, path)
    raise Wrong(f"there is no variable {path}; there are {', '.join({**variables, **variables.row})}")


class Variables(dict):
    """Variables by name, those of a case's row (which may speak of others), and which of them were looked up."""

    def __init__(self, row=None):
        super().__init__()
        self.row, self.used = row or {}, set()


class Run:
    """A case on databases: makes what is given, asks and compares."""

    def __init__(self, case, databases, folder):
        given = case.told.get("given", {})
        self.told, self.variables = case.told, Variables(case.variables)
        self.variables.update(newest=NEWEST, too_new=NEWEST + 1)
        self.variables.update(filled(given.get("variables", {}), self.variables))
        self.given = filled({key: given[key] for key in given if key in ("settings", "conductors", "hosts", "agents")},
                            self.variables)
        self.compute = Compute(databases, folder, **self.given.get("settings", {}))

    def run(self):
        for holder, name in self.given.get("conductors", {}).items():
            conductors.write_conductor_heartbeat(self.compute.cell, holder, name)
        for name, columns in self.given.get("hosts", {}).items():
            self.host(name, columns or {})
        given = self.told.get("given", {})
        for name, columns in given.get("servers", {}).items():
            self.variables[name] = self.compute.server(**row_values(filled(columns or {}, self.variables)))
        self.insert(given.get("rows", {}))
        self.compute.cloud.agents = Agents(**{
            host: Teller(told) for host, told in self.given.get("agents", {}).items()})
        for number, step in enumerate(self.told["steps"], 1):
            if "rows" in step:
                self.insert(step["rows"])
                continue
            for more in rows(step.get("each", [{}])):
                self.variables.update(filled(more, self.variables))
                self.step(number, step)
        if unused := set(self.variables.row) - self.variables.used:
            raise Wrong(f"no step uses {', '.join(sorted(unused))} of each")

    def host(self, name, columns):
        self.variables[name] = self.compute.host(
            name, **{key: value for key, value in columns.items() if key not in SET})
        if changes := {key: value for key, value in columns.items() if key in SET}:
            with self.compute.api.write() as connection:
                hosts.update_host_row(connection, name, **changes)
            self.compute.cloud.hosts.all(fresh=True)

    def insert(self, tables):
        for name, many in filled(tables, self.variables).items():
            database, table = (
                (self.compute.api, API.tables[name]) if name in API.tables else (self.compute.cell, CELL.tables[name]))
            with database.write() as connection:
                for columns in many:
                    made = {"created_at": utc_now()} if "created_at" in table.c else {}
                    connection.execute(insert(table).values(**{**made, **row_values(columns, table)}))

    def step(self, number, step):
        step = {key: filled(value, self.variables) for key, value in step.items() if key not in ("save", "each")}
        reply = self.ask(step)
        where = f"step {number}, {step['request']}: {reply}"
        assert reply.status == step.get("status", 200), where
        if "json" in step:
            assert reply.json == step["json"], where
        if "message" in step:
            assert reply.message == step["message"], where
        for part in _listed(step.get("says", [])):
            assert part in reply.message, where
        for name, value in step.get("headers", {}).items():
            assert reply.headers.get(name) == value, f"{where}: {name} of {reply.headers}"
        for path, value in step.get("has", {}).items():
            assert at(reply.json, path) == value, f"{where}: {path}"
        for path in step.get("lacks", []):
            assert not _there(reply.json, path), f"{where}: {path}"
        for path, keys in step.get("keys", {}).items():
            found = at(reply.json, path)
            for one in found if "[*]" in path else [found]:
                assert set(one) == set(keys), f"{where}: {path}"
        for name, path in self.told["steps"][number - 1].get("save", {}).items():
            self.variables[name] = at(reply.json, path)

    def ask(self, step):
        told = {"as": "alice", "base": "/v2.1", **filled(
            {key: self.told[key] for key in ("as", "version", "base") if key in self.told}, self.variables), **step}
        method, _space, path = told["request"].partition(" ")
        path, _mark, query = (told["base"] + path).partition("?")
        more = [f"{key}={quote(str(value), safe='')}" for key, value in told.get("query", {}).items()]
        headers = {"x-auth-token": told["as"], **told.get("sends", {})}
        if told.get("version"):
            headers["openstack-api-version"] = f"compute {told['version']}"
        content = b"" if told.get("body") is None else orjson.dumps(told["body"])
        return Reply(self.compute.application.handle(Request(
            method, path, "&".join(filter(None, [query, *more])), headers, content, "http://cloud")))


def _listed(value):
    return value if isinstance(value, list) else [value]


def _there(document, path):
    try:
        at(document, path)
    except KeyError:
        return False
    return True
