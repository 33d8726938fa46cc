# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures whole requests for many servers, ports and hosts, which the applications answer in this process:
``bench/scale --only requests``. Each is next to its floor: the same ports, fetched with the driver and serialised."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from control_reads import FETCHED, plain
from figures import Figure, spread
from sqlalchemy import func, select

from magnetar_control.serve import Parts
from magnetar_control.services import Context
from magnetar_control.services.identity import EmbeddedIdentity
from magnetar_control.services.network.tables import addresses, ports
from magnetar_control.settings_file import make_settings
from magnetar_control.store.engine.tables import servers
from magnetar_control.store.store import Store
from magnetar_control.web import Request
from magnetar_control.web.application import Application
from tools.filled_cloud import fill_cloud

HOSTS, PROJECT = 1000, "project3"
USER = "user"
#: Callers by their tokens.
CALLERS = {"admin": Context("root", "operators", frozenset({"admin", "member", "reader"}), token="admin"),  # noqa: S106
           USER: Context("alice", PROJECT, frozenset({"member", "reader"}), token=USER)}
HEADERS = {"openstack-api-version": "compute 2.87, placement 1.39"}


class BenchIdentity(EmbeddedIdentity):
    """A fake identity service with the tokens of ``CALLERS``, in which every project exists."""

    def validate(self, token: str) -> Context | None:
        """Return the caller of a token."""
        return CALLERS.get(token)

    def project_exists(self, context: Context, project_id: str) -> bool:
        """Return true: every project exists."""
        return True


def measure_requests(store: Store, rounds: int) -> list[Figure]:
    """Add ports and hosts to the *store*, which has servers, and return the figures of requests."""
    cell = store.find_cell("cell1")
    fill_cloud(store.api, cell.id, HOSTS)
    url = store.api.url.render_as_string(hide_password=False)
    with tempfile.TemporaryDirectory(prefix="scale") as folder:
        parts = Parts(make_settings({"state_dir": folder, "database_url": url, "cell_database_url": url,
                                     "cell0_database_url": f"sqlite:///{folder}/cell0.db"}))
        try:
            parts.upgrade()
            services = parts.services()
            parts.identity = BenchIdentity(parts.api_database, 3600)
            applications = parts.applications(dataclasses.replace(services, identity=parts.identity))
            return [_measure_request(store, applications, name, token, path, rounds)
                    for name, (token, path) in _requests(store).items()]
        finally:
            parts.close()


def _requests(store: Store) -> Mapping[str, tuple[str, str]]:
    """Return the token and the path of each request to measure, by the request's name. *store*: the data to request."""
    with store.api.read() as connection:
        port = connection.execute(select(ports, addresses.c.ip_address).join(
            addresses, addresses.c.port_id == ports.c.id).where(ports.c.project_id == PROJECT).order_by(
            ports.c.created_at).offset(50).limit(1)).mappings().one()
        first = connection.execute(select(func.min(servers.c.launched_at))).scalar_one()
    listed, usage = "/network/v2.0/ports?limit=50", "/v2.1/os-simple-tenant-usage"
    own = {name: (USER, listed + more) for name, more in (
        ("ports of a project", ""), ("the next page", f"&marker={port['id']}"),
        ("the same of a device", f"&device_id={port['device_id']}"),
        ("the same of a network", f"&network_id={port['network_id']}"),
        ("the same with an address", f"&fixed_ips=ip_address={port['ip_address']}"),
        ("the same with a MAC address", f"&mac_address={port['mac_address']}"))}
    return {**own, "ports of all projects": ("admin", listed),
            "GET /os-hypervisors/statistics": ("admin", "/v2.1/os-hypervisors/statistics"),
            "GET /os-instance_usage_audit_log": ("admin", "/v2.1/os-instance_usage_audit_log"),
            **{f"GET /resource_providers{query}": ("admin", f"/placement/resource_providers{query}") for query in (
                "", "?resources=VCPU:1,MEMORY_MB:512", "?name=kvm0003")},
            "GET /allocation_candidates, 10": (
                "admin", "/placement/allocation_candidates?resources=VCPU:1,MEMORY_MB:512&limit=10"),
            **{f"usage of all projects, {name} servers ran": ("admin", f"{usage}?start={first[:10]}T00:00:00{end}")
               for name, end in (("few", f"&end={first[:10]}T00:05:00"), ("many", ""))},
            "GET /limits": (USER, "/v2.1/limits"),
            "GET /os-quota-sets/{id}/detail": (USER, f"/v2.1/os-quota-sets/{PROJECT}/detail")}


def _measure_request(store: Store, applications: Mapping[str, Application], name: str, token: str, path: str,
                     rounds: int) -> Figure:
    prefix = next((prefix for prefix in applications if prefix and path.startswith(prefix)), "")

    def ask() -> Any:
        text, _mark, query = path.removeprefix(prefix).partition("?")
        answer = applications[prefix].handle(Request(
            "GET", text, query, {"x-auth-token": token, **HEADERS}, b"", "http://cloud"))
        content = answer.body()
        return answer.status, content if isinstance(content, bytes) else b"".join(content)

    status, content = ask()
    if status != 200:
        raise SystemExit(f"GET {path}: {status} {content[:500]!r}")
    taken, cpu = _timed(ask, rounds)
    ids = [port["id"] for port in orjson.loads(content).get("ports", ())]
    floor = plain(store.api, select(ports).where(ports.c.id.in_(ids)), rounds) if ids else None
    return Figure(name, statistics.median(taken), floor=floor, floor_name=FETCHED if ids else "", spread=spread(taken),
                  cpu=min(cpu), notes=(f"{len(content)} bytes",))


def _timed(ask: Callable[[], Any], rounds: int) -> tuple[list[float], list[float]]:
    """Call *ask*, which makes a request, *rounds* times. Return the milliseconds of each call, and the CPU milliseconds
    of this process for each."""
    taken, cpu = [], []
    for _round in range(rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        ask()
        taken.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - began_cpu) * 1000)
    return taken, cpu
