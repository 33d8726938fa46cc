# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud that a playbook's environment names: AWX's credential OpenStack, and a shell of a cloud's user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.control.cloud import Cloud

from .play import prepared

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        made.admin.image()
        yield made


@pytest.fixture(scope="module")
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("job"), cloud, "devstack")


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "MAGNETAR_"))}
    env = {**kept, "ANSIBLE_COLLECTIONS_PATH": str(folder), "ANSIBLE_LOCAL_TEMP": str(folder), "COLUMNS": "1000",
           "PYTHONDONTWRITEBYTECODE": "1", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", **environment}
    return subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), *words], env=env, text=True,
                          capture_output=True, timeout=300, check=False, cwd=folder)


def test_credential_openstack_of_awx(cloud: Cloud, folder: Path) -> None:
    """It sets ``OS_CLIENT_CONFIG_FILE`` alone. One cloud in the file is the cloud; several are named, and nothing is
    done."""
    answers = ("-e", "server_names=f1", "-e", "server_flavor=tiny", "-e", "server_image=cirros", "-e",
               "server_network=default")
    done = run(folder, "magnetar.compute.servers", *answers, OS_CLIENT_CONFIG_FILE=str(folder / "clouds.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    (server,) = cloud.admin.get("/v2.1/servers/detail").json["servers"]
    assert (server["name"], server["status"]) == ("f1", "ACTIVE")
    known = yaml.safe_load((folder / "clouds.yaml").read_text())["clouds"]["devstack"]
    (folder / "two.yaml").write_text(yaml.safe_dump({"clouds": {"devstack": known, "other": known}}))
    done = run(folder, "magnetar.compute.servers", *answers, OS_CLIENT_CONFIG_FILE=str(folder / "two.yaml"))
    assert done.returncode and "has 2 clouds, devstack, other" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("host", "options", "warned"), [
    ("kvm1 ansible_connection=local\n[kvm_hosts]\nkvm1", {}, True),
    ("kvm1 ansible_connection=local agent_listen=0.0.0.0", {}, True),
    ("kvm1 ansible_connection=local magnetar_endpoint=https://kvm1.example", {}, True),
    ("kvm1 ansible_connection=local\n[kvm_hosts]\nkvm1", {"cloud": "devstack"}, False),
    ("elsewhere ansible_connection=local", {}, os.path.exists("/run/magnetar/agent.sock")),  # noqa: PTH110
])
def test_hosts_with_an_agent_and_a_cloud_of_the_shell(folder: Path, host: str, options: dict[str, str],
                                                      warned: bool) -> None:
    (folder / "hosts").write_text(host)
    (folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [
        {"magnetar.compute.flavor_info": options}]}]))
    done = run(folder, "-i", "hosts", "play.yml", OS_CLIENT_CONFIG_FILE=str(folder / "clouds.yaml"),
               OS_CLOUD="devstack")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("has an agent, and OS_CLOUD in the environment" in done.stderr + done.stdout) == warned, done.stderr
