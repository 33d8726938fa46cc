# SPDX-License-Identifier: GPL-3.0-or-later
"""The proxy between browsers and agents: who is let in, what goes through, and when it ends. SPICE: test_spice.py."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed

from magnetar_agent.fake.consoles import GREETING
from magnetar_control.api.console import proxy
from magnetar_control.api.console.sites import ConsoleSites
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import HypervisorError
from tests.support.agent.pair import Held
from tests.support.control.cloud import Caller

from .sockets import (
    ANYWHERE,
    LIMIT,
    VNC,
    application,
    console,
    end,
    expire,
    heard,
    host_of,
    nothing_open,
    refusal,
    token_of,
    url,
)


def test_both_kinds(cloud, server):
    with console(url(cloud, server, VNC)) as screen, console(url(cloud, server)) as line:
        assert screen.subprotocol == "binary"
        assert screen.recv(LIMIT) == GREETING
        screen.send(b"x" * 200_000)
        there = b""
        while len(there) < 200_000:
            there += screen.recv(LIMIT)
        assert there == b"x" * 200_000
        line.send(b"typed\r")
        assert heard(line, "typed") == "typed\r"
        line.send("break")
        assert "[break]" in heard(line, "break")
        assert application(cloud).proxy.count() == 2
        with console(url(cloud, server)) as other:
            assert "somebody else types" in heard(other, "somebody else .*\n")
        assert "magnetar_consoles 2.0" in cloud.admin.get("/metrics").content.decode()


def test_a_token_twice(cloud, server):
    where = url(cloud, server)
    with console(where):
        status, words = refusal(where)
        assert status == 403 and "Ask for a new one" in words
    assert refusal(where)[0] == 403
    assert refusal(where.partition("?")[0])[0] == 403
    assert refusal(where.replace("/console/socket", "/console/other"))[0] == 404
    assert refusal(where.replace("/console/socket", "/v2.1/servers"))[0] == 404


def test_an_expired_token(cloud, server):
    where, kept = url(cloud, server), url(cloud, server)
    expire(cloud, where)
    status, words = refusal(where)
    assert status == 403 and "has expired" in words
    with console(kept):
        pass


def test_a_token_of_another_server(cloud, server):
    other = cloud.admin.boot(flavorRef="small")["id"]
    where = url(cloud, server)
    assert refusal(where.replace(server, other)) == refusal(where + "x") == refusal(where.replace(server, "x"))
    assert refusal(where.replace(server, other))[0] == 403
    with console(where):  # it was not used up
        pass
    cloud.admin.delete(f"/v2.1/servers/{other}")
    cloud.admin.settled(other)


def test_a_token_of_another_kind(cloud, server):
    """It says by itself which kind it is good for; nothing of the request does."""
    with console(url(cloud, server, VNC) + "&type=serial&kind=serial") as screen:
        assert screen.recv(LIMIT) == GREETING
    with console(url(cloud, server) + "&type=novnc&scrollback=9") as line:
        line.send(b"typed")
        assert heard(line, "typed") == "typed"
    where = url(cloud, server, VNC)
    for path in ("/console/socket/serial", "/console/serial", f"/v1/server/{server}/consoles/serial"):
        assert refusal(where.replace("/console/socket", path))[0] == 404
    with console(where) as screen:
        assert screen.recv(LIMIT) == GREETING


def test_two_tokens_at_once(cloud, server):
    """The last one counts, as with the API's other parameters, and the other is not used up."""
    one, other = url(cloud, server), url(cloud, server, VNC)
    with console(f"{one}&token={token_of(other)}") as screen:
        assert screen.recv(LIMIT) == GREETING
    assert refusal(other)[0] == 403
    with console(one):
        pass


@pytest.mark.parametrize("message", [b"x" * ((1 << 20) + 1), "x" * ((1 << 20) + 1)], ids=["bytes", "text"])
def test_a_message_that_is_too_long(cloud, server, message):
    """It ends that console with the code for it, and no other."""
    with console(url(cloud, server, VNC)) as kept, console(url(cloud, server, VNC)) as screen:
        assert kept.recv(LIMIT) == screen.recv(LIMIT) == GREETING
        with contextlib.suppress(ConnectionClosed):  # the other end may close it while this is sent
            screen.send(message)
        assert end(screen)[0] == 1009
        kept.send(b"still here")
        assert kept.recv(LIMIT) == b"still here"


def test_another_host_name(cloud, server, monkeypatch):
    """With the URL of consoles in the settings: a name that leads here since a moment ago (DNS rebinding), whatever
    page it is."""
    here = f"http://127.0.0.1:{cloud.port}"
    monkeypatch.setattr(application(cloud), "sites", ConsoleSites(make_settings({"console_url": f"{here}/console"})))
    where = url(cloud, server)
    for origin in (None, f"http://rebound.example:{cloud.port}", here):
        with socket.create_connection(("127.0.0.1", cloud.port)) as sock:
            status, words = refusal(where.replace("127.0.0.1", "rebound.example"), sock=sock, origin=origin)
        assert status == 403 and "not the address" in words
    with console(where, origin=here):
        pass


def test_a_token_is_in_no_log(cloud, server, caplog):
    caplog.set_level("DEBUG")
    where = url(cloud, server, VNC)
    token = token_of(where)
    cloud.admin.get(f"/console/vnc.html?path=console/socket%3Ftoken%3D{token}")
    for path in ("os-console-auth-tokens/", "os-console%2Dauth-tokens/", "os-console-auth-tokens//"):
        for client in (cloud.admin, Caller(cloud.port)):
            client.get(f"/v2.1/{path}{token}")
    with console(where):
        pass
    assert refusal(where)[0] == 403
    nothing_open(cloud)
    ours = [one for one in caplog.records if not one.name.startswith("websockets.client")]  # which is the test's
    secret = token.partition(".")[2]
    assert ours and not [one for one in ours if secret in str(vars(one)) or secret in one.getMessage()]


def test_pages_of_other_sites(cloud, server):
    """CVE-2015-0259: the page of another site opens a console with a token that it got hold of."""
    where, here = url(cloud, server), f"http://127.0.0.1:{cloud.port}"
    for origin in ("https://elsewhere.example", f"https://127.0.0.1:{cloud.port}", f"http://127.0.0.1:{cloud.port + 1}",
                   "null", "http://[", "http://127.0.0.1"):
        status, words = refusal(where, origin=origin)
        assert status == 403 and "console_allowed_origins" in words, origin
    with console(where, origin=here):
        pass
    with console(url(cloud, server), origin="https://dashboard.example"):
        pass


def test_the_console_ends_with_its_guest(cloud, server):
    where = url(cloud, server)
    with console(url(cloud, server)) as line, console(url(cloud, server, VNC)) as screen:
        cloud.admin.act(server, "os-stop")
        assert "stopped" in end(line)[1]
        assert end(screen)[0] == 1000
    cloud.admin.settled(server)
    assert refusal(where)[0] == 403
    reply = cloud.admin.post(f"/v2.1/servers/{server}/remote-consoles",
                             {"remote_console": {"protocol": "serial", "type": "serial"}}, "2.6")
    assert reply.status == 409


def test_the_console_ends_with_its_server(cloud):
    server = cloud.admin.boot(flavorRef="small")["id"]
    where = url(cloud, server)
    with console(url(cloud, server)) as line:
        cloud.admin.delete(f"/v2.1/servers/{server}")
        assert end(line)[0] == 1000
    assert cloud.admin.settled(server) is None
    assert refusal(where)[0] == 403


def test_a_live_migration(cloud, server):
    """A serial console goes on at the other host; of VNC, the same URL is good once more. Unused tokens end."""
    unused, screens, host = url(cloud, server), url(cloud, server, VNC), host_of(cloud, server)
    with console(url(cloud, server)) as line, console(screens) as screen:
        line.send(b"before")
        heard(line, "before")
        assert cloud.admin.act(server, "os-migrateLive", ANYWHERE, "2.30").status == 202
        assert cloud.admin.settled(server)["OS-EXT-SRV-ATTR:host"] != host
        assert "goes on here" in heard(line, "goes on here.*\n")
        line.send(b"after")
        assert heard(line, "after").endswith("after")
        code, reason = end(screen)
        assert code == 1013 and "load the page again" in reason
        with console(screens) as again:
            assert again.recv(LIMIT) == GREETING
    assert refusal(screens)[0] == 403
    assert refusal(unused)[0] == 403


def test_a_live_migration_that_fails_keeps_the_console(cloud, server):
    host = host_of(cloud, server)
    cloud.kvm[host].fake.fail_next("migrate", HypervisorError("no"))
    with console(url(cloud, server)) as line:
        cloud.admin.act(server, "os-migrateLive", ANYWHERE, "2.30")
        assert cloud.admin.settled(server)["OS-EXT-SRV-ATTR:host"] == host
        line.send(b"here")
        assert heard(line, "here") == "here"


def test_a_console_while_its_server_moves(cloud, server):
    host = host_of(cloud, server)
    held = Held(cloud.kvm[host], "live", 4)
    try:
        with console(url(cloud, server)) as line:
            cloud.admin.act(server, "os-migrateLive", ANYWHERE, "2.30")
            assert held.reached.wait(300)
            line.send(b"still here")
            heard(line, "still here")
            held.on.set()
            cloud.admin.settled(server)
            heard(line, "goes on here")
    finally:
        held.on.set()
        cloud.kvm[host].fake.migrate = held._whole


def test_a_cold_move_ends_tokens(cloud, server):
    where = url(cloud, server)
    assert cloud.admin.act(server, "migrate", None, "2.56").status == 202
    cloud.admin.settled(server)
    cloud.admin.act(server, "revertResize")
    cloud.admin.settled(server)
    assert refusal(where)[0] == 403  # though it is where it was


def test_a_flood_of_one_project(cloud, server):
    """Half of the places is the most of one; others find theirs."""
    alice = cloud.caller("alice", "red")
    mine = alice.boot(flavorRef="small")["id"]
    with contextlib.ExitStack() as opened:
        for _one in range(4):
            opened.enter_context(console(url(cloud, mine, VNC, alice)))
        where = url(cloud, mine, VNC, alice)
        status, words = refusal(where)
        assert status == 429 and "Close one" in words
        with console(url(cloud, server)):
            pass
    nothing_open(cloud)
    with console(where):  # it was not used up
        pass
    alice.delete(f"/v2.1/servers/{mine}")
    alice.settled(mine)


def test_a_flood_of_all(cloud, server):
    """All places are taken: nobody's token is used up by that, and what was open stays so."""
    alice, bob = cloud.caller("alice", "red"), cloud.caller("bob", "blue")
    servers = {one: one.boot(flavorRef="small")["id"] for one in (alice, bob)}
    where = url(cloud, server)
    with contextlib.ExitStack() as opened:
        lines = [opened.enter_context(console(url(cloud, id, VNC, one))) for one, id in servers.items() for _ in "1234"]
        status, words = refusal(where)
        assert status == 503 and "Try again later" in words
        for line in lines:
            assert line.recv(LIMIT) == GREETING
    nothing_open(cloud)
    with console(where):
        pass
    for one, id in servers.items():
        one.delete(f"/v2.1/servers/{id}")
        one.settled(id)


def test_a_flood_without_tokens(cloud, server):
    where = url(cloud, server)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(refusal, [f"{where[:-1]}{'ab'[where[-1] == 'a']}"] * 100))
    assert {status for status, _words in answers} <= {403, 503} and 403 in {status for status, _words in answers}
    with console(where) as line:
        line.send(b"typed")
        assert heard(line, "typed") == "typed"


def test_a_flood_of_handshakes(cloud, server, monkeypatch):
    where = url(cloud, server)
    for name, status in (("MOST_TOKENS", 503), ("OF_ADDRESS", 429)):
        with monkeypatch.context() as patched:
            patched.setattr(proxy, name, 0)
            assert refusal(where)[0] == status
    with console(where):
        pass


def test_a_host_that_does_not_answer(cloud, server):
    where, host = url(cloud, server), host_of(cloud, server)
    cloud.kvm[host].fake.fail_next("open_serial", HypervisorError("QEMU of kvm1 is broken"))
    status, words = refusal(where)
    assert status == 503 and "kvm1" not in words
    with console(where):  # it was not used up
        pass


def test_what_is_not_a_console(cloud):
    get = cloud.admin.get
    page = get("/console/vnc.html")
    assert page.status == 200 and b"noVNC" in page.content
    assert "frame-ancestors 'self' https://dashboard.example" in page.headers["content-security-policy"]
    assert f"ws://127.0.0.1:{cloud.port}" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    framed = cloud.admin.call("GET", "/console/vnc.html?path=x", headers={
        "Sec-Fetch-Dest": "iframe", "Sec-Fetch-Site": "cross-site", "Referer": "https://elsewhere.example/"})
    assert framed.status == 403 and b"console_allowed_origins" in framed.content
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert get("/console/serial.html").status == get("/console/serial.js").status == 200
    for path in ("/console/../control.yml", "/console/app/../vnc.html", "/console/app/%2e%2e/vnc.html", "/console/",
                 "/console/app/ui.js", "/console/app/.hidden.js", "/console/vnc.htm", "/console/utils/x.js"):
        assert get(path).status == 404, path
    assert get("/console/socket").status == 426
    assert cloud.admin.post("/console/vnc.html").status == 405
