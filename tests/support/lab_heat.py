# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack Heat next to a cloud on loopback, with PostgreSQL, because its threads write in parallel, which SQLite
refuses, and with trusts, Heat's default.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path
from typing import Any, Self

import psycopg

from tools import postgres

from .environments import python_of
from .ports import free_port
from .waiting import eventually

PROCESS = Path(__file__).with_name("heat_process.py")
CONFIG = """\
[DEFAULT]
transport_url = fake://
auth_encryption_key = {key}
region_name_for_services = RegionOne
log_file = {folder}/heat.log
[database]
connection = postgresql+psycopg2:///heat?host={cluster}&user={owner}
[paste_deploy]
api_paste_config = {paste}
[keystone_authtoken]
auth_type = password
www_authenticate_uri = {url}
auth_url = {url}
username = heat
password = {password}
project_name = service
user_domain_id = default
project_domain_id = default
[trustee]
auth_type = password
auth_url = {url}
username = heat
password = {password}
user_domain_id = default
[clients_keystone]
auth_uri = {url}
"""


class LabHeat:
    """A running Heat that is in the cloud's catalogue; a context manager. *admin*: a caller, the cloud's administrator.
    *cluster*: the folder of a PostgreSQL server without a database heat.
    """

    def __init__(self, admin: Any, folder: Path, cluster: Path) -> None:
        self.admin, self.folder, self.cluster, self.port = admin, folder, cluster, free_port()
        self.password, self.url = secrets.token_hex(16), f"http://127.0.0.1:{admin.port}/identity/v3"
        self.log = folder / "output.log"

    def __enter__(self) -> Self:
        self._add_user()
        with psycopg.connect(host=str(self.cluster), user=postgres.USER, dbname="postgres", autocommit=True) as made:
            made.execute("CREATE DATABASE heat")
        python, config = python_of("heat"), self.folder / "heat.conf"
        config.write_text(CONFIG.format(
            key=secrets.token_hex(16), folder=self.folder, url=self.url, password=self.password,
            cluster=self.cluster, owner=postgres.USER,
            paste=python.parents[1] / "etc/heat/api-paste.ini"))
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        done = subprocess.run([python.with_name("heat-manage"), "--config-file", config, "db_sync"], check=False,
                              text=True, capture_output=True, env=environment, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [python, "-P", PROCESS, str(self.port), "--config-file", config], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env=environment, cwd=self.folder)
        try:
            eventually(self.answers, "Heat answers", passing=(OSError,), pause=0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait()

    def answers(self) -> bool:
        """Return whether Heat answers."""
        assert self.process.poll() is None, self.words()
        return bool(type(self.admin)(self.port).get("/").status == 300)

    def words(self) -> str:
        """Return the end of Heat's logs."""
        files = [file for file in (self.log, self.folder / "heat.log") if file.exists()]
        return "\n".join(file.read_text()[-6000:] for file in files)

    def _add_user(self) -> None:
        """Add the user heat, with which Heat validates tokens, and the endpoints of heat-api and heat-api-cfn. Heat
        puts the second one into the user data of servers; no process serves it here.
        """
        def made(noun: str, **fields: Any) -> str:
            reply = self.admin.post(f"/identity/v3/{noun}s", {noun: fields})
            assert reply.status == 201, reply
            return str(reply.json[noun]["id"])

        def named(noun: str, name: str) -> str:
            return str(self.admin.get(f"/identity/v3/{noun}s?name={name}").json[f"{noun}s"][0]["id"])

        user = made("user", name="heat", password=self.password)
        path = f"projects/{named('project', 'service')}/users/{user}/roles/{named('role', 'admin')}"
        assert self.admin.put(f"/identity/v3/{path}").status == 204
        for name, kind, url in (("heat", "orchestration", f"http://127.0.0.1:{self.port}/v1/%(project_id)s"),
                                ("heat-cfn", "cloudformation", f"http://127.0.0.1:{self.port}/cfn/v1")):
            made("endpoint", interface="public", region_id="RegionOne", url=url,
                 service_id=made("service", name=name, type=kind))
