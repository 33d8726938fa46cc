# SPDX-License-Identifier: GPL-3.0-or-later
"""The Compute API without a network, hosts or conductors: requests go to the application, servers are rows."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from pathlib import Path

import orjson
from sqlalchemy import insert

from magnetar_control.api.nova.app import ComputeApplication
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.compute.cloud import Cloud
from magnetar_control.services import Context, Services
from magnetar_control.services.image import EmbeddedImages
from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_control.services.network import EmbeddedNetworks, quotas
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.settings_file import make_settings
from magnetar_control.store.accounts.quota_usage import find_wrong_usage
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import API, CELL, host_states, server_mappings, servers
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers.filter_rows import insert_filter_rows
from magnetar_control.store.store import CELL0, Store
from magnetar_control.web import Request
from magnetar_core.errors import Unreachable
from tests.support.control.counting import counted

CELL1 = "11111111-1111-1111-1111-111111111111"
WHO = {one.token: one for one in (
    Context("root", "operators", frozenset({"admin", "manager", "member", "reader"}), token="admin"),
    Context("alice", "red", frozenset({"member", "reader"}), token="alice"),
    Context("bob", "blue", frozenset({"member", "reader"}), token="bob"),
    Context("rita", "red", frozenset({"reader"}), token="rita"))}


class Identity:
    """Tokens are names; the projects are those of the tokens and ``green``."""

    def validate(self, token):
        return WHO.get(token)

    def project_exists(self, context, project_id):
        return project_id in ("operators", "red", "blue", "green")

    def projects_named(self, context, name):
        return {}


class Teller:
    """The client of an agent that tells something, whatever it is asked for, or raises it."""

    def __init__(self, told):
        self.told = told

    def _tell(self, _what, _lines=None):
        if isinstance(self.told, Exception):
            raise self.told
        return self.told

    diagnostics = uptime = console = _tell


class Agents:
    """Clients of agents by the host of their endpoint; those that are not there cannot be reached."""

    def __init__(self, **clients):
        self.clients = clients

    @contextlib.contextmanager
    def client(self, endpoint, _patience=None):
        name = endpoint.removeprefix("https://").partition(".")[0]
        if name not in self.clients:
            raise Unreachable
        yield self.clients[name]


class Reply:
    """Status, headers (lower case) and document of an answer."""

    def __init__(self, answer):
        content = answer.body()
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.headers.items()}
        self.json = orjson.loads(content) if content else None

    def __repr__(self):
        return f"<{self.status} {self.json}>"

    @property
    def message(self):
        (fault,) = self.json.values()
        return fault["message"]


class Caller:
    """Somebody; calls return a ``Reply``. Paths are below ``/v2.1``."""

    def __init__(self, application, token):
        self.application, self.token, self.context = application, token, WHO[token]

    def call(self, method, path, body=None, version=None):
        path, _mark, query = path.partition("?")
        headers = {"x-auth-token": self.token}
        if version:
            headers["openstack-api-version"] = f"compute {version}"
        content = b"" if body is None else orjson.dumps(body)
        return Reply(self.application.handle(Request(method, "/v2.1" + path, query, headers, content, "http://cloud")))

    def get(self, path, version=None):
        return self.call("GET", path, None, version)

    def post(self, path, body=None, version=None):
        return self.call("POST", path, body, version)

    def put(self, path, body=None, version=None):
        return self.call("PUT", path, body, version)

    def delete(self, path, version=None):
        return self.call("DELETE", path, None, version)


def id_of(name):
    """The id of ``cell1`` and its like."""
    return CELL0 if name == "cell0" else CELL1.replace("1", name.removeprefix("cell"))


class Compute:
    """An API on empty databases (API, cell0, cell1, and further cells), and who asks it."""

    def __init__(self, databases, folder, **settings):
        self.databases = databases
        self.store = Store(databases["api"])
        for name, database in databases.items():
            if name != "api":
                self.store.add_cell(name, _url(database), id_of(name))
                self.store._open[id_of(name)] = database
        given = make_settings({"state_dir": str(folder), "novnc_dir": f"{folder}/novnc",
                               "spice_dir": f"{folder}/spice", **settings})
        images = EmbeddedImages(self.api, Path(folder) / "images")
        self.cloud = Cloud(given, self.store, Services(
            Identity(), images, EmbeddedNetworks(self.api, limits=quotas.default_network_limits(given)),
            EmbeddedVolumes(
                self.api, list, Agents(), lambda _host, _image: None, images),
            EmbeddedKeys(given.certificates, given.keys)), Agents())
        self.application = ComputeApplication(self.cloud, OPERATIONS)
        self.admin, self.alice, self.bob, self.rita = (Caller(self.application, token) for token in WHO)

    @property
    def api(self):
        return self.databases["api"]

    @property
    def cell(self):
        return self.databases["cell1"]

    def host(self, name="kvm1", seen=True, cell="cell1", **info):
        """A compute host; the id."""
        found = {"name": name, "vcpus": 8, "memory_mb": 16384, "disk_gb": 100, "hypervisor_type": "QEMU",
                 "hypervisor_version": "7.2.22", "cpu_model": "EPYC", **info}
        with self.api.write() as connection:
            id = hosts.upsert_host_row(connection, name, id_of(cell), f"https://{name}.example:6553")
            hosts.save_host_inventory(connection, name, found)
        with self.databases[cell].write() as connection:
            connection.execute(insert(host_states).values(host=name, seen_at=utc_now() if seen else None))
        self.cloud.hosts.all(fresh=True)
        return id

    def server(self, project="red", user="alice", cell="cell1", claimed=False, **values):
        """A server as a row; the uuid. *claimed*: it counts as a server of its host."""
        id = str(uuid.uuid4())
        flavor = {"id": "1", "name": "tiny", "vcpus": 2, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}
        row = {"id": id, "project_id": project, "user_id": user, "name": "web1", "vm_state": "active", "power_state": 1,
               "flavor_id": "1", "flavor": orjson.dumps(flavor).decode(),
               "created_at": values.get("launched_at") or utc_now(), **values}
        with self.databases[cell].write() as connection:
            connection.execute(insert(servers).values(**row))
            insert_filter_rows(connection, [row])
        if cell != "cell0":
            with self.api.write() as connection:
                connection.execute(insert(server_mappings).values(
                    server_id=id, cell_id=id_of(cell), project_id=project, created_at=row["created_at"]))
        if claimed:
            with self.api.write() as connection:
                host = hosts.fetch_host_row(connection, values["host"])
                assert allocations.claim_host_resources(connection, id, id, host.id, allocations.Amounts())
        return id

    @contextlib.contextmanager
    def counted(self):
        """How many statements the databases are sent in the block: the length of the list, and ``sent`` by name."""
        self.sent = Counter()
        with counted(**self.databases) as seen:
            yield seen
        self.sent.update(name for name, _statement in seen)


def _url(database):
    return database.url.render_as_string(hide_password=False)


def emptied(databases):
    """Leave the tables empty. Whatever the test did, the counted usage was that of its servers."""
    for name, database in databases.items():
        if name != "api":
            with database.read() as connection:
                assert find_wrong_usage(connection) == []
        every = [f'DELETE FROM "{table.name}"' for table in reversed((API if name == "api" else CELL).sorted_tables)]
        with database.write() as connection:
            for words in every if database.kind == "sqlite" else ["; ".join(every)]:
                connection.exec_driver_sql(words, execution_options={"no_parameters": True})
