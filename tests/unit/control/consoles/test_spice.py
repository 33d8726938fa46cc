# SPDX-License-Identifier: GPL-3.0-or-later
"""SPICE through the proxy: a client opens a WebSocket for each channel, and one token is good for those of one session.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import pytest

from magnetar_control.compute.servers import consoles
from tests.support.waiting import eventually

from .sockets import (
    ANYWHERE,
    LIMIT,
    SERIAL,
    SPICE,
    VNC,
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

MAIN, DISPLAY, INPUTS = 1, 2, 3
BODY = {"remote_console": {"protocol": "spice", "type": "spice-html5"}}


@pytest.fixture(autouse=True, scope="module")
def spice(cloud):
    """Servers that start now have SPICE."""
    for kvm in cloud.kvm.values():
        kvm.agent.host.settings = replace(kvm.agent.host.settings, spice=True)


@pytest.fixture
def server(cloud, server):
    """The uuid of a running server whose host has said that there is SPICE."""
    eventually(lambda: cloud.admin.post(f"/v2.1/servers/{server}/remote-consoles", BODY, "2.6").status == 200)
    return server


def link(session=0, channel=MAIN, magic=b"REDQ"):
    """What a client says first on a channel."""
    return struct.pack("<4sIIIIBBIII", magic, 2, 2, 18, session, channel, 0, 0, 0, 18)


def opened(where, *given):
    """A channel that has begun: the fake says again what it hears."""
    made = console(where)
    channel = made.__enter__()
    channel.send(link(*given))
    assert channel.recv(LIMIT) == link(*given)
    return made, channel


@contextlib.contextmanager
def channel(where, *given):
    made, found = opened(where, *given)
    with contextlib.ExitStack() as stack:
        stack.push(made)
        yield found


def test_a_session(cloud, server):
    where = url(cloud, server, SPICE)
    with channel(where) as main, channel(where, 7, DISPLAY) as display, channel(where, 7, INPUTS):
        display.send(b"x" * 100_000)
        there = b""
        while len(there) < 100_000:
            there += display.recv(LIMIT)
        assert there == b"x" * 100_000
        cloud.admin.act(server, "os-stop")
        assert end(main)[0] == end(display)[0] == 1000
    assert refusal(where)[0] == 403
    cloud.admin.settled(server)


def test_the_token_ends_with_the_main_channel(cloud, server):
    where = url(cloud, server, SPICE)
    with channel(where):
        pass
    nothing_open(cloud)
    assert refusal(where)[0] == 403


def test_one_main_channel(cloud, server):
    """Who has read the URL gets no session of it, once it is used, and none of its channels without the number."""
    where = url(cloud, server, SPICE)
    with channel(where) as main:
        for said in (link(), link(0, DISPLAY), link(7, MAIN)):
            with console(where) as other:
                other.send(said)
                assert end(other)[0] == 1008
        main.send(b"still here")
        assert main.recv(LIMIT) == b"still here"


@pytest.mark.parametrize("said", [link(7, DISPLAY), link(0, DISPLAY), link(7), link(magic=b"RFB "), link()[:20], b"",
                                  link().hex()], ids=range(7))
def test_what_is_no_main_channel(cloud, server, said):
    """It uses the token up, and QEMU hears nothing of it."""
    where = url(cloud, server, SPICE)
    with console(where) as main:
        main.send(said)
        assert end(main) == (1008, "this is not how SPICE begins the channel that the URL is good for")
    nothing_open(cloud)
    assert refusal(where)[0] == 403


def test_the_number_of_channels(cloud, server, monkeypatch):
    monkeypatch.setattr(consoles, "CHANNELS", 2)
    where = url(cloud, server, SPICE)
    with channel(where), channel(where, 7, DISPLAY), channel(where, 7, INPUTS):
        assert refusal(where)[0] == 403


def test_channels_that_come_late(cloud, server):
    where = url(cloud, server, SPICE)
    with channel(where) as main:
        expire(cloud, where)
        assert refusal(where)[0] == 403
        main.send(b"still here")
        assert main.recv(LIMIT) == b"still here"


def test_other_kinds(cloud, server):
    """What the token is for counts: a serial line hears no SPICE that it could mistake, nor does SPICE hear VNC."""
    with console(url(cloud, server, SERIAL)) as line:
        line.send(b"typed")
        assert heard(line, "typed") == "typed"
    with console(url(cloud, server, SPICE)) as main:
        main.send(b"RFB 003.008\n" + bytes(20))
        assert end(main)[0] == 1008
    with console(url(cloud, server, VNC)) as screen:
        assert screen.recv(LIMIT).startswith(b"RFB")


def test_a_live_migration(cloud, server):
    """The same URL is good for one more session."""
    where, host = url(cloud, server, SPICE), host_of(cloud, server)
    with channel(where) as main, channel(where, 7, DISPLAY) as display:
        assert cloud.admin.act(server, "os-migrateLive", ANYWHERE, "2.30").status == 202
        assert cloud.admin.settled(server)["OS-EXT-SRV-ATTR:host"] != host
        code, reason = end(main)
        assert code == 1013 and "load the page again" in reason
        assert end(display)[0] == 1000
    with channel(where), channel(where, 9, DISPLAY):
        pass
    nothing_open(cloud)
    assert refusal(where)[0] == 403


def test_a_token_whose_session_has_begun_leads_nowhere(cloud, server):
    where = url(cloud, server, SPICE)
    asked = f"/v2.1/os-console-auth-tokens/{token_of(where)}"
    assert cloud.admin.get(asked, "2.31").status == 200
    with channel(where):
        assert cloud.admin.get(asked, "2.31").status == 404


def test_pages(cloud):
    get = cloud.admin.get
    for path in ("spice.html", "spice.js", "spice.css", "spice-html5/main.js"):
        assert get(f"/console/{path}").status == 200, path
    assert "blob:" in get("/console/spice.html").headers["content-security-policy"]
    for path in ("spice-html5/", "spice-html5/vnc.html", "spice-html5/../main.js", "spice-html5/thirdparty/../main.js",
                 "spice-html5/.main.js", "spice-html5/other/main.js", "spice_auto.html", "main.js"):
        assert get(f"/console/{path}").status == 404, path


def test_guests_that_began_before(cloud, server):
    """Their host has SPICE, they do not: the page learns it, and the token is not used up."""
    host = cloud.kvm[host_of(cloud, server)]
    where = url(cloud, server, SPICE)
    domain = host.fake._domains[server]
    live, domain.live = domain.live, domain.live.replace('type="spice"', 'type="other"')
    status, words = refusal(where)
    assert status == 409 and "the server and start it again" in words
    domain.live = live
    with channel(where):
        pass
