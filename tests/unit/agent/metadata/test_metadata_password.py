# SPDX-License-Identifier: GPL-3.0-or-later
"""What a guest leaves for its user: once, in the server's document, told to clouds, and cleared."""

from __future__ import annotations

import json
import threading

import pytest

from magnetar_agent.api import watch
from magnetar_agent.metadata import password
from magnetar_agent.servers import guest_data
from tests.unit.agent.conftest import SMALL, Host


def test_it_is_kept_told_and_cleared(host: Host) -> None:
    id = host.ensure("server", "web1", {"flavor": SMALL}).resource["id"]
    there = host.agent.host
    assert password.store_posted_password(there, id, "") == (200, "")
    assert password.store_posted_password(there, id, "sealed") == (200, "")
    assert password.store_posted_password(there, id, "other")[0] == 409
    host.restart()
    there = host.agent.host
    document = there.documents.get("server", id)
    assert document.state["password"] == "sealed"
    assert watch._watched_state(there, document, None)[1]["password"] == "sealed"
    assert host.event("clear_password", "one") is not None
    document = there.documents.get("server", id)
    assert "password" not in document.state and "password" not in watch._watched_state(there, document, None)[1]
    host.event("clear_password", "two")
    assert password.store_posted_password(there, id, "other") == (200, "")
    assert password.store_posted_password(there, "unknown", "x")[0] == 404


def test_a_guest_is_told_what_a_cloud_has_changed(host: Host) -> None:
    """Its service says it at once; what is older changes nothing."""
    data = {"name": "web1", "hostname": "web1", "project_id": "p", "launch_index": 0, "reservation_id": "r-1",
            "flavor": "small", "availability_zone": "nova", "keys": [], "security_groups": []}
    id = host.ensure("server", "web1", {"flavor": SMALL, "metadata": {"is": "old"}, "guest_data": data}).resource["id"]

    def told() -> tuple[str, str, dict[str, str]]:
        there = host.agent.host
        found = json.loads(guest_data.guest_metadata_tree(there, there.documents.get("server", id))[
            "openstack/latest/meta_data.json"])
        return found["name"], found["hostname"], found["meta"]

    assert told() == ("web1", "web1", {"is": "old"})
    for revision in (2, 1):
        host.event("tell_guest", f"tell-{revision}", revision=revision, metadata={"is": str(revision)},
                   guest_data={**data, "name": f"web{revision}"})
        assert told() == ("web2", "web1", {"is": "2"})
    # Without a cloud its task says it, at once as well.
    host.ensure("server", "web1", {"metadata": {"is": "3"}})
    assert told()[2] == {"is": "3"}


def test_a_guest_whose_server_is_being_changed_is_to_try_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password, "PATIENCE", 0.05)
    id = host.ensure("server", "web1", {"flavor": SMALL}).resource["id"]
    said = []
    with host.agent.host.locks.hold("server", id):
        one = threading.Thread(target=lambda: said.append(password.store_posted_password(host.agent.host, id,
                                                                                         "late")[0]))
        one.start()
        one.join(0.5)
        assert not said
    one.join()
    assert said == [503] and "password" not in host.agent.host.documents.get("server", id).state
