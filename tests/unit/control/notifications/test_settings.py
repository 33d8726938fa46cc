# SPDX-License-Identifier: GPL-3.0-or-later
"""Which receivers the settings may name, and what they are sent."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.notifications.receivers import NotSent, receivers_of
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import InvalidSettings

from .receiving import receiving


@pytest.mark.parametrize("url", [
    "https://eda.example:5000/x", "http://127.0.0.1:5000", "http://[::1]:5000/", "http://localhost:5000/"])
def test_https_and_loopback_are_taken(url: str) -> None:
    assert list(receivers_of(make_settings({"notification_urls": {"eda": url}}))) == ["eda"]


@pytest.mark.parametrize(("settings", "words"), [
    ({"notification_urls": {"eda": "http://eda.example/"}}, "'eda' must be https"),
    ({"notification_urls": {"eda": "ftp://eda.example/"}}, "http or https URL"),
    ({"notification_urls": {"eda": "https:///x"}}, "http or https URL"),
    *(({"notification_urls": {"eda": url}}, "ASCII without blanks") for url in (
        "https://eda.example/größe", "https://eda.example/a b", "https://eda.example:0/")),
    ({"notification_urls": {"eda": "https://a:b@eda.example/"}}, "without user and password"),
    ({"notification_urls": {"log": "https://eda.example/"}}, "no name of a receiver"),
    ({"notification_token_files": {"eda": "/nowhere"}}, "there is no 'eda'"),
    ({"notification_urls": {"eda": "https://eda.example/"}, "notification_token_files": {"eda": "/nowhere"}},
     "cannot be read"),
    ({"notification_urls": {"eda": "https://eda.example/"}, "notification_ca_cert": "/nowhere"}, "cannot be used"),
    ({"notification_log": "here"}, "absolute path")])
def test_others_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        receivers_of(make_settings(settings))


def test_http_may_leave_the_machine_where_the_settings_say_so_and_never_with_a_token(tmp_path: Path) -> None:
    given = {"notification_urls": {"eda": "http://eda.example/"}, "notification_allow_http": True}
    assert list(receivers_of(make_settings(given))) == ["eda"]
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    with pytest.raises(InvalidSettings, match="since it is sent a token"):
        receivers_of(make_settings({**given, "notification_token_files": {"eda": str(token)}}))


def test_a_token_is_in_a_file_for_the_service_alone_and_read_anew_each_time(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o644)
    with receiving() as receiver:
        given = {"notification_urls": {"eda": receiver.url}, "notification_token_files": {"eda": str(token)}}
        with pytest.raises(InvalidSettings, match="open to everybody"):
            receivers_of(make_settings(given))
        token.chmod(0o600)
        found = receivers_of(make_settings(given))["eda"]
        found.send("{}")
        token.write_text("other\n")
        found.send("{}")
        assert [headers["authorization"] for _path, headers in receiver.asked] == ["Bearer s3cret", "Bearer other"]
    assert "s3cret" not in repr(found)
    token.unlink()
    with pytest.raises(NotSent, match="the file with its token, .* cannot be read"):
        found.send("{}")


@pytest.mark.parametrize("rest", [
    b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", b"Transfer-Encoding: chunked\r\n\r\n",
    b"Content-Length: 10\r\n\r\nab"])
def test_what_comes_after_an_answers_status_changes_nothing(rest: bytes) -> None:
    """Nonsense, or less than was announced: the receiver has it, and is not sent it again."""
    def answer() -> None:
        connection, _address = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + rest)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        receivers_of(make_settings({"notification_urls": {"eda": url}}))["eda"].send("{}")
        thread.join()


def test_the_services_log_has_notifications_whatever_its_level_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    caplog.handler.setLevel(logging.NOTSET)  # the level of the service is that of its loggers
    receivers_of(make_settings({"notification_log": "-"}))["log"].send('{"event_type": "instance.update"}')
    assert [one.getMessage() for one in caplog.records] == ["instance.update"]


def test_half_a_line_of_a_full_disk_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "notifications.jsonl"
    log = receivers_of(make_settings({"notification_log": str(path)}))["log"]
    path.write_text('{"event_type": "inst')
    log.send('{"event_type": "instance.update"}')
    log.send('{"event_type": "instance.lock"}')
    assert path.read_text().splitlines()[1:] == ['{"event_type": "instance.update"}', '{"event_type": "instance.lock"}']
