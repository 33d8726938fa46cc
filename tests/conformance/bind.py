# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts the site's things into paths, queries and request samples. The key sets of the samples stay as they are."""

from __future__ import annotations

import datetime as dt
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from .fixtures import Blocked
from .samples import escape
from .scenes import Scene

Value = Callable[[Scene, Any, Any], Any]


def _flavor(scene: Scene, literal: Any, parent: Any) -> Any:
    id = scene.fx.flavor("larger" if scene.operation.action == "resize" else "small")
    if "://" in str(literal):
        return f"{scene.fx.cloud.target.url.rstrip('/')}/flavors/{id}"
    return id


def _block_device(scene: Scene, literal: Any, parent: Any) -> Any:
    if parent.get("source_type") == "image":
        return scene.fx.image
    if parent.get("source_type") == "volume":
        return scene.fx.volume()
    raise Blocked(f"a block device from a {parent.get('source_type')} needs a fixture of that kind")


def _port(scene: Scene, literal: Any, parent: Any) -> Any:
    return scene.fx.port()["id"]


def _host(scene: Scene, literal: Any, parent: Any) -> Any:
    if literal is None:
        return None
    return scene.known.get("host") or scene.fx.hosts[0]


def _node(scene: Scene, literal: Any, parent: Any) -> Any:
    found = scene.fx.compute("GET", "/os-hypervisors/detail")["hypervisors"]
    wanted = scene.fx.hosts[0]
    return next((one["hypervisor_hostname"] for one in found if one["service"]["host"] == wanted), wanted)


def _zone(scene: Scene, literal: Any, parent: Any) -> Any:
    return None if literal is None else scene.fx.zone


def _own_name(scene: Scene, literal: Any, parent: Any) -> Any:
    """The sample's name, which may have letters that matter, and a number."""
    return f"{literal}-{scene.fx.name('')[-14:].strip('-')}"


#: Pointers of requests and what stands there on this site; the first that fits.
VALUES: tuple[tuple[str, Value], ...] = (
    (r"/(server|rebuild)/imageRef|/rescue/rescue_image_ref|/cache/\d+/id", lambda scene, *rest: scene.fx.image),
    (r"/(server|resize)/flavorRef", _flavor),
    (r"/server/block_device_mapping_v2/\d+/uuid", _block_device),
    (r"/server/block_device_mapping_v2/\d+/volume_type", lambda scene, *rest: scene.fx.volume_type),
    (r"/server/networks/\d+/uuid|/interfaceAttachment/net_id", lambda scene, *rest: scene.fx.network),
    (r"/interfaceAttachment/fixed_ips/\d+/ip_address", lambda scene, *rest: scene.fx.address()),
    (r"/interfaceAttachment/port_id", _port),
    (r"/(server|unshelve)/availability_zone", _zone),
    (r"/server/pinned_availability_zone", _zone),
    (r"/server/hypervisor_hostname", _node),
    (r"/server/host|/(migrate|os-migrateLive|unshelve|evacuate|add_host|remove_host)/host|/host", _host),
    (r"/(server|rebuild)/key_name", lambda scene, *rest: scene.fx.keypair("new-key")),
    (r"/.*scheduler_hints/(same_host|different_host)", lambda scene, *rest: scene.known["server"]),
    (r"/.*scheduler_hints/group", lambda scene, *rest: scene.fx.group()),
    (r"/(add|remove)TenantAccess/tenant", lambda scene, *rest: scene.fx.cloud.admin.project_id),
    (r"/volumeAttachment/volumeId", lambda scene, *rest: scene.known.get("volume") or scene.fx.volume()),
    (r"/volumeAttachment/id", lambda scene, *rest: scene.known.get("volume")),
    (r"/volumeAttachment/serverId", lambda scene, *rest: scene.known["server"]),
    (r"/volumeAttachment/device", lambda scene, literal, parent: scene.known.get("device") or literal),
    (r"/(flavor|keypair|aggregate)/name|/flavor/id", _own_name),
    (r"/keypair/user_id", lambda scene, *rest: scene.fx.cloud.admin.user_id),
)
_COMPILED = tuple((re.compile(pattern), value) for pattern, value in VALUES)


def bind(scene: Scene, document: Any, pointer: str = "", parent: Any = None) -> Any:
    """The request sample with this site's values."""
    for pattern, value in _COMPILED:
        if pattern.fullmatch(pointer):
            return value(scene, document, parent)
    if isinstance(document, dict):
        return {key: bind(scene, inner, f"{pointer}/{escape(key)}", document) for key, inner in document.items()}
    if isinstance(document, list):
        return [bind(scene, inner, f"{pointer}/{index}", document) for index, inner in enumerate(document)]
    return document


def path(scene: Scene) -> str:
    """The operation's path with its placeholders filled."""
    text = scene.operation.path
    if text.startswith("(service root)"):
        file = scene.sample.file if scene.sample else ""
        place = text.removeprefix("(service root)").strip()
        if "/v2 or" in place or place == "/v2":
            place = "/v2.1/" if "v21-" in file else "/v2/"
        return f"(root){place}"
    for name, value in scene.params.items():
        text = text.replace("{" + name + "}", urllib.parse.quote(value, safe=":"))
    if "{" in text:
        raise Blocked(f"nothing is known to stand for a placeholder of {text}")
    return text


def query(scene: Scene) -> str:
    """A query of the sample, with this site's values; empty when it has none."""
    sample = scene.sample
    if sample is None or sample.direction != "response" or not sample.queries or "flavors" in sample.path:
        return ""
    pairs = [_parameter(scene, name, value) for name, value in urllib.parse.parse_qsl(sample.queries[0])]
    return "?" + urllib.parse.urlencode([pair for pair in pairs if pair])


def _time(seconds: float) -> str:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")


def _parameter(scene: Scene, name: str, value: str) -> tuple[str, str] | None:
    times = {"changes-before": 60.0, "changes-since": -86400.0, "start": -3600.0, "end": 60.0}
    if name in times:
        return name, _time(times[name])
    if name == "marker":
        marker = _marker(scene)
        return (name, marker) if marker else None
    if name == "user_id":
        return name, scene.fx.cloud.admin.user_id
    if name == "project_id":
        return name, scene.fx.cloud.admin.project_id
    if name == "hypervisor_hostname_pattern":
        return name, scene.fx.compute("GET", "/os-hypervisors")["hypervisors"][0]["hypervisor_hostname"]
    return name, value


def _marker(scene: Scene) -> str:
    place, key = scene.operation.path, "id"
    if place == "/os-keypairs":
        return str(scene.known["keypairs"][0])
    if "os-instance-actions" in place:
        place, key = place.replace("{server_id}", scene.params["server_id"]), "request_id"
    elif place == "/os-migrations":
        key = "uuid"
    else:
        return ""
    found = next(iter(scene.fx.compute("GET", place, version=scene.version).values()))
    if not found:
        raise Blocked("there is nothing to begin the second page after")
    return str(found[0][key])
