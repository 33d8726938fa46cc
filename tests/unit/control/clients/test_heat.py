# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack Heat, unmodified, with a cloud over OVN: a stack is made by a member, checked and removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest

from tests.support.clients import CASES
from tests.support.control.cloud import Cloud
from tests.support.lab_heat import LabHeat
from tests.support.openstack_clients import logged_in
from tests.support.routed_cloud import add_outside_network, routed_cloud
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning:openstack")]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with routed_cloud(tmp_path / "ovn") as made:
        yield made


@pytest.fixture
def heat(cloud: Cloud, cluster: Path, tmp_path: Path) -> Iterator[LabHeat]:
    with LabHeat(cloud.admin, tmp_path, cluster) as made:
        yield made


def settled(connection: Any, heat: LabHeat, status: str) -> Any:
    """Return the stack when Heat is done with it."""
    stack = next(iter(connection.orchestration.stacks(name="heat1")), None)
    if stack is None or stack.status.endswith("_IN_PROGRESS"):
        return None
    assert stack.status == status, f"{stack.status}: {stack.status_reason}\n{heat.words()}"
    return connection.orchestration.get_stack(stack.id)


def is_gone(connection: Any, heat: LabHeat) -> bool:
    """Return whether Heat has removed the stack."""
    stacks = list(connection.orchestration.stacks(name="heat1"))
    assert not [one for one in stacks if one.status == "DELETE_FAILED"], f"{stacks}\n{heat.words()}"
    return not stacks


def test_a_stack_is_made_checked_and_removed(cloud: Cloud, heat: LabHeat) -> None:
    image, network = cloud.admin.image(visibility="public"), add_outside_network(cloud)
    member = cloud.caller("ann", "demo", "member")
    password = "secret-of-ann"
    cloud.admin.call("PATCH", f"/identity/v3/users/{member.user_id}", {"user": {"password": password}})
    member = cloud.login("ann", password, "demo")
    with logged_in(cloud.port, "ann", password, "demo") as session:
        connection = openstack.connection.Connection(session=session)
        connection.orchestration.create_stack(
            name="heat1", template=(CASES / "heat.yml").read_text(), timeout_mins=20,
            parameters={"image": image, "flavor": cloud.admin.flavor("with-disk"), "outside": network})
        stack = eventually(lambda: settled(connection, heat, "CREATE_COMPLETE"), "the stack", 600.0, pause=1.0)
        told = {output["output_key"]: output["output_value"] for output in stack.outputs}
        server = member.server(told["server"])
        addresses = [one["addr"] for one in next(iter(server["addresses"].values()))]
        assert (server["status"], server["metadata"]) == ("ACTIVE", {"made": "by Heat"})
        assert told["address"] in addresses
        assert [one["id"] for one in server["os-extended-volumes:volumes_attached"]] == [told["volume"]]
        (trust,) = cloud.admin.get("/identity/v3/OS-TRUST/trusts").json["trusts"]
        assert (trust["trustor_user_id"], trust["impersonation"]) == (member.user_id, True)
        connection.orchestration.check_stack(stack)
        eventually(lambda: settled(connection, heat, "CHECK_COMPLETE"), "the check", pause=1.0)
        connection.orchestration.delete_stack(stack)
        eventually(lambda: is_gone(connection, heat), "no stack", 600.0, pause=1.0)
    for path, key in (("/v2.1/servers", "servers"), ("/volume/v3/volumes", "volumes"),
                      ("/network/v2.0/floatingips", "floatingips"), ("/network/v2.0/routers", "routers"),
                      ("/network/v2.0/ports", "ports")):
        assert member.get(path).json[key] == []
    assert cloud.admin.get("/identity/v3/OS-TRUST/trusts").json["trusts"] == []
