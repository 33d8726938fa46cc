# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands behind the placeholders of a path: the things that an operation works on, in the state that it needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .fixtures import Blocked, Fixtures, body_of
from .samples import Operation, Sample


@dataclass
class Scene:
    """One case's things. ``known`` is what the binding of bodies and queries uses."""

    fx: Fixtures
    operation: Operation
    version: int
    sample: Sample | None = None
    #: The request's own file, and the status that it shall bring.
    file: str = ""
    status: int = 200
    params: dict[str, str] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> bool:
        """Whether the operation changes nothing."""
        return self.operation.method == "GET"


#: The state that an operation's server is in, where the first state of the table is not the one.
STATES = {"servers.action.unshelve": "shelved_offloaded", "servers.os-instance-actions.list": "stopped",
          "servers.os-instance-actions.show": "stopped", "servers.action.os-resetState": "active"}
#: Operations after which their server is as good for the next of them.
REUSED = frozenset({
    "servers.update", "servers.action.rebuild", "servers.action.reboot", "servers.action.changePassword",
    "servers.action.createImage", "servers.action.os-getConsoleOutput", "servers.action.injectNetworkInfo",
    "servers.action.createBackup",
    "servers.metadata.replace", "servers.metadata.update", "servers.tags.replace", "servers.remote-consoles.create",
    "servers.action.trigger_crash_dump",
})
_KNOWN = {"active", "stopped", "paused", "suspended", "resized", "rescued", "shelved", "shelved_offloaded", "error",
          "soft-delete"}


def state(operation: Operation) -> str:
    """The state in which the operation's server is."""
    if operation.id in STATES:
        return STATES[operation.id]
    words = operation.states.replace(";", " ").replace(":", " ").split()
    return next((word for word in words if word in _KNOWN), "active")


def _server(scene: Scene) -> dict[str, str]:
    wanted = state(scene.operation)
    file = scene.sample.file if scene.sample else ""
    if file.endswith("server-get-resp-rescue.json"):
        wanted = "rescued"
    if scene.operation.id in REUSED and wanted == "active":
        wanted = "reused"
    id = scene.fx.server(wanted) if scene.reads or wanted == "reused" else scene.fx.spent(wanted)
    if not scene.reads:
        scene.known["spent"] = id
    scene.known["server"] = id
    if "migrat" in scene.operation.id:
        here = scene.fx.compute("GET", f"/servers/{id}")["server"].get("OS-EXT-SRV-ATTR:host")
        scene.known["host"] = next((one for one in scene.fx.hosts if one != here), None)
        if not scene.known["host"]:
            raise Blocked("there is no second host")
    if scene.operation.id.startswith("servers.tags"):
        scene.fx.compute("PUT", f"/servers/{id}/tags", {"tags": ["tag1", "tag2"]}, 26)
    return {"id": id, "server_id": id}


def _metadata(scene: Scene) -> dict[str, str]:
    return {**_server(scene), "id": "foo"}


def _tag(scene: Scene) -> dict[str, str]:
    return {**_server(scene), "id": "tag1"}


def _instance_action(scene: Scene) -> dict[str, str]:
    params = _server(scene)
    actions = scene.fx.compute("GET", f"/servers/{params['server_id']}/os-instance-actions")["instanceActions"]
    stop = next((one for one in actions if one["action"] == "stop"), actions[0])
    return {**params, "id": stop["request_id"]}


def attach(fx: Fixtures, server: str, volume: str, tag: str) -> None:
    """Attach a volume, and wait until it is."""
    body = {"volumeAttachment": {"volumeId": volume, "tag": tag}}
    fx.compute("POST", f"/servers/{server}/os-volume_attachments", body, 49, "attach a volume")
    status = fx.settle(server)
    there = fx.compute("GET", f"/servers/{server}/os-volume_attachments")["volumeAttachments"]
    if volume not in [one["volumeId"] for one in there]:
        raise Blocked(f"the volume was not attached; the server is {status}")


def _with_volume(scene: Scene) -> dict[str, str]:
    # Volumes are made before the server: things are removed in the reverse order.
    fx = scene.fx

    def make() -> tuple[str, str]:
        volume = fx.volume()
        id = fx.spent("active")
        attach(fx, id, volume, "foo")
        return id, volume
    flag = "delete-flag" in scene.file
    another = fx.volume() if "update-volume" in scene.file and not flag else ""
    if scene.reads:
        server, volume = fx.remember("server with volume", make)
    else:
        server, volume = make()
        scene.known["spent"] = server
    scene.known.update(server=server, attached=volume, volume=another or volume)
    if flag:
        there = fx.compute("GET", f"/servers/{server}/os-volume_attachments/{volume}")["volumeAttachment"]
        scene.known["device"] = there["device"]
    return {"server_id": server, "id": volume}


def _with_port(scene: Scene) -> dict[str, str]:
    params = _server(scene)
    ports = scene.fx.compute("GET", f"/servers/{params['server_id']}/os-interface")["interfaceAttachments"]
    if not ports:
        raise Blocked("the server has no interface")
    return {**params, "id": ports[0]["port_id"]}


def _flavor(scene: Scene) -> dict[str, str]:
    id = scene.operation.id
    fx = scene.fx
    if "enant" in id or "access" in id:
        public = scene.status == 409
        flavor = fx.spent_flavor(**{"os-flavor-access:is_public": public})
        if not public and id != "flavors.action.addTenantAccess":
            granted = fx.cloud.compute("POST", f"/flavors/{flavor}/action",
                                       {"addTenantAccess": {"tenant": fx.cloud.admin.project_id}})
            if granted.status != 409:
                body_of(granted, "flavor access")
    elif scene.reads:
        flavor = fx.flavor("specs")
    else:
        flavor = fx.spent_flavor()
        if "os-extra_specs" in id and scene.operation.method != "POST":
            fx.compute("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"hw:numa_nodes": "1"}})
    return {"id": flavor, "flavor_id": flavor}


def _extra_spec(scene: Scene) -> dict[str, str]:
    return {**_flavor(scene), "id": "hw:numa_nodes"}


def _keypair(scene: Scene) -> dict[str, str]:
    return {"id": scene.fx.keypair() if scene.reads else scene.fx.keypair(scene.fx.name("key"))}


def _aggregate(scene: Scene) -> dict[str, str]:
    fx = scene.fx

    def make(**more: Any) -> str:
        body = {"aggregate": {"name": fx.name("aggregate"), **more}}
        id = str(fx.compute("POST", "/os-aggregates", body, what="aggregate")["aggregate"]["id"])
        fx.undo("aggregate", lambda: fx.cloud.compute("DELETE", f"/os-aggregates/{id}"))
        return id

    def add(id: str) -> None:
        fx.compute("POST", f"/os-aggregates/{id}/action", {"add_host": {"host": fx.hosts[0]}})
        fx.undo("aggregate's host", lambda: fx.cloud.compute(
            "POST", f"/os-aggregates/{id}/action", {"remove_host": {"host": fx.hosts[0]}}))
    if scene.reads:
        return {"id": str(fx.remember("aggregate", lambda: make(availability_zone="london")))}
    id = make()
    if scene.operation.id.endswith(("remove_host", "images.create")):
        add(id)
    if scene.operation.id.endswith("add_host"):
        fx.undo("aggregate's host", lambda: fx.cloud.compute(
            "POST", f"/os-aggregates/{id}/action", {"remove_host": {"host": fx.hosts[0]}}))
    return {"id": id}


def _hypervisor(scene: Scene) -> dict[str, str]:
    found = scene.fx.compute("GET", "/os-hypervisors", version=scene.version)["hypervisors"]
    if not found:
        raise Blocked("there is no hypervisor")
    if scene.operation.id.endswith(("search.list", "servers.list")):
        if "with-servers" in (scene.sample.file if scene.sample else ""):
            scene.fx.server()
        return {"id": found[0]["hypervisor_hostname"]}
    return {"id": str(found[0]["id"])}


def _group(scene: Scene) -> dict[str, str]:
    fx, policy = scene.fx, "anti-affinity"  # the samples'
    return {"id": fx.remember("server group", lambda: fx.group(policy)) if scene.reads else fx.group(policy)}


def _service(scene: Scene) -> dict[str, str]:
    found = scene.fx.compute("GET", "/os-services?binary=nova-compute", version=max(scene.version, 53))["services"]
    last = found[-1]
    scene.fx.undo("service", lambda: scene.fx.cloud.compute(
        "PUT", f"/os-services/{last['id']}", {"status": "enabled", "forced_down": False}, version=53))
    return {"id": str(last["id"])}


def _service_by_host(scene: Scene) -> dict[str, str]:
    host = scene.fx.hosts[-1]
    scene.known["host"] = host

    def restore() -> None:
        for path in ("enable", "force-down"):
            body = {"host": host, "binary": "nova-compute", **({"forced_down": False} if path == "force-down" else {})}
            scene.fx.cloud.compute("PUT", f"/os-services/{path}", body, version=11)
    scene.fx.undo("service", restore)
    return {}


def _quota(scene: Scene) -> dict[str, str]:
    persona = "admin" if scene.reads else "other"
    return {"id": scene.fx.cloud.personas[persona].project_id}


def _console(scene: Scene) -> dict[str, str]:
    server = scene.fx.server()
    body = {"remote_console": {"protocol": "vnc", "type": "novnc"}}
    made = scene.fx.compute("POST", f"/servers/{server}/remote-consoles", body, 31)["remote_console"]["url"]
    return {"id": re.split("token(?:=|%3D)", made)[-1]}


def _newest_server(scene: Scene) -> dict[str, str]:
    scene.known["server"] = scene.fx.spent("active")
    return {}


def _migrations(scene: Scene) -> dict[str, str]:
    scene.fx.server("migrated")
    scene.fx.remember("second migration", lambda: scene.fx.spent("migrated"))
    return {}


def _keypairs(scene: Scene) -> dict[str, str]:
    scene.known["keypairs"] = sorted([scene.fx.keypair(), scene.fx.keypair("conformance-second")])
    return {}


def _one_flavor(scene: Scene) -> dict[str, str]:
    scene.fx.flavor("specs")
    return {}


def _nothing(scene: Scene) -> dict[str, str]:
    return {}


#: Beginnings of paths, the longest that fits counts.
PATHS: dict[str, Callable[[Scene], dict[str, str]]] = {
    "/servers": _newest_server,
    "/servers/{": _server,
    "/servers/{server_id}/metadata/{": _metadata,
    "/servers/{server_id}/tags/{": _tag,
    "/servers/{server_id}/os-instance-actions/{": _instance_action,
    "/servers/{server_id}/os-volume_attachments": _with_volume,
    "/servers/{server_id}/os-interface/{": _with_port,
    "/flavors": _one_flavor,
    "/flavors/{": _flavor,
    "/flavors/{flavor_id}/os-extra_specs/{": _extra_spec,
    "/os-keypairs": _keypairs,
    "/os-keypairs/{": _keypair,
    "/os-aggregates": _aggregate,
    "/os-hypervisors/{": _hypervisor,
    "/os-server-groups": _group,
    "/os-services/{": _service,
    "/os-services/": _service_by_host,
    "/os-quota-sets": _quota,
    "/os-quota-class-sets": lambda scene: {"id": "test_class"},
    "/os-simple-tenant-usage": lambda scene: (scene.fx.server(), {"id": scene.fx.cloud.admin.project_id})[1],
    "/os-instance_usage_audit_log/{": lambda scene: {"id": "2026-01-01 00:00:00"},
    "/os-console-auth-tokens": _console,
    "/os-migrations": _migrations,
    "/": _nothing,
}


def prepare(scene: Scene) -> Scene:
    """Make what the operation's path names."""
    path, method = scene.operation.path, scene.operation.method
    if path == "/servers" and method == "POST":
        scene.known["server"] = scene.fx.server()
        return scene
    if path == "/servers/{server_id}/os-volume_attachments" and method == "POST":
        scene.known["volume"] = scene.fx.volume()
        scene.params = _server(scene)
        return scene
    if method == "POST" and path in ("/os-aggregates", "/os-server-groups", "/os-keypairs", "/flavors"):
        return scene
    longest = max((start for start in PATHS if path.startswith(start)), key=len, default="/")
    if not path.startswith("(service root)"):
        scene.params = PATHS[longest](scene)
    return scene


__all__ = ["Blocked", "Scene", "body_of", "prepare", "state"]
