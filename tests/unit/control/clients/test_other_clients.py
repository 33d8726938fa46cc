# SPDX-License-Identifier: GPL-3.0-or-later
"""python-novaclient and apache-libcloud, as they are, with a cloud; tests/lab/cloud/test_clients.py has them with real
guests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from novaclient import exceptions

from tests.support.control.cloud import Cloud
from tests.support.other_clients import libcloud_life, made_by, nova_life, novaclient

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning:novaclient"),
              pytest.mark.filterwarnings("ignore::Warning:libcloud")]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, links=True) as made:
        made.admin.image()
        yield made


@pytest.fixture
def nova(cloud: Cloud) -> Iterator[Any]:
    with novaclient(cloud.port, cloud.password) as made:
        yield made


@pytest.fixture
def server(nova: Any) -> Iterator[Any]:
    with made_by(nova) as made:
        yield made


def test_novaclient_leads_a_server_through_its_life(nova: Any, server: Any) -> None:
    nova_life(nova, server)


def test_novaclient_reads_and_changes_a_server(nova: Any, server: Any) -> None:
    assert nova.servers.find(name="nova1") == server
    assert server in nova.servers.list(search_opts={"all_tenants": 1})
    nova.servers.set_meta(server, {"c": "d"})
    nova.servers.delete_meta(server, ["a"])
    server.set_tags(["x", "y"])
    server.delete_tag("x")
    server.lock(reason="because")
    server.update(name="nova2", description="text")
    found = nova.servers.get(server.id)
    assert (found.metadata, found.tags, found.name, found.locked_reason) == ({"c": "d"}, ["y"], "nova2", "because")
    server.unlock()
    assert server.interface_list() == [] and nova.volumes.get_server_volumes(server.id) == []
    assert nova.servers.topology(server)["nodes"] == [] and nova.server_migrations.list(server) == []
    assert server.get_serial_console("serial")["remote_console"]["url"].startswith("ws")
    assert server.diagnostics()[1]["driver"] == "libvirt"


def test_novaclient_has_the_other_nouns(nova: Any, server: Any) -> None:
    project, begin, end = nova.client.get_project_id(), datetime(2026, 1, 1), datetime(2126, 1, 1)  # noqa: DTZ001
    assert nova.versions.get_current().id == "v2.1"
    nova.keypairs.create("nova", public_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Z"
                                            "z5bBNJ me")
    assert [one.name for one in nova.keypairs.list()] == ["nova"]
    nova.keypairs.delete("nova")
    aggregate = nova.aggregates.create("nova", "rack1")
    assert nova.aggregates.list() == [aggregate]
    aggregate.delete()
    group = nova.server_groups.create("nova", "anti-affinity")
    assert nova.server_groups.list() == [group]
    group.delete()
    flavor = nova.flavors.create("nova", 64, 1, 1)
    flavor.set_keys({"hw:cpu_policy": "shared"})
    assert flavor.get_keys() == {"hw:cpu_policy": "shared"}
    flavor.delete()
    nova.quotas.update(project, cores=30)
    assert nova.quotas.get(project).cores == 30
    nova.quotas.delete(project)
    assert nova.quotas.get(project, detail=True).cores["limit"] == nova.quotas.defaults(project).cores
    assert server.id in [one["instance_id"] for one in nova.usage.get(project, begin, end).server_usages]
    for listed in (nova.hypervisors, nova.services, nova.availability_zones):
        assert listed.list()
    assert nova.limits.get().to_dict()["absolute"]["totalInstancesUsed"] == 1
    with pytest.raises(exceptions.NotFound):
        nova.servers.get("8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")


def test_libcloud_leads_a_server_through_its_life(cloud: Cloud) -> None:
    libcloud_life(cloud.port, cloud.password)
