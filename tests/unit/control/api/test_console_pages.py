# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may open a console's WebSocket, by Host and Origin; and the script that is made of Debian's xterm.js."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from shutil import which

import pytest

from magnetar_control.api.console import frames, xterm
from magnetar_control.api.console.frames import frame_refusal_page, framing_site
from magnetar_control.api.console.sites import ConsoleSites
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import Forbidden, InvalidSettings

TLS, PLAIN = "https://cloud.example:8774", "http://127.0.0.1:8774"
PUBLIC = {"public_url": TLS}
BESIDE = {"console_url": "https://consoles.example/x/console", "public_url": TLS}
PROXIED = {"trust_proxy": True}
DASHBOARD = {"console_allowed_origins": ["https://dashboard.example"]}


@pytest.mark.parametrize(("settings", "root", "headers", "good"), [
    # No URL in the settings: the page's site is the one that is asked.
    ({}, PLAIN, {"host": "127.0.0.1:8774", "origin": "http://127.0.0.1:8774"}, True),
    ({}, PLAIN, {"host": "127.0.0.1:8774"}, True),  # no browser
    ({}, PLAIN, {"host": "127.0.0.1:8774", "origin": "http://localhost:8774"}, False),
    ({}, PLAIN, {"host": "127.0.0.1:8774", "origin": "http://127.0.0.1:8775"}, False),
    ({}, PLAIN, {"host": "127.0.0.1:8774", "origin": ""}, True),
    ({}, PLAIN, {"host": "127.0.0.1:8774", "origin": "null"}, False),
    ({}, PLAIN, {"host": "127.0.0.1:8774", "origin": "https://[::1"}, False),
    ({}, "http://cloud.example", {"host": "cloud.example", "origin": "http://cloud.example:80"}, True),
    # Over TLS, only a page that came over TLS.
    ({}, TLS, {"host": "cloud.example:8774", "origin": "http://cloud.example:8774"}, False),
    ({}, TLS, {"host": "cloud.example:8774", "origin": TLS}, True),
    # A URL in the settings: another name of the machine, such as one that leads here since a moment ago, is refused.
    (PUBLIC, TLS, {"host": "cloud.example:8774", "origin": TLS}, True),
    (PUBLIC, TLS, {"host": "CLOUD.example:8774", "origin": TLS}, True),
    (PUBLIC, TLS, {"host": "rebound.example:8774", "origin": "https://rebound.example:8774"}, False),
    (PUBLIC, TLS, {"host": "rebound.example:8774"}, False),
    (BESIDE, TLS, {"host": "consoles.example", "origin": "https://consoles.example"}, True),
    (BESIDE, TLS, {"host": "consoles.example:443", "origin": "https://consoles.example"}, True),
    (BESIDE, TLS, {"host": "consoles.example", "origin": "http://consoles.example"}, False),
    # Behind a proxy that says what it was asked for.
    (PROXIED, TLS, {"host": "10.0.0.1:8774", "x-forwarded-host": "cloud.example:8774", "origin": TLS}, True),
    ({}, PLAIN, {"host": "127.0.0.1:8774", "x-forwarded-host": "evil.example", "origin": "http://evil.example"}, False),
    ({**PUBLIC, **PROXIED}, TLS, {"host": "10.0.0.1", "x-forwarded-host": "evil.example", "origin": TLS}, False),
    # Other sites that the settings name.
    (DASHBOARD, TLS, {"host": "cloud.example:8774", "origin": "https://dashboard.example"}, True),
    (DASHBOARD, TLS, {"host": "cloud.example:8774", "origin": "http://dashboard.example"}, False),
    (DASHBOARD, TLS, {"host": "cloud.example:8774", "origin": "https://dashboard.example.evil.example"}, False),
])
def test_who_may_open_a_console(settings, root, headers, good):
    sites = ConsoleSites(make_settings(settings))
    if good:
        sites.check(headers, root)
    else:
        with pytest.raises(Forbidden):
            sites.check(headers, root)


@pytest.mark.parametrize("settings", [
    {"console_url": "consoles.example"}, {"public_url": "ftp://cloud.example"}, {"console_url": "https://a b"},
    {"console_allowed_origins": ["dashboard.example"]}, {"console_allowed_origins": ["null"]},
    {"console_allowed_origins": ["https://*.example"]}, {"console_allowed_origins": ["https://x.example;script-src *"]},
    {"console_allowed_origins": [1]}])
def test_a_setting_that_is_no_site(settings):
    with pytest.raises(InvalidSettings, match=next(iter(settings))):
        ConsoleSites(make_settings(settings))


def test_xterm_of_debian(tmp_path):
    """Its modules require one another, also in circles; what is not there, and what is outside, is left out."""
    files = {"public/Terminal.js": 'var one = require("../Terminal"); exports.Terminal = one.made;',
             "Terminal.js": 'exports.name = "xterm"; var two = require("./common/Parts");'
                            'exports.made = function () { return two.told(); }; require("./Types");',
             "common/Parts.js": 'var back = require("../Terminal");'
                                'exports.told = function () { return back.name + " works"; };',
             "unused.test.js": "throw 1;"}
    for name, text in files.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
    assert xterm.terminal_script(tmp_path / "lib") is None
    found = xterm.terminal_script(tmp_path)
    assert found is not None and b"throw" not in found and str(tmp_path).encode() not in found
    if which("node"):
        (tmp_path / "run.js").write_bytes(b"var window = {};" + found + b"console.log(new window.Terminal().valueOf(),"
                                          b" window.Terminal());")
        done = subprocess.run(["node", tmp_path / "run.js"], check=True, capture_output=True, text=True)
        assert "xterm works" in done.stdout


def test_xterm_of_npm(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "css").mkdir()
    (tmp_path / "lib/xterm.js").write_text("whole")
    (tmp_path / "css/xterm.css").write_text("styles")
    assert (xterm.terminal_script(tmp_path), xterm.terminal_stylesheet(tmp_path)) == (b"whole", b"styles")


@pytest.mark.parametrize(("settings", "headers", "site"), [
    # Horizon in another place, and nothing in the settings.
    ({}, {"sec-fetch-dest": "iframe", "sec-fetch-site": "cross-site", "referer": "https://dashboard.example/x"},
     "https://dashboard.example"),
    ({}, {"sec-fetch-dest": "iframe", "sec-fetch-site": "same-site", "referer": "https://cloud.example/x"},
     "https://cloud.example"),
    ({}, {"sec-fetch-dest": "iframe", "sec-fetch-site": "cross-site", "referer": "http://[::1]:8080/"},
     "http://[::1]:8080"),
    ({}, {"sec-fetch-dest": "iframe", "sec-fetch-site": "cross-site"}, "A page of another site"),
    (DASHBOARD, {"sec-fetch-dest": "embed", "sec-fetch-site": "cross-site", "referer": "https://other.example"},
     "https://other.example"),
    # What may be: named in the settings, our own, no frame, or not known.
    (DASHBOARD, {"sec-fetch-dest": "iframe", "sec-fetch-site": "cross-site", "referer": "https://dashboard.example/"},
     None),
    (DASHBOARD, {"sec-fetch-dest": "iframe", "sec-fetch-site": "cross-site"}, None),
    ({}, {"sec-fetch-dest": "iframe", "sec-fetch-site": "same-origin", "referer": TLS}, None),
    ({}, {"sec-fetch-dest": "document", "sec-fetch-site": "cross-site", "referer": "https://dashboard.example"}, None),
    ({}, {}, None),
    # Over plain HTTP browsers do not tell what they load a page into.
    ({}, {"referer": "http://dashboard.example/x"}, "http://dashboard.example"),
    ({}, {"referer": TLS}, None),
    (DASHBOARD, {"referer": "https://dashboard.example"}, None),
])
def test_who_shows_a_console_in_a_frame(settings, headers, site):
    assert framing_site(ConsoleSites(make_settings(settings)), headers, TLS) == site


def test_the_hint_in_a_frame_says_what_to_do(caplog, monkeypatch):
    monkeypatch.setattr(frames, "_FRAME_LOG", frames.FrameLog())
    answer = frame_refusal_page("https://dashboard.example")
    page = answer.body().decode()
    assert answer.status == 403 and "console_allowed_origins: [https://dashboard.example]" in page
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'" and "<script" not in page
    assert "console_allowed_origins" in caplog.text
    assert "[https://dashboard.example]" in frame_refusal_page("A page of another site").body().decode()


def test_over_plain_http_a_hint_in_no_frame_goes_on_to_the_console(monkeypatch):
    """By a script, the only one that the page may run."""
    monkeypatch.setattr(frames, "_FRAME_LOG", frames.FrameLog())
    answer = frame_refusal_page("http://dashboard.example", in_frame=False)
    (script,) = re.findall("<script>(.*)</script>", answer.body().decode())
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert answer.status == 200 and "window.top === window" in script
    assert answer.headers["Content-Security-Policy"] == f"default-src 'none'; script-src 'sha256-{digest}'"
    assert answer.headers["Referrer-Policy"] == "no-referrer"  # else the hint would come again


def test_frames_of_strangers_do_not_fill_the_log(caplog, monkeypatch):
    """Anybody may ask for a page, and name any site."""
    monkeypatch.setattr(frames, "_FRAME_LOG", frames.FrameLog())
    for number in range(50):
        frame_refusal_page(f"https://site{number}.example")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "https://site0.example shows a console, and is not in console_allowed_origins"]
    monkeypatch.setattr(frames, "WARN_EVERY", 0.0)
    monkeypatch.setattr(frames, "_FRAME_LOG", frames.FrameLog())
    frame_refusal_page("https://later.example")
    assert "https://later.example" in caplog.text
