# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole control plane in this process with something of everything in it, put back as it was after each request that
changes it. No conductor works: what is queued stays so, and nothing changes by itself."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
from sqlalchemy import event, func, insert, select, update

from magnetar_control import serve
from magnetar_control.compute.held_action import HeldAction
from magnetar_control.services.identity import tables as identity
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.services.volume import tables as volume
from magnetar_control.settings_file import make_settings
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import (
    API,
    CELL,
    flavors,
    host_states,
    quota_usage,
    server_mappings,
    servers,
)
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers.filter_rows import insert_filter_rows

from .sending import Got, Sent, Server

WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|WITH)\b")
#: Counts up whatever happens, and what triggers count.
ASIDE = (identity.revision, quota_usage)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8TQMxYSUZ6vMv9b2nH1kkDMX3xG1U8hXwPq9P2d1Qn a"
Rows = dict[Any, list[dict[str, Any]]]


#: Who waits for a conductor waits in vain: seconds.
WAITS = {
    "magnetar_control.api.v1.app.WAIT": 0.05,
    "magnetar_control.api.v1.volume.LIMIT": 0.1,
    "magnetar_control.api.v1.volume.POLL_INTERVAL": 0.02,
    "magnetar_control.api.v1.servers.server_actions.LIMIT": 0.1,
    "magnetar_control.compute.server_watch.POLL_INTERVAL": 0.02,
}


class Cloud:
    """``ask`` sends a request; ``known`` are ids and names of what is there, by the word before them in paths."""

    def __init__(self, folder: Path, databases: Mapping[str, str], agent: str) -> None:
        self.folder = folder
        settings = make_settings(
            {
                "state_dir": str(folder),
                "hosts": {"kvm1": agent},
                "quota_instances": -1,
                "quota_cores": -1,
                "quota_ram": -1,
                "cell": "cell1",
                **databases,
            }
        )
        self.parts = serve.Parts(settings)
        self.parts.upgrade()
        with mock.patch.object(serve, "engine_of", lambda _settings: FakeEngine()):
            self.services = self.parts.services()
        self.parts.bootstrap()
        self.server = Server(self.parts.server(self.services))
        self.databases: dict[str, tuple[Database, Any]] = {"api": (self.parts.api_database, API)}
        self.databases |= {cell.name: (database, CELL) for cell, database in self.parts.store.databases()}
        self.cell = next(cell for cell in self.parts.store.cells() if cell.name == "cell1")
        self.known: dict[str, list[str]] = {}
        self.tokens: dict[str, str] = {}
        self._fill()
        self._kept = {name: _rows(*one) for name, one in self.databases.items()}
        self._files = {path: path.read_bytes() for path in (folder / "images").rglob("*") if path.is_file()}
        self._written: set[str] = set()
        for name, (database, _tables) in self.databases.items():
            for engine in (database.engine, database.reading):
                event.listen(engine, "before_cursor_execute", self._noting(name))

    def ask(self, sent: Sent) -> Got:
        """The answer, when all that it began has ended."""
        got = self.server.ask(sent)
        for operation in self.operations():
            operation.cancel()
            assert operation.wait(60), operation.as_dict()
        return got

    def operations(self) -> list[Any]:
        """What the agents' protocol has begun and not ended."""
        application = next(one for prefix, one in self.server.application.mounts if not prefix)
        return [one for one in application.v1.operations.list() if one.status == "running"]

    def written(self) -> list[str]:
        """Tables that have more or fewer rows than at the beginning."""
        found = []
        for name in self._written:
            database, tables = self.databases[name]
            found += [
                f"{table}: {len(self._kept[name][table])} to {count}"
                for table, count in _counts(database, tables).items()
                if count != len(self._kept[name][table]) and table not in ASIDE
            ]
        return found

    def put_back(self) -> None:
        """Have all rows and files be as they were."""
        for name in sorted(self._written):
            database, tables = self.databases[name]
            with database.write() as connection:
                for table in reversed(tables.sorted_tables):
                    if table not in ASIDE:
                        connection.execute(table.delete())
                for table in tables.sorted_tables:
                    if table not in ASIDE and self._kept[name][table]:
                        connection.execute(insert(table), self._kept[name][table])
        if "api" in self._written:
            self.parts.identity.tokens.forget()
            self.parts.store.cells(fresh=True)
            for path, content in self._files.items():
                if not path.exists():
                    path.write_bytes(content)
        self._written.clear()

    def close(self) -> None:
        self.server.close()
        self.parts.close()

    def _noting(self, name: str) -> Any:
        def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if WRITES.match(statement):
                self._written.add(name)

        return note

    def _fill(self) -> None:
        """Something of everything."""
        password = json.dumps(self.parts.bootstrapped)
        self.tokens["admin"] = self._login("admin", json.loads(password), "admin")
        me = self._called("GET", "/identity/v3/auth/tokens", None, {"x-subject-token": self.tokens["admin"]})["token"]
        self.project = me["project"]["id"]
        self._people()
        self._services()
        self._servers(me["user"]["id"])

    def _called(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        path, _mark, query = path.partition("?")
        given = {
            "content-type": "application/json",
            "x-auth-token": self.tokens.get("admin", ""),
            **(headers or {}),
            "openstack-api-version": "compute 2.100,volume 3.71",
        }
        content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        got = self.server.ask(Sent("", method, path, query, tuple(given.items()), content))
        assert got.status < 300, (method, path, got)
        self.last = got
        return orjson.loads(got.content) if got.content else None

    def _login(self, user: str, password: str, project: str) -> str:
        self._called(
            "POST",
            "/identity/v3/auth/tokens",
            {
                "auth": {
                    "identity": {
                        "methods": ["password"],
                        "password": {"user": {"name": user, "domain": {"id": "default"}, "password": password}},
                    },
                    "scope": {"project": {"name": project, "domain": {"id": "default"}}},
                }
            },
        )
        return self.last.headers["x-subject-token"]

    def _made(self, path: str, noun: str, body: Any) -> str:
        """Make one; its id is known."""
        found = self._called("POST", path, {noun: body})[noun]
        self.known.setdefault(path.rpartition("/")[2], []).append(str(found["id"] if "id" in found else found["name"]))
        return self.known[path.rpartition("/")[2]][-1]

    def _people(self) -> None:
        top = "/identity/v3"
        domain, group, region = (
            self._made(f"{top}/{noun}s", noun, {"name": "a", "description": "a"})
            for noun in ("domain", "group", "region")
        )
        project = self._made(f"{top}/projects", "project", {"name": "red", "tags": ["a"]})
        service = self._made(f"{top}/services", "service", {"name": "a", "type": "a"})
        self._made(
            f"{top}/endpoints",
            "endpoint",
            {"service_id": service, "interface": "public", "url": "http://a", "region_id": region},
        )
        role = self._made(f"{top}/roles", "role", {"name": "a"})
        implied = self._made(f"{top}/roles", "role", {"name": "b"})
        self._called("PUT", f"{top}/roles/{role}/implies/{implied}")
        for name, word in (("alice", "member"), ("rita", "reader")):
            user = self._made(f"{top}/users", "user", {"name": name, "password": "secret"})
            known = self._called("GET", f"{top}/roles?name={word}")["roles"][0]["id"]
            for one in (role, known):
                self._called("PUT", f"{top}/projects/{project}/users/{user}/roles/{one}")
            self._called("PUT", f"{top}/domains/{domain}/groups/{group}/roles/{role}")
            self._called("PUT", f"{top}/groups/{group}/users/{user}")
            self.tokens[name] = self._login(name, "secret", "red")
        own = {"x-auth-token": self.tokens["alice"]}
        self._called(
            "POST",
            f"{top}/users/{self.known['users'][0]}/application_credentials",
            {"application_credential": {"name": "a"}},
            own,
        )
        self.known |= {"implies": [implied], "user": self.known["users"][:1], "group": [group]}

    def _services(self) -> None:
        image = self._called(
            "POST",
            "/image/v2/images",
            {
                "name": "a",
                "disk_format": "raw",
                "tags": ["a"],
                "visibility": "shared",
                "container_format": "bare",
                "hw_disk_bus": "virtio",
            },
        )["id"]
        self._called(
            "PUT", f"/image/v2/images/{image}/file", b"\0" * 65536, {"content-type": "application/octet-stream"}
        )
        empty = self._called(
            "POST", "/image/v2/images", {"name": "b", "disk_format": "raw", "container_format": "bare"}
        )["id"]
        self._called("POST", f"/image/v2/images/{image}/members", {"member": self.known["projects"][0]})
        self.known |= {
            "images": [image, empty],
            "members": self.known["projects"],
            "image": [image, "a"],
            "schemas": ["image"],
        }
        top = "/network/v2.0"
        # A project has its default group from its first look at groups on.
        self._called("GET", f"{top}/security-groups", None, {"x-auth-token": self.tokens["alice"]})
        network = self._made(f"{top}/networks", "network", {"name": "a"})
        self._made(f"{top}/subnets", "subnet", {"network_id": network, "cidr": "10.7.0.0/24"})
        self._made(f"{top}/ports", "port", {"network_id": network, "name": "a"})
        group = self._made(f"{top}/security-groups", "security_group", {"name": "a"})
        self._made(
            f"{top}/security-group-rules", "security_group_rule", {"security_group_id": group, "direction": "ingress"}
        )
        self._made(
            f"{top}/default-security-group-rules",
            "default_security_group_rule",
            {"direction": "ingress", "protocol": "tcp"},
        )
        self._networks_of_engine(top)
        self.known["network"] = [network, "a"]
        self._made("/volume/v3/types", "volume_type", {"name": "gold", "extra_specs": {"multiattach": "<is> True"}})
        volume_ = self._made("/volume/v3/volumes", "volume", {"size": 1, "name": "a", "metadata": {"a": "b"}})
        with self.parts.api_database.write() as connection:
            connection.execute(update(volume.volumes).values(status="available", host="kvm1"))
        self._made("/volume/v3/snapshots", "snapshot", {"volume_id": volume_, "name": "a", "metadata": {"a": "b"}})
        with self.parts.api_database.write() as connection:
            connection.execute(update(volume.snapshots).values(status="available"))
        self._made("/volume/v3/backups", "backup", {"volume_id": volume_, "name": "a"})
        with self.parts.api_database.write() as connection:
            connection.execute(update(volume.volumes).values(status="available"))
        self._made("/volume/v3/attachments", "attachment", {"volume_uuid": volume_, "instance_uuid": str(uuid.uuid4())})
        offered = self._made("/volume/v3/volumes", "volume", {"size": 1, "name": "b"})
        with self.parts.api_database.write() as connection:
            connection.execute(update(volume.volumes).where(volume.volumes.c.id == offered).values(status="available"))
        self._made("/volume/v3/volume-transfers", "transfer", {"volume_id": offered, "name": "a"})
        self.known |= {
            "os-volume-transfer": self.known["volume-transfers"],
            "volume": [volume_, "a"],
            "volume_snapshot": [self.known["snapshots"][0], "a"],
            "types": ["default", "gold"],
            "extra_specs": ["multiattach"],
            "metadata": ["a"],
            "os-quota-sets": [*self.known["projects"], self.project],
            "os-volume_attachments": [volume_],
        }

    def _networks_of_engine(self, top: str) -> None:
        flat = {"provider:network_type": "flat", "provider:physical_network": "ext", "router:external": True}
        outside = self._made(f"{top}/networks", "network", {"name": "ext", **flat})
        self._made(f"{top}/subnets", "subnet", {"network_id": outside, "cidr": "192.0.2.0/24", "enable_dhcp": False})
        gateway = {"external_gateway_info": {"network_id": outside}}
        router = self._made(f"{top}/routers", "router", {"name": "a", **gateway})
        subnet = self.known["subnets"][0]
        self._called("PUT", f"{top}/routers/{router}/add_router_interface", {"subnet_id": subnet})
        floating = self._made(f"{top}/floatingips", "floatingip", {"floating_network_id": outside})
        inner = {"internal_port_id": self.known["ports"][0], "internal_port": 22, "external_port": 22}
        self._made(f"{top}/floatingips/{floating}/port_forwardings", "port_forwarding", {**inner, "protocol": "tcp"})
        policy = self._made(f"{top}/qos/policies", "policy", {"name": "a"})
        for kind, rule in (("bandwidth_limit", {"max_kbps": 5}), ("dscp_marking", {"dscp_mark": 8}),
                           ("minimum_bandwidth", {"min_kbps": 5})):
            self._made(f"{top}/qos/policies/{policy}/{kind}_rules", f"{kind}_rule", rule)
        shared = {"object_type": "qos_policy", "object_id": policy, "action": "access_as_shared"}
        self._made(f"{top}/rbac-policies", "rbac_policy", {**shared, "target_tenant": self.known["projects"][0]})
        self._made(f"{top}/address-groups", "address_group", {"name": "a", "addresses": ["10.0.0.0/8"]})
        self._made(f"{top}/address-scopes", "address_scope", {"name": "a", "ip_version": 4})
        ports = [self._made(f"{top}/ports", "port", {"network_id": self.known["networks"][0]}) for _ in range(3)]
        self._made(f"{top}/trunks", "trunk", {"port_id": ports[0], "sub_ports": [
            {"port_id": ports[1], "segmentation_type": "vlan", "segmentation_id": 5}]})
        self.known["rule-types"] = ["dscp_marking"]

    def _servers(self, user: str) -> None:
        with self.parts.api_database.write() as connection:
            connection.execute(insert(flavors).values(id="1", name="tiny", vcpus=1, ram=64, created_at=utc_now()))
            hosts.upsert_host_row(connection, "kvm1", self.cell.id, dict(self.parts.settings.hosts)["kvm1"])
            hosts.save_host_inventory(
                connection,
                "kvm1",
                {
                    "name": "kvm1",
                    "vcpus": 8,
                    "memory_mb": 16384,
                    "disk_gb": 100,
                    "hypervisor_type": "QEMU",
                    "hypervisor_version": "7.2.22",
                    "cpu_model": "EPYC",
                    "disk_gb_free": 90,
                },
            )
        with self.databases["cell1"][0].write() as connection:
            connection.execute(insert(host_states).values(host="kvm1", seen_at=utc_now(10**7)))
        self.parts.hosts.all(fresh=True)
        top = "/v2.1"
        self._called("POST", f"{top}/flavors/1/os-extra_specs", {"extra_specs": {"hw:cpu_policy": "shared"}})
        self._made(f"{top}/os-keypairs", "keypair", {"name": "a", "type": "ssh", "public_key": KEY})
        self._made(f"{top}/os-aggregates", "aggregate", {"name": "a", "availability_zone": "a"})
        self._called(
            "POST", f"{top}/os-aggregates/{self.known['os-aggregates'][0]}/action", {"add_host": {"host": "kvm1"}}
        )
        self._made(f"{top}/os-server-groups", "server_group", {"name": "a", "policy": "affinity"})
        ids = [
            self._server(user, state, name)
            for state, name in (
                ("active", "web1"),
                ("stopped", "web2"),
                ("error", "web3"),
                ("rescued", "web4"),
                ("resized", "web5"),
            )
        ]
        service = self._called("GET", f"{top}/os-services")["services"]
        hypervisor = self._called("GET", f"{top}/os-hypervisors")["hypervisors"]
        self.known |= {
            "servers": ids,
            "server": [*ids, "web1"],
            "flavors": ["1"],
            "flavor": ["1", "tiny"],
            "tags": ["a"],
            "os-extra_specs": ["hw:cpu_policy"],
            "keypair": ["a"],
            "host": ["kvm1"],
            "cell": ["cell1"],
            "os-services": [str(one["id"]) for one in service],
            "os-simple-tenant-usage": [self.project],
            "os-hypervisors": [str(one["id"]) for one in hypervisor],
            "hypervisor": ["kvm1"],
            "os-quota-class-sets": ["default"],
            "attachments": self.known["attachments"],
        }

    def _server(self, user: str, state: str, name: str) -> str:
        id = str(uuid.uuid4())
        flavor = {"id": "1", "name": "tiny", "vcpus": 1, "ram": 64, "disk": 0, "ephemeral": 0, "swap": 0}
        row = {
            "id": id,
            "project_id": self.project,
            "user_id": user,
            "name": name,
            "vm_state": state,
            "power_state": 1,
            "flavor_id": "1",
            "flavor": orjson.dumps(flavor).decode(),
            "created_at": utc_now(),
            "host": "kvm1",
            "image_id": self.known["images"][0],
            "metadata": '{"a": "b"}',
            "tags": '["a"]',
        }
        with self.databases["cell1"][0].write() as connection:
            connection.execute(insert(servers).values(**row))
            insert_filter_rows(connection, [row])
        with self.parts.api_database.write() as connection:
            connection.execute(
                insert(server_mappings).values(
                    server_id=id, cell_id=self.cell.id, project_id=self.project, created_at=row["created_at"]
                )
            )
        return id


def _rows(database: Database, tables: Any) -> Rows:
    with database.read() as connection:
        return {
            table: [dict(row) for row in connection.execute(select(table)).mappings()] for table in tables.sorted_tables
        }


def _counts(database: Database, tables: Any) -> dict[Any, int]:
    """How many rows each table has: one statement."""
    asked = select(*(select(func.count()).select_from(table).scalar_subquery() for table in tables.sorted_tables))
    with database.read() as connection:
        return dict(zip(tables.sorted_tables, connection.execute(asked).one(), strict=True))


@contextlib.contextmanager
def running(folder: Path, databases: Mapping[str, str], agent: str) -> Iterator[Cloud]:
    """A cloud for a while."""
    wait = HeldAction.wait
    with contextlib.ExitStack() as stack:
        for name, seconds in WAITS.items():
            stack.enter_context(mock.patch(name, seconds))
        stack.enter_context(mock.patch.object(HeldAction, "wait", lambda action, _limit: wait(action, 0)))
        yield stack.enter_context(contextlib.closing(Cloud(folder, databases, agent)))
