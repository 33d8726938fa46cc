# SPDX-License-Identifier: GPL-3.0-or-later
"""What every operation refuses, and how: driven by the operations themselves."""

import orjson
import pytest

from magnetar_control.api.nova import removed
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.web import Request
from magnetar_core.actions import ACTIONS

pytestmark = pytest.mark.slow

UUID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
#: Good bodies of what changes servers: operation to (version, body).
BODIES = {
    "servers.create": (1, {"server": {"name": "a", "flavorRef": "1", "imageRef": UUID}}),
    "servers.update": (1, {"server": {"name": "a"}}),
    "servers.delete": (1, None),
    "servers.action.reboot": (1, {"reboot": {"type": "SOFT"}}),
    "servers.action.resize": (1, {"resize": {"flavorRef": "2"}}),
    "servers.action.rebuild": (1, {"rebuild": {"imageRef": UUID}}),
    "servers.action.rescue": (1, {"rescue": None}),
    "servers.action.evacuate": (1, {"evacuate": {"onSharedStorage": False}}),
    "servers.action.createImage": (1, {"createImage": {"name": "a"}}),
    "servers.action.changePassword": (1, {"changePassword": {"adminPass": "x"}}),
    "servers.action.os-getConsoleOutput": (1, {"os-getConsoleOutput": {}}),
    "servers.action.os-resetState": (1, {"os-resetState": {"state": "active"}}),
    "servers.action.createBackup": (1, {"createBackup": {"name": "a", "backup_type": "daily", "rotation": 1}}),
    "servers.action.os-migrateLive": (30, {"os-migrateLive": {"host": None, "block_migration": "auto"}}),
    "servers.action.trigger_crash_dump": (17, {"trigger_crash_dump": None}),
    **{f"servers.action.{name}": (1, {name: None}) for name in (
        "os-start", "os-stop", "pause", "unpause", "suspend", "resume", "unrescue", "confirmResize", "revertResize",
        "shelve", "shelveOffload", "unshelve", "migrate", "lock", "unlock", "forceDelete", "restore")},
}
WRITES = [one for one in OPERATIONS if one.name in BODIES]
WITH_BODY = [one for one in OPERATIONS if one.body is not None]
#: What may be asked for with an empty object, or with nothing.
EMPTY = {"servers.os-interface.create": (b"{}",), "os-floating-ips.create": (b"{}", b"null")}
OF_SERVERS = [one for one in WRITES if one.target == "server"]


def ids(operations):
    return [one.name for one in operations]


def path_of(operation, server=UUID):
    path = operation.path.replace("{server_id}", server)
    while "{" in path:
        path = path[:path.index("{")] + UUID + path[path.index("}") + 1:]
    return path


def send(small, operation, content, version=None, token="admin", server=UUID):
    headers = {"x-auth-token": token, "openstack-api-version": f"compute 2.{version or operation.since}"}
    body = content if isinstance(content, bytes) else b"" if content is None else orjson.dumps(content)
    return small.application.handle(Request(operation.method, "/v2.1" + path_of(operation, server), "", headers, body,
                                            "http://cloud"))


def fault(answer):
    (name, inner), = answer.content.items()
    return name, inner["message"]


def test_names_are_operations_of_the_table_and_unique_where_versions_overlap():
    every = (*OPERATIONS, *removed.OPERATIONS)
    for at, one in enumerate(every):
        for other in every[at + 1:]:
            same = (one.method, one.path, one.action) == (other.method, other.path, other.action)
            assert not same or one.until < other.since or other.until < one.since, (one.name, other.name)
        assert one.key is None or one.key in ACTIONS


@pytest.mark.parametrize("operation", OPERATIONS, ids=ids(OPERATIONS))
def test_nobody_gets_in_without_a_token(small, operation):
    body = {operation.action: None} if operation.action else {}
    answer = send(small, operation, body, token="stranger")
    assert answer.status == 401
    assert "Keystone" in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize("operation", WITH_BODY, ids=ids(WITH_BODY))
@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[]", b"null", b'"text"', b"{}", b'{"a": NaN}'])
def test_bad_json_is_400(small, operation, content):
    if content in EMPTY.get(operation.name, ()):
        return
    answer = send(small, operation, content)
    assert answer.status == 400, answer.content
    assert fault(answer)[0] == "badRequest"


@pytest.mark.parametrize("operation", WITH_BODY, ids=ids(WITH_BODY))
def test_another_media_type_is_415(small, operation):
    headers = {"x-auth-token": "admin", "content-type": "text/xml",
               "openstack-api-version": f"compute 2.{operation.since}"}
    answer = small.application.handle(Request(operation.method, "/v2.1" + path_of(operation), "", headers, b"<a/>",
                                              "http://cloud"))
    assert answer.status == 415


@pytest.mark.parametrize("name", [name for name in BODIES if BODIES[name][1]])
def test_an_unknown_key_is_400_and_named(small, name):
    operation = next(one for one in OPERATIONS if one.name == name)
    version, body = BODIES[name]
    answer = send(small, operation, {**body, "surprise": 1}, version)
    assert answer.status == 400
    key = next(iter(body))
    if isinstance(body[key], dict):
        answer = send(small, operation, {key: {**body[key], "surprise": 1}}, version)
        assert answer.status == 400 and "surprise" in fault(answer)[1]


@pytest.mark.parametrize("operation", OF_SERVERS, ids=ids(OF_SERVERS))
def test_another_projects_server_is_not_there(small, operation):
    version, body = BODIES[operation.name]
    id = small.server(project="red")
    for server in (id, UUID, "short"):
        answer = send(small, operation, body, version, token="bob", server=server)
        assert answer.status == 404, (server, answer.content)


@pytest.mark.parametrize("operation", WRITES, ids=ids(WRITES))
def test_a_reader_changes_nothing(small, operation):
    version, body = BODIES[operation.name]
    id = small.server(project="red")
    answer = send(small, operation, body, version, token="rita", server=id)
    assert answer.status == 403, answer.content
    assert operation.policy in fault(answer)[1]


GUARDED = [one for one in OF_SERVERS if one.key and ACTIONS[one.key].states != ("*",)]


@pytest.mark.parametrize("operation", GUARDED, ids=ids(GUARDED))
def test_a_wrong_state_is_409_and_named(small, operation):
    version, body = BODIES[operation.name]
    states = {"active", "stopped", "paused", "suspended", "rescued", "resized", "error", "shelved", "soft-delete"}
    for state in sorted(states - set(ACTIONS[operation.key].states)):
        answer = send(small, operation, body, version, server=small.server(project="red", vm_state=state))
        assert answer.status == 409 and state in fault(answer)[1], (state, answer.content)


BUSY = [one for one in OF_SERVERS if one.key and not ACTIONS[one.key].busy]


@pytest.mark.parametrize("operation", BUSY, ids=ids(BUSY))
def test_what_is_busy_is_409_and_the_task_is_named(small, operation):
    version, body = BODIES[operation.name]
    id = small.server(project="red", vm_state=ACTIONS[operation.key].states[0], task_state="rebooting")
    answer = send(small, operation, body, version, server=id)
    assert answer.status == 409 and "rebooting" in fault(answer)[1]


PLACED = [one for one in OF_SERVERS if one.key and ACTIONS[one.key].placed]


@pytest.mark.parametrize("operation", PLACED, ids=ids(PLACED))
@pytest.mark.parametrize("cell", ["cell0", "cell1"])
def test_a_server_without_a_host_is_409(small, operation, cell):
    version, body = BODIES[operation.name]
    states = ACTIONS[operation.key].states
    state = "error" if "error" in states else states[0].replace("*", "active")
    id = small.server(project="red", vm_state=state, cell=cell)
    answer = send(small, operation, body, version, server=id)
    assert answer.status == 409 and "has no host" in fault(answer)[1], answer.content


LOCKED = [one for one in OF_SERVERS if one.key and ACTIONS[one.key].locked]


@pytest.mark.parametrize("operation", LOCKED, ids=ids(LOCKED))
def test_a_lock_keeps_everybody_but_admins(small, operation):
    version, body = BODIES[operation.name]
    id = small.server(project="red", vm_state=(ACTIONS[operation.key].states[0]).replace("*", "active"),
                      locked_by="admin")
    answer = send(small, operation, body, version, token="alice", server=id)
    assert answer.status in (403, 409), answer.content
    assert answer.status == 403 or "locked" in fault(answer)[1]


@pytest.mark.parametrize(("path", "method", "status"), [
    ("/v2.1/nothing", "GET", 404), ("/v2.1/servers", "PATCH", 405), ("/v2.1/servers/%00", "GET", 400),
    ("/v2.1/servers/detail/more/x", "GET", 404)])
def test_paths(small, path, method, status):
    answer = small.application.handle(Request(method, path, "", {"x-auth-token": "admin"}, b"{}", "http://cloud"))
    assert answer.status == status


@pytest.mark.parametrize("body", [{}, {"a": 1, "b": 2}, {"fly": None}, [], "pause"])
def test_actions_that_do_not_exist(small, body):
    answer = small.alice.post(f"/servers/{small.server(project='red')}/action", body)
    assert answer.status == 400


@pytest.mark.parametrize(("field", "value"), [
    ("name", ""), ("name", "x" * 256), ("name", " a"), ("name", "a\x00"), ("name", 1), ("flavorRef", None),
    ("imageRef", "no-uuid"), ("min_count", 0), ("max_count", -1), ("metadata", {"k" * 256: "v"}),
    ("metadata", {"k": "v" * 256}), ("metadata", {"": "v"}), ("accessIPv4", "1.2.3"), ("accessIPv4", ""),
    ("accessIPv4", "fd00::1"), ("accessIPv6", ""), ("accessIPv6", "10.0.0.1"), ("user_data", "not base64!"),
    ("OS-DCF:diskConfig", "auto"), ("config_drive", "maybe"), ("security_groups", [{"id": 1}]),
    ("availability_zone", "x" * 256), ("key_name", ""), ("networks", "auto"), ("block_device_mapping_v2", [1])])
def test_fields_of_a_new_server(small, field, value):
    body = {"server": {"name": "a", "flavorRef": "1", "imageRef": UUID, field: value}}
    answer = small.alice.post("/servers", body)
    assert answer.status == 400, answer
    assert field.split(":")[-1] in answer.message or "NUL" in answer.message
    assert field != "imageRef" or "must be '' or a uuid" in answer.message


@pytest.mark.parametrize(("query", "version", "status"), [
    ("limit=-1", 1, 400), ("limit=x", 1, 400), ("marker=none", 1, 400), ("changes-since=yesterday", 1, 400),
    ("sort_dir=up&sort_key=uuid", 1, 400), ("sort_key=nothing", 1, 400), ("status=FLYING", 38, 400),
    ("status=FLYING", 37, 200), ("surprise=1", 74, 200), ("surprise=1", 75, 400), ("name=%00", 1, 400),
    ("name=(", 1, 400), ("limit=0", 1, 200), ("all_tenants=1", 1, 403), ("tags=a,b", 25, 200), ("tags=a,b", 26, 200)])
def test_queries_of_lists(small, query, version, status):
    for path in ("/servers", "/servers/detail"):
        assert small.alice.get(f"{path}?{query}", f"2.{version}").status == status


def test_what_the_page_of_coverage_says_of_what_is_not_served(small):
    id = small.server()
    reply = small.admin.post(f"/servers/{id}/action", {"paint": {}})
    assert reply.status == 400 and "no such action" in reply.message
    assert small.admin.post(f"/servers/{id}/action", {"resetNetwork": {}}).status == 410
    assert small.admin.get(f"/servers/{id}/colours", "2.78").status == 404
    assert small.admin.call("PATCH", f"/servers/{id}").status == 405
