# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules server_export and server_export_info against an agent."""

from __future__ import annotations

import pytest

from magnetar_core.http.client import Client


@pytest.fixture
def web1(module, agent):
    """A stopped server web1."""
    with Client(agent.endpoint) as client:
        client.ensure("server", "web1", {"flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None, "power": "off"})
    return module


def test_check_export_again_remove(web1, agent):
    folder = agent.folder / "exports/gone"
    predicted = web1("server_export", name="gone", server="web1", check=True)
    assert predicted["changed"] and predicted["actions"] == ["record", "write"] and not folder.exists()
    done = web1("server_export", name="gone", server="web1")
    assert done["actions"] == predicted["actions"] and done["diff"] == predicted["diff"]
    assert done["server_export"]["status"] == "available" and (folder / "SHA256SUMS").exists()
    for options in ({"server": "web1"}, {"folder": str(folder)}, {}):
        again = web1("server_export", name="gone", **options)
        assert not again["changed"] and again["server_export"] == done["server_export"]
    (shown,) = web1("server_export_info", filters={"status": "available"}, fields=["name", "folder"])["server_exports"]
    assert shown == {"name": "gone", "folder": str(folder)}
    removed = [web1("server_export", name="gone", state="absent", check=check) for check in (True, False, False)]
    assert [one["changed"] for one in removed] == [True, True, False] and not folder.exists()


def test_a_running_server_is_refused(web1, agent):
    assert web1("server", name="web1", state="running")["changed"]
    for check in (True, False):
        refused = web1("server_export", name="gone", server="web1", check=check)
        assert refused["failed"] and "Stop it, then repeat the call." in refused["msg"]
        assert refused["error"]["code"] == "conflict"
    assert not (agent.folder / "exports").exists()


def test_a_server_of_nobody_and_another_folder_are_refused(web1):
    assert "server: must name a server of this host" in web1("server_export", name="x", server="nobody")["msg"]
    assert "folder: must be a folder in one of the agent's export_paths" in web1(
        "server_export", name="x", server="web1", folder="/etc")["msg"]
