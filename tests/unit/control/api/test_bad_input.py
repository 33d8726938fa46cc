# SPDX-License-Identifier: GPL-3.0-or-later
"""Every operation, in each of its bodies, queries and paths, with what does not belong there: never an answer of 5xx.

The bodies are made from the schemas of the operations, so what is new is asked too.
"""

import dataclasses
import re
from urllib.parse import quote

import orjson
import pytest
from sqlalchemy import insert

from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.versions import VERSIONS
from magnetar_control.services import Services
from magnetar_control.services.image import EmbeddedImages
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import flavors
from magnetar_control.web import Request

from .compute import Compute, emptied

pytestmark = pytest.mark.slow

UUID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
#: In any place of a body.
WRONG = (None, True, 0, -1, 2**31, 2**63, 2**64 - 1, -2**63, 1.5, 1e300, "", "1", "a\x00", "x" * 255, "x" * 256,
         "é" * 255, "²", "9" * 23, "\ud7ff\U0001f600", [], ["a", "a"], {}, {"a\x00": 1}, {"a": {"b": []}}, UUID)
#: As the value of a query parameter, and as a part of the path.
WORDS = ("", "-1", "0", "1", "²", "9" * 10, "9" * 18, "9" * 19, "9" * 23, "x" * 255, "x" * 256, "a\x00", "%", "(", "'",
         '{"a":', r'{"a\"b": "\u0000"}', "é", "None", "null", "true", "9999-12-31T23:59:59-23:59",
         "0001-01-01T00:00:00+23:59", UUID)
#: What lets a body get further.
DEEPER = {"imageRef": UUID, "networks": []}
#: Text that fits patterns of schemas.
TEXTS = ("a", "aa", "1", "/dev/vdb", "10.0.0.1", "fd00::1", "YQ==", "vda", "00:00:5e:00:53:01")


def example(schema):
    """Something that fits, with as little as may be."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: DEEPER.get(name, example(inner)) for name, inner in schema.get("properties", {}).items()
                if name in DEEPER or name in schema.get("required", ())}
    if kind == "array":
        return [example(schema.get("items") or {})]
    if kind in ("integer", "number"):
        return max(1, schema.get("minimum", 1))
    if kind == "string":
        return UUID if schema.get("format") == "uuid" else next((
            text for text in TEXTS if re.search(schema.get("pattern", ""), text)
            and len(text) >= schema.get("minLength", 0)), "a")
    return None


def wrong(schema):
    """Documents that are wrong, each in one place."""
    yield from WRONG
    for one in schema.get("anyOf", ()):
        yield from wrong(one)
    if schema.get("type") == "object":
        base, more = example(schema), schema.get("additionalProperties")
        yield {**base, "surprise": 1}
        yield {name: value for at, (name, value) in enumerate(base.items()) if at}
        for name, inner in schema.get("properties", {}).items():
            yield from ({**base, name: bad} for bad in wrong(inner))
        if isinstance(more, dict):
            yield from ({**base, "a": bad} for bad in wrong(more))
            yield from ({**base, name: example(more)} for name in ("", "a\x00", "x" * 255, "x" * 256, "²"))
    if schema.get("type") == "array":
        yield from ([bad] for bad in wrong(schema.get("items") or {}))
        yield [example(schema.get("items") or {})] * 300


class Pictures(EmbeddedImages):
    """One is there."""

    def show(self, context, image_id):
        if image_id == UUID:
            return {"id": UUID, "name": "one", "status": "active", "size": 1, "min_disk": 0, "min_ram": 0,
                    "created_at": utc_now(), "updated_at": None, "properties": {}}
        return super().show(context, image_id)


# PostgreSQL refuses more (NUL, numbers of eight bytes and more), and tests/fuzz asks the same operations on SQLite.
@pytest.fixture(params=[pytest.param("sqlite_three", marks=pytest.mark.deep(shard="bad input, sqlite")),
                        "postgres_three"])
def compute(request, tmp_path):
    found = request.getfixturevalue(request.param)
    yield Compute(found, tmp_path)
    emptied(found)


@pytest.fixture
def cloud(compute, tmp_path):
    images, networks = Pictures(compute.api, tmp_path / "images"), EmbeddedNetworks(compute.api)
    volumes = EmbeddedVolumes(compute.api, list, compute.cloud.agents, lambda _host, _image: None, images)
    compute.cloud.services = Services(compute.cloud.services.identity, images, networks, volumes,
                                      compute.cloud.services.key_manager)
    compute.cloud.settings = dataclasses.replace(compute.cloud.settings, quota_instances=500, quota_cores=-1,
                                                 quota_ram=-1)
    compute.host()
    with compute.api.write() as connection:
        for id in ("a", "1"):
            connection.execute(insert(flavors).values(id=id, name=f"tiny {id}", vcpus=1, ram=64, created_at=utc_now()))
    compute.id = compute.server(host="kvm1", metadata='{"a": "b"}', tags='["a"]')
    return compute


@pytest.fixture
def asked(cloud, operation):
    """Asks, and keeps what was answered with 5xx."""
    failed = []

    def ask(content=b"", query="", **params):
        path = operation.path
        for name in re.findall(r"\{(\w+)\}", path):
            path = path.replace(f"{{{name}}}", params.get(name, cloud.id if name == "server_id" else UUID))
        answer = cloud.application.handle(Request(operation.method, "/v2.1" + path, query, {
            "x-auth-token": "admin", "openstack-api-version": f"compute {VERSIONS[operation.until]}"}, content,
                                                  "http://cloud"))
        if answer.status >= 500 and answer.status not in (501, 503):  # no host is there
            failed.append((path, query, content[:200], answer.content))

    yield ask
    assert not failed, (len(failed), failed[:5])


def each(operations):
    """Of these."""
    return pytest.mark.parametrize("operation", operations, ids=[f"{one.name}-{one.since}" for one in operations])


@each([one for one in OPERATIONS if one.body is not None])
def test_bodies(cloud, asked, operation):
    for content in dict.fromkeys(map(orjson.dumps, wrong(operation.body.schema(VERSIONS[operation.until])))):
        asked(content)


@each(OPERATIONS)
def test_queries_and_paths(cloud, asked, operation):
    body = b"" if operation.body is None else orjson.dumps(example(operation.body.schema(VERSIONS[operation.until])))
    for name in (*operation.query, "surprise"):
        for word in WORDS:
            asked(body, f"{quote(name)}={quote(word)}")
        asked(body, f"{quote(name)}=%FF%FE&{quote(name)}=1")
    for name in re.findall(r"\{(\w+)\}", operation.path):
        for word in WORDS:
            asked(body, **{name: quote(word, safe="")})
