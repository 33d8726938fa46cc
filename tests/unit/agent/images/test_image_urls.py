# SPDX-License-Identifier: GPL-3.0-or-later
"""Images from URLs: what is loaded, what is refused, and that what is there stays until the other has come whole."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError, TooLarge, Unreachable
from tests.support.agent.crash import lives
from tests.support.agent.image import GOOD, OTHER, digest, file, kept
from tests.unit.agent.conftest import Host


class Web(http.server.BaseHTTPRequestHandler):
    """Answers by path."""

    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", {"/to/good": "/good", "/to/loop": "/to/loop", "/to/file": "file:///etc/passwd",
                                          "/to/ftp": "ftp://127.0.0.1/x"}[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path == "/none":
            self.send_error(404)
            return
        if self.path == "/other":
            self.send_response(200)
            self.send_header("Content-Length", str(len(OTHER)))
            self.end_headers()
            self.wfile.write(OTHER)
            return
        self.send_response(200)
        if self.path != "/endless":
            length = {"/short": len(GOOD) + 5, "/huge": 2**50}.get(self.path, len(GOOD))
            self.send_header("Content-Length", str(length))
        self.end_headers()
        try:
            self.wfile.write(GOOD)
            while self.path == "/endless":
                self.wfile.write(bytes(65536))
        except OSError:
            pass  # the agent has had enough

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["/good", "/to/good"])
def test_a_url_is_taken_in(host: Host, web: str, path: str) -> None:
    want = {"source": {"url": web + path}, "checksum": digest(GOOD)}
    assert host.ensure("image", "img", want).resource["status"] == "active"
    assert not host.ensure("image", "img", want).changed


@pytest.mark.parametrize(("path", "error", "why"), [
    ("/to/loop", InvalidField, "302"), ("/to/file", InvalidField, "not allowed"),
    ("/to/ftp", InvalidField, "http or https"), ("/none", InvalidField, "404"),
    ("/short", (InvalidRequest, Unreachable), "ended after|broke"), ("/huge", TooLarge, "image_max_bytes"),
    ("/endless", TooLarge, "image_max_bytes")])
def test_a_bad_url_leaves_nothing(host: Host, web: str, path: str, error: Any, why: str) -> None:
    object.__setattr__(host.agent.host.settings, "image_max_bytes", 8 * 2**20)
    with pytest.raises(error, match=why):
        host.ensure("image", "img", {"source": {"url": web + path}, "checksum": digest(GOOD)})
    assert kept(host) == [] and host.agent.host.documents.list("image") == []


def test_nobody_answers(host: Host) -> None:
    with pytest.raises(Unreachable, match="cannot be loaded"):
        host.ensure("image", "img", {"source": {"url": "http://127.0.0.1:1/x"}, "checksum": digest(GOOD)})


@pytest.mark.parametrize(("path", "why"), [("/none", "404"), ("/short", "ended after|broke"), ("/good", "checksum")])
def test_a_url_that_cannot_be_loaded_leaves_what_is_there(host: Host, web: str, path: str, why: str) -> None:
    host.ensure("image", "img", file(host))
    bad = {"source": {"url": web + path}, "checksum": digest(OTHER)}
    with pytest.raises(MagnetarError, match=why):
        host.ensure("image", "img", bad, on_immutable="recreate")
    assert len(kept(host)) == 2
    shown = host.ensure("image", "img", file(host)).resource
    assert (shown["status"], shown["checksum"]) == ("active", digest(GOOD))
    host.restart()
    assert not host.ensure("image", "img", file(host)).changed


@pytest.mark.parametrize("name", ["sha256", "sha512"])
def test_content_from_a_url_takes_the_place_of_other(host: Host, web: str, name: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody sweeps between the two."""
    exists = Path.exists

    def swept(self: Path) -> bool:
        if self.suffix == ".ready":
            host.agent.drivers.by_noun["image"].sweep(host.agent.host)
        return exists(self)

    monkeypatch.setattr(Path, "exists", swept)
    host.ensure("image", "img", file(host))
    want = {"source": {"url": web + "/other"}, "checksum": digest(OTHER, name)}
    made = host.ensure("image", "img", want, on_immutable="recreate").resource
    assert (made["status"], made["checksum"], made["virtual_size"]) == ("active", digest(OTHER, name), 2**30)
    assert len(kept(host)) == 2
    assert not host.ensure("image", "img", want).changed


@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
def test_an_image_is_never_without_content_when_the_agent_dies(tmp_path: Path, web: str, late: bool) -> None:
    want = {"source": {"url": web + "/other"}, "checksum": digest(OTHER)}
    for life in lives(tmp_path, late, more_than=3, most=20):
        host = life.host
        host.ensure("image", "img", file(host))
        life.ends_in(host.ensure, "image", "img", want, on_immutable="recreate")
        host.restart()
        shown = host.ensure("image", "img", {}).resource
        assert shown["status"] == "active" and shown["checksum"] in (digest(OTHER), digest(GOOD))
        host.ensure("image", "img", want, on_immutable="recreate")
        assert not host.ensure("image", "img", want).changed and len(kept(host)) == 2
