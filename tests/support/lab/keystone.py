# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's Keystone (package python3-keystone) on loopback, with SQLite in a temporary folder. It changes nothing on
the machine: the package has the code and the commands, but no service and no configuration.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.support.lab.agent import eventually
from tests.support.ports import free_port

PYTHON, MANAGE, SERVE = "/usr/bin/python3", "/usr/bin/keystone-manage", "/usr/bin/keystone-wsgi-public"
#: User and group of the processes when the tests run as root.
USER, GROUP = "nobody", "nogroup"
PASSWORD = "of-the-lab"
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
#: In WAL mode readers do not block writers: Keystone has both at the same time.
DATABASE = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode = WAL')"
#: Passwords are hashed fast. Its only process has a cache of its own, from which it takes what is revoked.
CONFIG = """\
[database]
connection = sqlite:///{folder}/keystone.db
[fernet_tokens]
key_repository = {folder}/keys
[fernet_receipts]
key_repository = {folder}/keys
[cache]
backend = dogpile.cache.memory
[identity]
password_hash_rounds = 4
"""


def asked(method: str, url: str, token: str = "", body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Send a request, and return status, headers and document of the answer."""
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    request = urllib.request.Request(url, content, {
        "Content-Type": kind, **({"X-Auth-Token": token} if token else {}),
        **{name.replace("_", "-"): value for name, value in headers.items()}}, method=method)
    try:
        with OPEN(request, timeout=60) as answer:
            return answer.status, answer.headers, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


class LabKeystone:
    """A running Keystone; a context manager. ``url`` is its address (with /v3), ``admin`` a token of its administrator.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v3"
        self.folder = Path(tempfile.mkdtemp(prefix="keystone-"))
        self.log, self.config = self.folder / "keystone.log", self.folder / "keystone.conf"
        self.process: subprocess.Popen[bytes] | None = None
        self.admin = ""
        #: User ids by name.
        self.users: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._set_up()
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [PYTHON, SERVE, "--host", "127.0.0.1", "--port", str(self.port), "--", "--config-file",
                     str(self.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user())
            eventually(self.answers, "Keystone answers")
            self.admin = self.login("admin", PASSWORD, "admin")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(120)
        shutil.rmtree(self.folder)

    def _as_user(self) -> dict[str, Any]:
        """Return arguments of subprocess with which its processes run: without environment of the checkout, and not as
        root.
        """
        user = {"user": USER, "group": GROUP, "extra_groups": []} if os.geteuid() == 0 else {}
        return {"cwd": self.folder, "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
                **user}

    def _set_up(self) -> None:
        """Create the tables, the keys, and the first administrator."""
        assert Path(MANAGE).exists(), "python3-keystone is not installed: it is in bindep.txt, profile lab"
        self.config.write_text(CONFIG.format(folder=self.folder))
        (self.folder / "keys").mkdir(mode=0o700)
        if os.geteuid() == 0:
            for path in (self.folder, self.folder / "keys"):
                shutil.chown(path, USER, GROUP)
        manage = [PYTHON, MANAGE, "--config-file", str(self.config)]
        for words in ([PYTHON, "-c", DATABASE, str(self.folder / "keystone.db")], [*manage, "db_sync"],
                      [*manage, "fernet_setup"],
                      [*manage, "bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", "RegionOne",
                       "--bootstrap-public-url", self.url]):
            done = subprocess.run(words, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  **self._as_user())
            assert done.returncode == 0, f"{words}:\n{done.stdout[-4000:]}"

    def answers(self) -> bool:
        """Return whether Keystone answers."""
        assert self.process is not None
        assert self.process.poll() is None, f"it ended:\n{self.log.read_text()[-4000:]}"
        try:
            return asked("GET", self.url)[0] == 200
        except OSError:
            return False

    def login(self, user: str, password: str, project: str) -> str:
        """Return a token of the user for the project."""
        domain = {"id": "default"}
        status, headers, body = asked("POST", f"{self.url}/auth/tokens", body={"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": user, "domain": domain, "password": password}}},
            "scope": {"project": {"name": project, "domain": domain}}}})
        assert status == 201, body
        return str(headers["X-Subject-Token"])

    def make(self, noun: str, **fields: Any) -> str:
        """Create a user, project, service or endpoint, and return its id."""
        status, _headers, body = asked("POST", f"{self.url}/{noun}s", self.admin, {noun: fields})
        assert status == 201, body
        return str(body[noun]["id"])

    def member(self, name: str, project: str, role: str = "member") -> None:
        """Create a user with *role* in a new project, with the password of the lab."""
        user = self.users[name] = self.make("user", name=name, password=PASSWORD)
        found = asked("GET", f"{self.url}/roles?name={role}", self.admin)[2]["roles"][0]["id"]
        path = f"projects/{self.make('project', name=project)}/users/{user}/roles/{found}"
        assert asked("PUT", f"{self.url}/{path}", self.admin)[0] == 204

    def offer(self, kind: str, url: str) -> None:
        """Add a service with an endpoint to the catalogue."""
        self.make("endpoint", interface="public", url=url, region_id="RegionOne",
                  service_id=self.make("service", type=kind, name=kind))
