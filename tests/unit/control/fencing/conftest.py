# SPDX-License-Identifier: GPL-3.0-or-later
"""A fence agent, and the command ``magnetar host`` of a control plane with two hosts that have it."""

import json

import pytest
import yaml

from magnetar_control import cli
from magnetar_control.fencing import fence_agents
from magnetar_control.serve import Parts
from magnetar_control.settings_file import make_settings
from magnetar_control.store.hosts import fencings, hosts
from tests.support.fence_agent import FakeFenceAgent


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setattr(fence_agents, "PAUSE", 0.01)
    return FakeFenceAgent(tmp_path / "agents")


class Site:
    """The databases of a cloud with the hosts kvm1 and kvm2, and the command line."""

    def __init__(self, folder, agent, capsys):
        self.folder, self.agent, self.capsys = folder, agent, capsys
        self.configure(**agent.settings("kvm1", "kvm2"))
        self.parts = Parts(self.settings)
        self.parts.upgrade()
        self.cell = self.parts.store.find_cell("cell1").id
        with self.parts.api_database.write() as connection:
            for name in ("kvm1", "kvm2", "kvm3"):
                hosts.upsert_host_row(connection, name, self.cell, f"unix:/{name}.sock")

    def configure(self, **more):
        values = {"state_dir": str(self.folder / "state"), **more}
        self.settings = make_settings(values)
        (self.folder / "control.yml").write_text(yaml.safe_dump(values))

    def run(self, *words, status=0):
        """Run ``magnetar host``; returns its output, and its messages."""
        assert cli.main(["host", *words, "--config", str(self.folder / "control.yml")]) == status
        printed = self.capsys.readouterr()
        return printed.out if not status else printed.out + printed.err

    def status(self, *words, status=0):
        """What ``fence-status`` says, by host."""
        shown = self.run("fence-status", *words, "--json", status=status)
        return {one["host"]: one for one in json.JSONDecoder().raw_decode(shown)[0]}

    def host(self, name):
        with self.parts.api_database.read() as connection:
            row = hosts.fetch_host_row(connection, name)
        return row.disabled, row.disabled_reason, row.forced_down

    def set_host(self, name, **columns):
        with self.parts.api_database.write() as connection:
            hosts.update_host_row(connection, name, **columns)

    def row(self, name):
        with self.parts.api_database.read() as connection:
            return fencings.fetch_fencing_row(connection, name)


@pytest.fixture
def site(tmp_path, agent, capsys):
    found = Site(tmp_path, agent, capsys)
    yield found
    found.parts.close()
