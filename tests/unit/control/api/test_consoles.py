# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens of consoles: what they are good for, and until when. Requests: tests/cases/api/consoles.yml."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import func, select, update

from magnetar_control.compute.servers import consoles
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import console_tokens
from magnetar_control.store.servers import consoles as store
from magnetar_control.store.servers import servers
from magnetar_core.errors import Forbidden

from .compute import Compute

SERIAL = {"remote_console": {"protocol": "serial", "type": "serial"}}


def opened(compute, id, who="alice", body=SERIAL):
    """A new token."""
    reply = getattr(compute, who).post(f"/servers/{id}/remote-consoles", body, "2.6")
    assert reply.status == 200, reply
    url = urlsplit(reply.json["remote_console"]["url"])
    return parse_qs(parse_qs(url.query)["path"][0].partition("?")[2] if "path" in url.query else url.query)["token"][0]


def refused(compute, token):
    """Whether the token is good for nothing."""
    with pytest.raises(Forbidden) as error:
        consoles.resolve_console_token(compute.cloud, token)
    assert error.value.message == consoles.REFUSED
    return True


@pytest.fixture
def server(compute):
    compute.host()
    compute.host("kvm2")
    return compute.server(host="kvm1")


def test_a_token_is_good_once(compute, server):
    token = opened(compute, server)
    with compute.cell.read() as connection:
        assert token not in str(connection.execute(select(console_tokens)).all())
    first, second = (consoles.resolve_console_token(compute.cloud, token) for _who in range(2))
    assert (first.server.id, first.host.name, first.kind) == (server, "kvm1", "serial")
    assert (first.token.project_id, first.token.user_id) == ("red", "alice")
    consoles.use_console_token(first)
    with pytest.raises(Forbidden):
        consoles.use_console_token(second)
    assert refused(compute, token)


def test_a_token_of_another_server(compute, server):
    other = compute.server(host="kvm1")
    token = opened(compute, server)
    assert refused(compute, f"{other}.{token.partition('.')[2]}")
    assert refused(compute, token[:-1] + ("a" if token[-1] != "a" else "b"))
    assert refused(compute, "") and refused(compute, server) and refused(compute, f"{server}.")


def test_an_expired_token(compute, server):
    token = opened(compute, server)
    with compute.cell.write() as connection:
        connection.execute(update(console_tokens).values(expires_at=compute.cell.clock(-1)))
    assert refused(compute, token)
    assert compute.admin.get(f"/os-console-auth-tokens/{token}", "2.31").status == 404
    opened(compute, server)
    with compute.cell.read() as connection:  # it goes with the next one
        assert connection.execute(select(func.count()).select_from(console_tokens)).scalar() == 1


@pytest.mark.parametrize("values", [{"host": "kvm2"}, {"deleted_at": "2026-01-01T00:00:00.000000"},
                                    {"vm_state": "stopped"}, {"host": None}])
def test_a_token_of_a_server_that_has_gone(compute, server, values):
    token = opened(compute, server)
    with compute.cell.write() as connection:
        servers.update_server_row(connection, server, **values)
    assert refused(compute, token)


def test_a_token_ends_with_a_move_also_when_the_server_comes_back(compute, server):
    token = opened(compute, server)
    with compute.cell.write() as connection:
        store.remove_console_tokens(connection, server)
    assert refused(compute, token)


@pytest.mark.parametrize("change", [servers.update_server_row, servers.update_server_progress,
                                    servers.update_progress_returning])
@pytest.mark.parametrize("state", ["stopped", "suspended", "shelved", "shelved_offloaded", "deleted"])
def test_a_token_ends_with_the_run_of_its_server(compute, server, change, state):
    """It is not good for the next one."""
    token, kept = opened(compute, server), opened(compute, compute.server(host="kvm1"))
    with compute.cell.write() as connection:
        change(connection, server, vm_state="paused")
    consoles.resolve_console_token(compute.cloud, token)
    with compute.cell.write() as connection:
        change(connection, server, vm_state=state)
        change(connection, server, vm_state="active")
    assert refused(compute, token)
    consoles.resolve_console_token(compute.cloud, kept)


def test_a_token_that_is_good_again_is_so_for_a_moment(compute, server):
    """After a live migration: at the new host, once."""
    token = opened(compute, server)
    grant = consoles.resolve_console_token(compute.cloud, token)
    consoles.use_console_token(grant)
    with compute.cell.write() as connection:
        servers.update_server_row(connection, server, host="kvm2")
    consoles.renew_console_token(compute.cloud, grant, compute.cloud.hosts.get("kvm2"))
    with compute.cell.read() as connection:
        assert connection.execute(select(console_tokens.c.expires_at)).scalar() < utc_now(consoles.AGAIN + 5)
    again = consoles.resolve_console_token(compute.cloud, token)
    assert again.host.name == "kvm2"
    consoles.use_console_token(again)
    assert refused(compute, token)


def test_a_flood_of_tokens(compute, server):
    """Of each server there are some; the oldest go."""
    tokens = [opened(compute, server) for _one in range(store.OF_SERVER + 3)]
    other = opened(compute, compute.server(host="kvm2"))
    assert all(refused(compute, token) for token in tokens[:3])
    for token in (*tokens[3:], other):
        consoles.resolve_console_token(compute.cloud, token)


def test_where_a_token_leads(compute, server):
    token = opened(compute, server)
    found = {"instance_uuid": server, "host": "kvm1.example", "port": 6553,
             "internal_access_path": server}
    assert compute.admin.get(f"/os-console-auth-tokens/{token}", "2.31").json == {"console": found}
    since = compute.admin.get(f"/os-console-auth-tokens/{token}", "2.99")
    assert since.json == {"console": {**found, "tls_port": 6553}}
    assert compute.admin.get(f"/os-console-auth-tokens/{token}", "2.30").status == 401
    assert compute.admin.get(f"/os-console-auth-tokens/{token}?x=1", "2.99").status == 400
    assert compute.alice.get(f"/os-console-auth-tokens/{token}", "2.31").status == 403
    consoles.resolve_console_token(compute.cloud, token)  # looking does not use it up


def test_the_page_of_novnc(sqlite_three, small, tmp_path):
    small.host()
    id = small.server(host="kvm1")
    (tmp_path / "novnc").mkdir()
    (tmp_path / "novnc/vnc.html").touch()
    cloud = Compute(sqlite_three, tmp_path, novnc_dir=str(tmp_path / "novnc"),
                    console_url="https://consoles.example/below/console")
    url = cloud.alice.post(f"/servers/{id}/action", {"os-getVNCConsole": {"type": "novnc"}}).json["console"]["url"]
    parts = urlsplit(url)
    assert (parts.netloc, parts.path) == ("consoles.example", "/below/console/vnc.html")
    query = parse_qs(parts.query)
    assert query["autoconnect"] == ["true"]
    path, _mark, asked = query["path"][0].partition("?")
    assert path == "below/console/socket"
    assert consoles.resolve_console_token(cloud.cloud, parse_qs(asked)["token"][0]).kind == "vnc"
    assert url.endswith(asked.replace("=", "%3D"))  # who adds to the URL, as dashboards do, adds a parameter of its own


def test_spice(sqlite_three, small, tmp_path):
    """Where the client is installed and the server's host has SPICE; by the action before 2.6, too."""
    small.host("kvm1")
    small.host("kvm2", consoles=["serial", "spice", "vnc"])
    ids = {name: small.server(host=name) for name in ("kvm1", "kvm2")}
    (tmp_path / "spice").mkdir()
    (tmp_path / "spice/main.js").touch()
    cloud = Compute(sqlite_three, tmp_path)
    body = {"remote_console": {"protocol": "spice", "type": "spice-html5"}}
    refusal = cloud.alice.post(f"/servers/{ids['kvm1']}/remote-consoles", body, "2.6")
    assert refusal.status == 400 and "at its host have no SPICE" in str(refusal.json)
    made = cloud.alice.post(f"/servers/{ids['kvm2']}/remote-consoles", body, "2.6").json["remote_console"]
    old = cloud.alice.post(f"/servers/{ids['kvm2']}/action", {"os-getSPICEConsole": {"type": "spice-html5"}})
    assert (made["protocol"], made["type"], old.json["console"]["type"]) == ("spice", "spice-html5", "spice-html5")
    for url in (made["url"], old.json["console"]["url"]):
        assert urlsplit(url).path == "/console/spice.html"
        path, _mark, asked = parse_qs(urlsplit(url).query)["path"][0].partition("?")
        assert path == "console/socket"
        assert consoles.resolve_console_token(cloud.cloud, parse_qs(asked)["token"][0]).kind == "spice"


def test_channels_of_spice(compute, server):
    """The first use is the main channel's; so many follow it, in a moment; then it is good for nothing."""
    token = opened(compute, server)
    with compute.cell.write() as connection:
        connection.execute(update(console_tokens).values(type="spice-html5"))
    first, second = (consoles.resolve_console_token(compute.cloud, token) for _who in range(2))
    assert not first.further
    consoles.use_console_token(first)
    with pytest.raises(Forbidden):
        consoles.use_console_token(second)
    for _channel in range(consoles.CHANNELS):
        grant = consoles.resolve_console_token(compute.cloud, token)
        assert grant.further
        consoles.use_console_token(grant)
    with pytest.raises(Forbidden):
        consoles.use_console_token(consoles.resolve_console_token(compute.cloud, token))
    consoles.revoke_console_token(first)
    assert refused(compute, token)
