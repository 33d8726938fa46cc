# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of each embedded service as OpenStack's Python clients read them: the class by the status, and the message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar_control.web import Answer, Fault, Request
from tests.support.control.cloud import Caller, Cloud
from tests.support.openstack_clients import all_clients, logged_in

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(f"ignore::Warning:{name}") for name in (
    "novaclient", "neutronclient", "glanceclient", "cinderclient", "keystoneclient", "openstack"))]

ID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
WHY = "The thing <web1> is not as you think: use another."
STATUSES = (400, 403, 404, 409, 413, 503)
#: What a client reads of an error of Placement: openstacksdk never reads ``errors``, and osc-placement not of 5xx.
WORDLESS = {("/placement", "openstacksdk", status) for status in STATUSES} | {("/placement", "osc-placement", 503)}
#: The prefix of each service, and calls that ask it, by client.
CALLS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("/identity", "keystoneclient", lambda client: client.projects.get(ID)),
    ("/identity", "openstacksdk", lambda client: client.identity.get_project(ID)),
    ("/image", "glanceclient", lambda client: client.images.get(ID)),
    ("/image", "openstacksdk", lambda client: client.image.get_image(ID)),
    ("/image", "novaclient", lambda client: client.glance.find_image(ID)),
    ("/network", "neutronclient", lambda client: client.show_port(ID)),
    ("/network", "openstacksdk", lambda client: client.network.get_port(ID)),
    ("/volume", "cinderclient", lambda client: client.volumes.get(ID)),
    ("/volume", "openstacksdk", lambda client: client.block_storage.get_volume(ID)),
    ("/placement", "osc-placement", lambda client: client.request("GET", f"/resource_providers/{ID}")),
    ("/placement", "openstacksdk", lambda client: client.placement.get_resource_provider(ID)),
    ("", "novaclient", lambda client: client.servers.get(ID)),
    ("", "openstacksdk", lambda client: client.compute.get_server(ID)),
]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=0) as made:
        yield made


@pytest.fixture(scope="module")
def clients(cloud: Cloud) -> Iterator[dict[str, Any]]:
    with logged_in(cloud.port, "admin", cloud.password, "admin") as session:
        session.get_token()
        made = all_clients(session)
        for _prefix, name, call in CALLS:  # whatever they ask first, such as versions
            with pytest.raises(Exception):  # noqa: B017 - each client has its own
                call(made[name])
        yield made


def status_of(error: Any) -> int | None:
    """Return the status that a client's exception tells."""
    for name in ("http_status", "status_code", "code"):
        if isinstance(found := getattr(error, name, None), int):
            return found
    return None


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("prefix, name, call", CALLS, ids=[
    f"{name} {prefix[1:] or 'compute'}" for prefix, name, _call in CALLS])
def test_a_client_reads_status_and_message(cloud: Cloud, clients: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
                                           status: int, prefix: str, name: str, call: Callable[[Any], Any]) -> None:
    application = dict(cloud.server.mounts)[prefix]

    def refuse(request: Request) -> Answer:
        answer: Answer = application.refused(request, Fault(status, WHY))
        return answer

    monkeypatch.setattr(application, "handle", refuse)
    with pytest.raises(Exception) as refused:
        call(clients[name])
    assert type(refused.value).__module__.split(".")[0] not in ("builtins", "json"), refused.getrepr()
    assert status_of(refused.value) == status, refused.getrepr()
    if (prefix, name, status) in WORDLESS:
        return
    read = str(refused.value)
    assert "is not as you think: use another." in read and "{" not in read and "<br" not in read, read


FORMS = {
    "/identity": lambda body: body["error"],
    "/network": lambda body: body["NeutronError"],
    "/volume": lambda body: body["itemNotFound"],
    "/placement": lambda body: {"message": body["errors"][0]["detail"], "code": body["errors"][0]["status"]},
    "/v2.1": lambda body: body["itemNotFound"],
}


@pytest.mark.parametrize("prefix", FORMS)
def test_documents_have_the_form_of_the_service(cloud: Cloud, prefix: str) -> None:
    path = {"/volume": "/volume/v3/volumes", "/network": "/network/v2.0/ports", "/identity": "/identity/v3/projects",
            "/v2.1": "/v2.1/servers", "/placement": "/placement/resource_providers"}[prefix]
    body = FORMS[prefix](cloud.admin.get(f"{path}/{ID}").json)
    assert ID in body["message"] and body.get("code", 404) == 404


@pytest.mark.parametrize("path", ["/network/v2.0/ports", "/volume/v3/volumes", "/v2.1/servers", "/identity/v3/users"])
def test_who_is_not_logged_in_is_told_as_by_keystonemiddleware(cloud: Cloud, path: str) -> None:
    reply = Caller(cloud.port).get(path)
    assert reply.status == 401 and reply.headers["www-authenticate"].startswith("Keystone uri=")
    assert (reply.json["error"]["code"], reply.json["error"]["title"]) == (401, "Unauthorized")


@pytest.mark.parametrize("accept, kind", [
    ("*/*", "text/html"), ("text/html", "text/html"), ("application/json", "application/json"),
    ("application/json, */*;q=0.1", "application/json"), ("application/*", "application/json"),
    ("text/plain", "text/plain"), ("application/octet-stream", "text/plain"),
    ("text/html;q=0, */*", "application/json"), (None, "application/json")])
def test_the_image_service_answers_by_accept_as_webob(cloud: Cloud, accept: str | None, kind: str) -> None:
    reply = cloud.admin.call("GET", f"/image/v2/images/{ID}", headers={"Accept": accept} if accept else {})
    assert reply.status == 404 and reply.headers["content-type"].partition(";")[0] == kind
    text = reply.content.decode()
    assert ID in text and "404 Not Found" in text
    if kind == "application/json":
        assert set(reply.json) == {"code", "title", "message"} and reply.json["title"] == "Not Found"


def test_a_page_escapes_what_a_user_named(cloud: Cloud) -> None:
    reply = cloud.admin.call("GET", "/image/v2/images?sort_key=<b>", headers={"Accept": "*/*"})
    assert reply.status == 400 and b"<b>" not in reply.content and b"&lt;b&gt;" in reply.content
