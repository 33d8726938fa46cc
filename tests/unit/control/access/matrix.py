# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what: reads tests/cases/access/<face>.yml, which says it of every route, and works out what each persona
is answered about each corner of the world.

``routes`` has a line for each route (compute: by the operation's name; v1: by KIND.VERB). It may say:

* ``who``: ``anyone``; ``token`` (any valid one); ``any`` (the same, of what is visible); ``reader``, ``member``,
  ``manager`` of the project whose it is; ``writer`` (of the services with Neutron's and Cinder's rules: member and
  service, too); ``services`` (the role service, of whatever project), also as ``reader_or_services``; ``owner`` (the
  user); ``recipient`` (a member of the project with which an image is shared); ``admin``.
  Admins may do all of it, but for what is ``self`` (the user alone). In compute the policy rule of the operation says
  it, or the ``rule`` here;
* ``of``: noun of each word of the path, or ``=`` and what stands there. Without a noun everybody asks once; else each
  corner that has these nouns is asked about, and (unless ``missing`` is false) what is not there. Nouns that are
  nobody's (``World.common``) make no corners;
* ``body``, ``query``, ``headers``, with {noun} of the corner (else of one's own project), {own.noun}, {foreign.noun};
* ``answers``: statuses besides those below 400 of those who may; ``denied``: of those who may not, 403 if left out;
  ``admins``: of admins who may not;
* ``absent``: the status of what is not there for somebody, 404 if left out;
* ``shows``: nouns whose foreign ids may stand in the answer, such as the owner of what is shared;
* ``sharing: write``: what others share may be changed, and not only read;
* ``everywhere: true``: administrators see those of all projects in v1, too, where they usually do not;
* ``strangers``: the status (or 403) for those with no role of a project.

What stands in ``all`` holds for all routes of the file. ``refused`` has requests about one's own that name what is
another project's: each is refused just as for what is not there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import yaml

from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.versions import NEWEST
from magnetar_control.api.v1.app import DRIVERS
from magnetar_control.api.volume.volumes import ACTIONS, MOVE_BODIES
from magnetar_control.compute.access.policies import POLICIES

from .things import PROJECTS, fresh
from .world import ROLES, quoted

FOLDER = Path(__file__).parents[3] / "cases" / "access"
FACES = ("compute", "identity", "image", "network", "placement", "volume", "v1")
WORDS = {"who", "rule", "of", "body", "query", "headers", "answers", "denied", "admins", "absent", "shows", "sharing",
         "missing", "strangers", "everywhere"}
VARIABLE = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)?)\}")
READS = ("GET", "HEAD")
#: Corners that others see, and who does besides their owner.
OPEN = {"public": None, "community": None, "shared": PROJECTS}
#: Roles of those who write in services with Neutron's and Cinder's rules.
WRITERS = {"member", "service"}
READERS = set(ROLES)
#: What the words of rules begin with that no administrator passes about what is another project's.
OF_PROJECT = "project_"
#: A route that is many: each action has a line.
VOLUME_ACTION = "POST /v3/volumes/{id}/action"
#: What v1 has of each kind.
VERBS = {"list": "GET /v1/{noun}", "ensure_many": "PUT /v1/{noun}", "show": "GET /v1/{noun}/{{key}}",
         "ensure": "PUT /v1/{noun}/{{key}}", "remove": "DELETE /v1/{noun}/{{key}}",
         "event": "POST /v1/{noun}/{{key}}/events", "make": "PUT /v1/{noun}/new"}
#: Scopes that a face has nothing for; of the others system and domain.
SCOPES = {"identity": (), "placement": ("domain",), "v1": ("system", "domain", "")}
#: Above all statuses that refuse.
ALLOWED = frozenset({0})


class Asked(NamedTuple):
    """A route: face, key in the table, method, path and headers, what the table says, and the policy rule's role."""

    face: str
    key: str
    method: str
    path: str
    headers: dict
    told: dict
    role: str | None = None

    @property
    def who(self):
        return self.told.get("who") or self.role

    @property
    def nouns(self):
        return self.told.get("of", {})


def table(face):
    """What is said of a face: ``routes``, ``refused``."""
    return yaml.load((FOLDER / f"{face}.yml").read_text(), yaml.CSafeLoader)


def routes(world, face):
    """Key to (method, path, headers, rule) of all that is served."""
    if face == "compute":
        return {one.name: (one.method, f"/v2.1{one.path}", {
            "openstack-api-version": f"compute 2.{min(one.until, NEWEST)}"}, one.policy) for one in OPERATIONS}
    if face == "v1":
        return {"root": ("GET", "/v1", {}, None), "operations": ("GET", "/v1/operations", {}, None),
                **{f"{noun}.{verb}": (*where.format(noun=noun).split(), {}, None)
                   for noun, driver in DRIVERS.items() for verb, where in _verbs(driver).items()}}
    found = {f"{one.method} {one.path}": (one.method, f"/{face}{one.path}", _microversion(face), None)
             for one in world.mounts[f"/{face}"].router.routes if "{project_id}" not in one.path}
    if face == "volume":
        found |= {f"action {name}": found[VOLUME_ACTION] for name in (*ACTIONS, *MOVE_BODIES)}
        del found[VOLUME_ACTION]
    return found


def _verbs(driver):
    more = {f"{word}.{method}": f"{method} /v1/{{noun}}/{{{{key}}}}/{word}"
            for word, methods in getattr(driver, "more", {}).items() for method in methods}
    return {**VERBS, **more}


def _microversion(face):
    versions = {"placement": "1.39", "volume": "3.71"}
    return {"openstack-api-version": f"{face} {versions[face]}"} if face in versions else {}


def every(world, face):
    """All routes of a face with what is said of them. Raises ``AssertionError`` where the two lists differ."""
    told = table(face)
    said, served, all = told["routes"], routes(world, face), told.get("all", {})
    new, gone = sorted(served.keys() - said.keys()), sorted(said.keys() - served.keys())
    assert not new, f"tests/cases/access/{face}.yml does not say who may ask for {', '.join(new)}"
    assert not gone, f"tests/cases/access/{face}.yml speaks of what there is not: {', '.join(gone)}"
    found = []
    for key, (method, path, headers, rule) in served.items():
        told = {**all, **(said[key] or {})}
        assert told.keys() <= WORDS, f"{face}.yml: {key} says {', '.join(told.keys() - WORDS)}, which means nothing"
        role = POLICIES.get(told.get("rule", rule))
        assert told.get("who") or role, f"{face}.yml: {key} has no policy rule, so it must say who"
        found.append(Asked(face, key, method, path, {**headers, **told.get("headers", {})}, told, role))
    return found


def corners(world, asked):
    """The corners that a route is asked about; ``None``: it is about nothing of them."""
    owned = [noun for noun in asked.nouns.values() if not noun.startswith("=") and noun not in world.common]
    found = [name for name, things in world.things.items() if owned and all(noun in things for noun in owned)]
    named = any(not noun.startswith("=") for noun in asked.nouns.values())
    missing = ["missing"] if named and asked.told.get("missing", True) else []
    return [*(found or [None]), *missing]


def expected(world, asked, persona, corner):
    """The statuses of which the answer must have one; ``ALLOWED``: those of who may."""
    if asked.who == "anyone":
        return ALLOWED
    if persona.token is None:
        return {401}
    if persona.scope in SCOPES.get(asked.face, ("system", "domain")):
        return {403}
    if "strangers" in asked.told and not persona.roles & READERS and asked.who != "token":
        return {asked.told["strangers"], 403}
    denied = asked.told.get("admins" if persona.is_admin else "denied", asked.told.get("denied", 403))
    may = _may(world, asked, persona, corner)
    absent = asked.told.get("absent", 404)
    if corner != "missing" and visible(persona, corner, asked):
        return ALLOWED if may else {denied}
    return {absent} if may else {denied, absent}


def visible(persona, corner, asked):
    """Whether a persona may know of what is in a corner. Where the user counts, that is no secret of the project."""
    if corner in (None, persona.project) or asked.who in ("owner", "self", "token"):
        return True
    if asked.face == "v1" and corner == "shared" and persona.is_admin and persona.project == "red":
        return False  # images shared with their project administrators mean by their uuid elsewhere only
    if persona.is_admin and asked.told.get("everywhere", asked.face != "v1"):
        return True
    if str(asked.who).endswith("services") and "service" in persona.roles:
        return True
    if corner in OPEN:
        return OPEN[corner] is None or persona.project in OPEN[corner]
    return False


def _may(world, asked, persona, corner):
    """Whether the role suffices, for what is visible or not there."""
    who, roles = asked.who, persona.roles
    if who == "self" or (who == "owner" and not persona.is_admin):
        return corner is None or (corner in PROJECTS and world.things[corner]["user"] == persona.user)
    if persona.is_admin:
        return who != "nobody" and (not str(who).startswith(OF_PROJECT) or corner in (None, persona.project))
    who = str(who).removeprefix(OF_PROJECT)
    mine = corner in (None, "missing", persona.project) or (corner in OPEN and persona.project == "blue")
    others = corner in OPEN and (asked.method in READS or asked.told.get("sharing") == "write")
    hidden = corner in PROJECTS and not mine
    if who in ("any", "token") or (who.endswith("services") and "service" in roles):
        return True
    who = who.removesuffix("_or_services")
    if who == "recipient":
        return "member" in roles and world.things.get(corner, {}).get("member") == world.projects.get(persona.project)
    if who == "writer":
        return bool(roles & WRITERS) and (mine or hidden or others)
    return who in roles and (mine or hidden or others)


def filled(world, value, persona, corner):
    """*value* with the ids in place of {noun}."""
    if isinstance(value, dict):
        return {filled(world, key, persona, corner): filled(world, one, persona, corner) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(world, one, persona, corner) for one in value]
    if not isinstance(value, str):
        return value
    return VARIABLE.sub(lambda found: str(_value(world, found[1], persona, corner)), value)


def _value(world, name, persona, corner):
    if name == "own_token":
        return persona.token or ""
    where, _dot, noun = name.rpartition(".")
    own = persona.project if persona.project in PROJECTS else "red"
    if where == "nowhere":
        return _absent(noun)
    if where == "foreign":
        return world.things["blue" if own == "red" else "red"][noun]
    if noun == "project" and where == "own":
        return world.projects[own]
    if where in world.things:
        return world.things[where][noun]
    here = {} if where or corner in (None, "missing") else world.things[corner]
    for things in (here, world.things[own], world.common):
        if noun in things:
            return things[noun]
    raise KeyError(f"there is no {name} in {corner or own}")


def nowhere(told):
    """*told*, with what nothing has in place of what is another project's."""
    if isinstance(told, dict):
        return {key: nowhere(one) for key, one in told.items()}
    if isinstance(told, list):
        return [nowhere(one) for one in told]
    return told.replace("{foreign.", "{nowhere.") if isinstance(told, str) else told


def path_of(world, asked, persona, corner):
    """The path and the query, with ids; of what is not there, with ids that nothing has."""
    def word(found):
        noun = asked.nouns.get(found[1])
        if noun is None:
            raise KeyError(f"{asked.face}.yml: {asked.key} does not say what {{{found[1]}}} is")
        if corner == "missing" and not noun.startswith("="):
            return _absent(noun)
        return quoted(filled(world, noun[1:] if noun.startswith("=") else f"{{{noun}}}", persona, corner))

    path = re.sub(r"\{(\w+)\}", word, asked.path)
    query = filled(world, asked.told.get("query", ""), persona, None if corner == "missing" else corner)
    return f"{path}?{query}" if query else path


def _absent(noun):
    return "999" if noun in ("aggregate", "migration") else fresh()


def ask(world, asked, persona, corner):
    """What the persona is answered, and what was sent."""
    there = None if corner == "missing" else corner
    path = path_of(world, asked, persona, corner)
    body = filled(world, asked.told.get("body"), persona, there)
    if isinstance(body, str):
        body = body.encode()
    headers = filled(world, asked.headers, persona, there)
    return world.ask(persona, asked.method, path, body, headers), f"{path} {body} {headers}"


def leaked(world, asked, persona, reply, sent):
    """What an answer tells of the other project (of both, to who is in none of them)."""
    if persona.is_admin:
        return []
    foreign = [persona.project] if persona.project in PROJECTS else PROJECTS
    told = {id: noun for project in foreign for id, noun in world.secrets(project).items()}
    return sorted({noun for id, noun in told.items()
                   if id in reply.told and id not in sent and noun not in asked.told.get("shows", ())})
