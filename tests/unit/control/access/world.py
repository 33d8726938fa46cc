# SPDX-License-Identifier: GPL-3.0-or-later
"""One cloud for all cases: two projects with all that a project has, and everybody who may ask. No hosts, no conductor,
no sockets: requests go to the applications. What a request changed, ``restore`` takes back."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from typing import NamedTuple
from unittest.mock import patch
from urllib.parse import quote

import orjson
from sqlalchemy import insert, select

from magnetar_control import serve
from magnetar_control.api.v1 import volume as v1_volume
from magnetar_control.api.v1.servers import server_actions
from magnetar_control.compute import server_watch
from magnetar_control.compute.attachments import interfaces
from magnetar_control.services.identity import assignments
from magnetar_control.services.identity import tables as identity
from magnetar_control.services.identity.resources import DEFAULT, new_row
from magnetar_control.services.identity.tokens import Claims, draw_token_id
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.services.volume import tables as volume
from magnetar_control.settings_file import make_settings
from magnetar_control.store.engine import tables as store
from magnetar_control.store.engine.database import insert_if_absent
from magnetar_control.web import Request
from magnetar_core import errors
from tests.unit.control.api.compute import Agents

from .things import CONTENT, KEY, MARK, PROJECTS, Things

ROLES = ("reader", "member", "manager", "admin")
URL = "http://cloud"
FREE_SHARE = "e8debdc0-447a-4376-a10a-4cd9122d7986"
#: Nouns of a corner that others see or are.
TOLD = ("member",)


class Persona(NamedTuple):
    """Who asks. *scope*: of the token (project, domain, system or "" for none); *project*: the name of its project."""

    name: str
    token: str | None
    user: str
    project: str | None
    roles: frozenset[str]
    scope: str

    @property
    def is_admin(self):
        return "admin" in self.roles


class Reply(NamedTuple):
    """Status, and all that is told: headers and content."""

    status: int
    told: str


class World(Things):
    """*things*: by corner (red, blue, and what blue lets others see: public, community, shared), noun to id. *common*:
    nouns that belong to nobody. *personas* by name."""

    def __init__(self, folder):
        self.parts = serve.Parts(make_settings({
            "state_dir": str(folder), "network_cidr": "10.20.0.0/16", "shares": {FREE_SHARE: "free"}}))
        self.parts.agents = Agents()
        self.parts.upgrade()
        with patch.object(serve, "engine_of", lambda _settings: FakeEngine()):
            services = self.parts.services()
        self.parts.bootstrap()
        self.mounts = self.parts.applications(services)
        self.v1 = self.mounts[""].v1
        self.v1.until = self._until
        self._patched = contextlib.ExitStack()
        for module, name, seconds in ((server_watch, "POLL_INTERVAL", 0.005), (v1_volume, "POLL_INTERVAL", 0.005),
                                      (server_actions, "NIC_LIMIT", 0.05), (interfaces, "DONE", 0.05)):
            self._patched.enter_context(patch.object(module, name, seconds))
        self.common, self.personas, self.projects = {}, {}, {}
        self.things = {name: {} for name in (*PROJECTS, "public", "community", "shared")}
        self.api, self.cell, self.cell0 = self.parts.api_database, *(
            self.parts.store.cell(self.parts.store.find_cell(name).id) for name in ("cell1", "cell0"))
        self.common |= {"folder": folder, "free_share": FREE_SHARE}
        with self.api.write() as self.connection:
            self._people()
            self._host()
            self._outside()
            self._volume_types()
            for project in PROJECTS:
                self._compute(project)
                self._images(project)
                self._networks(project)
                self._of_engine(project)
                self._volumes(project)
            self._shared()
        for project in PROJECTS:
            self._servers(project)
        self.images = [self.things[name]["image"] for name in self.things]
        self._content()
        self.parts.identity.tokens.forget()
        self.parts.hosts.all(fresh=True)
        self._kept, self._people_then = [Kept(path) for path in sorted(folder.glob("*.db"))], self._revision()

    def close(self):
        """Give everything back."""
        self._end()
        self._patched.close()
        for one in self._kept:
            one.close()
        self.parts.close()

    def _noun(self, table, **values):
        """Add a row of the identity service; its id."""
        row = new_row(values)
        self.connection.execute(insert(table).values(row))
        return row["id"]

    # People

    def _people(self):
        with self.api.read() as connection:
            self.roles = {row.name: row.id for row in connection.execute(identity.roles.select())}
            service = connection.execute(identity.projects.select().filter_by(name="service")).one().id
        domain = self.common["domain"] = self._noun(identity.domains, name="others")
        for project in PROJECTS:
            id = self.projects[project] = self._noun(identity.projects, name=project, domain_id=DEFAULT)
            group = self._noun(identity.groups, name=MARK.format(project) + "group", domain_id=DEFAULT)
            self.things[project] |= {"project": id, "users_group": group, "marked": MARK.format(project)}
            for role in ROLES:
                self._person(role if project == "red" else f"other {role}", role, "project", id, project)
        self._person("service", "service", "project", service)
        self._person("no project", None, "", "")
        self._person("domain admin", "admin", "domain", DEFAULT)
        self._person("system admin", "admin", "system", assignments.ALL)
        self._person("system reader", "reader", "system", assignments.ALL)
        self.personas["nobody"] = Persona("nobody", None, "", None, frozenset(), "")
        for project, name in (("red", "member"), ("blue", "other member")):
            self.things[project]["user"] = self.personas[name].user
            roles = [self.roles["member"]]
            self.things[project]["credential"] = self._noun(
                identity.credentials, user_id=self.personas[name].user, project_id=self.projects[project], secret="",
                name=MARK.format(project) + "credential", roles=roles)
            user = self.personas[name].user
            self.things[project]["trust"] = self._noun(
                identity.trusts, trustor_user_id=user, trustee_user_id=user, project_id=self.projects[project],
                impersonation=True, roles=roles, redelegation_count=0)
        self._directory(domain)

    def _directory(self, domain):
        """What only administrators of the identity service know."""
        service = self._noun(identity.services, name="dns", type="dns")
        self.common |= {
            "region": self._noun(identity.regions, description="west"), "service": service,
            "endpoint": self._noun(identity.endpoints, service_id=service, interface="public", url="http://dns"),
            "role": self.roles["reader"], "role_there": self.roles["member"], "free_domain": domain,
            "other_role": self._noun(identity.roles, name="extra"),
            "group": self.things["red"]["users_group"], "some_user": self.personas["member"].user}
        insert_if_absent(self.connection, identity.members, group_id=self.common["group"],
                         user_id=self.common["some_user"])
        for target, target_id in (("domain", DEFAULT), ("system", assignments.ALL)):
            self._given(target, target_id, "group", self.common["group"])
            self._given(target, target_id, "user", self.common["some_user"])
        for project in PROJECTS:
            self._given("project", self.projects[project], "group", self.things[project]["users_group"])

    def _given(self, target, target_id, actor, actor_id):
        insert_if_absent(self.connection, identity.assignments, target=target, target_id=target_id, actor=actor,
                         actor_id=actor_id, role_id=self.roles["reader"])

    def _person(self, name, role, scope, scope_id, project=None):
        """A user with a role there, and a token for it."""
        user = self._noun(identity.users, name=(MARK.format(project) if project else "") + name, domain_id=DEFAULT)
        if role:
            self.connection.execute(insert(identity.assignments).values(
                target=scope, target_id=scope_id, actor="user", actor_id=user, role_id=self.roles[role]))
        moment = time.time()
        token = self.parts.identity.tokens.sign(self.connection, Claims(
            draw_token_id(), user, 0, moment, moment + 7200, ("password",), scope, scope_id))
        below = ROLES[:ROLES.index(role) + 1] if role in ROLES else (role,) if role else ()
        roles = frozenset(below) if scope in ("project", "system") else frozenset()
        self.personas[name] = Persona(name, token, user, project, roles, scope)
        self._add(store.keypairs, user_id=user, name="key", fingerprint="00", public_key=KEY.format(project))
        if project:
            self.things[project].setdefault("users", []).append(user)

    def _content(self):
        folder = self.parts.settings.state_dir / "images"
        folder.mkdir(exist_ok=True)
        for id in self.images:
            (folder / id).write_bytes(CONTENT)

    # Asking

    def ask(self, persona, method, path, body=None, headers=None):
        """What an application answers."""
        path, _mark, query = path.partition("?")
        prefix = next((one for one in self.mounts if one and path.startswith(f"{one}/")), "")
        sent = {"x-auth-token": persona.token} if persona.token else {}
        content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        request = Request(method, path[len(prefix):], query, {**sent, **(headers or {})}, content, URL)
        request.base = URL + prefix
        answer = self.mounts[prefix].handle(request)
        content = answer.body()
        content = content if isinstance(content, bytes) else b"".join(content)
        told = f"{answer.headers} {content.decode(errors='replace')}"
        return Reply(_status(method, path, answer.status, told), told)

    def _until(self, operation, _wait):
        """In v1's place: wait until an operation has ended, or waits itself for a conductor or a host."""
        while not operation.wait(0.005):
            if self._waits():
                return operation.wait(0)
        return True

    def _waits(self):
        queued = select(store.actions.c.id).where(store.actions.c.state == "queued")
        tasks = [select(table.c.id).where(table.c.task.is_not(None)) for table in (
            volume.volumes, volume.snapshots, volume.backups)]
        for database, query in ((self.cell, queued), (self.cell0, queued), *((self.api, task) for task in tasks)):
            with database.read() as connection:
                if connection.execute(query.limit(1)).first():
                    return True
        return False

    def _end(self):
        """Cancel the operations of v1 that wait for somebody."""
        running = [one for one in self.v1.operations.list() if not one.wait(0)]
        for one in running:
            one.cancel()
        if running:  # who waits until something is gone is not cancelled
            with self.api.write() as connection:
                for table in (volume.backups, volume.snapshots, volume.volumes):
                    connection.execute(table.delete().where(table.c.task == "delete"))
        for one in running:
            assert one.wait(60), f"{one.name} of {one.kind} {one.key} does not end"

    def restore(self):
        """Everything is as it was at the beginning. What is known of tokens is, unless people were changed."""
        self._end()
        changed = self._revision() != self._people_then
        for one in self._kept:
            one.put_back()
        self._content()
        if changed:
            self.parts.identity.tokens.forget()
        self.parts.hosts.all(fresh=True)

    def _revision(self):
        """A number that the identity service raises with each change."""
        with self.api.read() as connection:
            return connection.execute(select(identity.revision.c.number)).scalar()

    def secrets(self, project):
        """Ids of what the other project has for itself, and the mark of its names: what says it to what it is."""
        other = "blue" if project == "red" else "red"
        told = {id: noun for noun, id in self.things[other].items()
                if isinstance(id, str) and len(id) >= 8 and noun not in TOLD}
        return {**told, **dict.fromkeys(self.things[other]["users"], "user")}


def _status(method, path, status, told):
    """As a status says it what v1 says in words: of a removal of nothing, and of what is in a batch."""
    if not path.startswith("/v1/") or status != 200:
        return status
    if method == "DELETE" and '"changed":false' in told:
        return 404
    code = re.search(r'"results":\[{"error":{"code":"([a-z-]+)"', told)
    return next((one.status for one in vars(errors).values() if code and getattr(one, "code", "") == code[1]), status)


class Kept:
    """A database as it was at the beginning."""

    def __init__(self, path):
        self._there, self._copy = (sqlite3.connect(one, check_same_thread=False) for one in (path, ":memory:"))
        self._there.execute("PRAGMA synchronous=OFF")
        self._there.backup(self._copy)
        self._seen = self._version()

    def put_back(self):
        """It is so again, where another connection has changed it."""
        if self._version() != self._seen:
            self._copy.backup(self._there)
            self._seen = self._version()

    def _version(self):
        return self._there.execute("PRAGMA data_version").fetchone()

    def close(self):
        """Let go of it."""
        self._there.close()
        self._copy.close()


def quoted(value):
    """As a word of a path."""
    return quote(str(value), safe="")
