# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake agent and a fake cloud for the targets in tests/integration.

    python -m tests.support.modules.integration flavor server

runs ``ansible-test integration flavor server`` on a copy of the files in a collection's layout, without guests. Without
arguments it runs all targets.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from magnetar_control.services.identity import clouds_yaml
from tests.modules.conftest import Running
from tests.support.agent import foreign
from tests.support.control.cloud import Cloud
from tests.support.modules.playbook import BIN, ansible_environment
from tests.support.northbound import LabCentral, external, missing
from tools import layout

ROOT = layout.ROOT
TARGETS = ROOT / "tests/integration/targets"
CONFIG = "tests/integration/integration_config.yml"
SHARE = "e8debdc0-447a-4376-a10a-4cd9122d7986"


@contextlib.contextmanager
def running_site(folder: Path) -> Iterator[dict[str, Any]]:
    """Run a fake agent and a fake cloud of two hosts, with their files and a clouds.yaml in the home *folder*. Yield
    the variables that targets need; ``integration_config.yml.template`` explains them. Without the programs of OVN, the
    cloud has no OVN, and targets of its networks are skipped."""
    image = foreign.raw(folder, "image.raw")
    with contextlib.ExitStack() as stack:
        agent = _started_agent(folder / "agent")
        stack.callback(agent.stop)
        central = None if missing() else LabCentral(folder / "ovn").start()
        if central:
            stack.callback(central.stop)
        cloud = stack.enter_context(_cloud(folder, central))
        if central:
            external(cloud.admin)
        clouds = folder / ".config/openstack/clouds.yaml"
        clouds.parent.mkdir(parents=True)
        clouds_yaml(clouds, f"http://127.0.0.1:{cloud.port}", cloud.password)
        yield {"magnetar_agent": {"endpoint": agent.endpoint},
               "magnetar_cloud": {"cloud": "magnetar", "api_timeout": 60},
               "magnetar_image": str(image), "magnetar_domain": "mail", "magnetar_host": "kvm1",
               "magnetar_other_host": "kvm2", "magnetar_share": "files",
               "magnetar_cell_database": f"sqlite:///{folder}/cell9.db",
               "magnetar_external_network": "ext" if central else ""}


def _started_agent(folder: Path) -> Running:
    """Start an agent whose host also has a domain of another program."""
    folder.mkdir()
    agent = Running(folder, guest_agents=True)
    agent.hypervisor.network_outside("default")
    disk = foreign.file_disk(foreign.overlay(folder, "mail.qcow2"))
    agent.hypervisor.defined_outside(foreign.foreign_xml("mail", disk + foreign.network_nic()), "running")
    agent.start()
    return agent


def _cloud(folder: Path, central: LabCentral | None) -> Cloud:
    """Return a cloud with all that targets need: consoles, a share, a folder for backups, and hosts with links."""
    (folder / "vnc.html").touch()
    return Cloud(hosts=2, links=True, novnc_dir=str(folder), heartbeat=5.0, shares={SHARE: "files"},
                 agent={"backup_directory": str(folder / "backups"), "shares": {"files": str(folder)}},
                 **({"ovn_northbound": central.url, "ovn_hosts_wait": 0.0} if central else {}))


def play_of_targets(folder: Path, variables: dict[str, Any], *targets: str) -> subprocess.CompletedProcess[str]:
    """Run the targets by one ansible-playbook, which is faster than ``ansible-test``: it starts once. Return the
    finished process with its output."""
    hosts = {"testhost": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
    (folder / "targets.json").write_text(json.dumps([
        {"name": target, "hosts": "testhost", "gather_facts": False, "roles": [target]} for target in targets]))
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return subprocess.run(
        [BIN / "ansible-playbook", "-i", folder / "hosts.json", folder / "targets.json"], check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
        env=ansible_environment(folder, HOME=str(folder), ANSIBLE_ROLES_PATH=str(TARGETS),
                                ANSIBLE_CONFIG=str(TARGETS.with_name("integration.cfg"))))


def ansible_test_integration(copy: Path, *words: str, stdout: int | None = None,
                             **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``ansible-test integration`` with these arguments in *copy*, a collection's folder. *more*: environment
    variables. Return the finished process; *stdout* says where its output goes, as ``subprocess.run`` has it."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", **more}
    return subprocess.run([BIN / "ansible-test", "integration", "--color", "no", *words], check=False, cwd=copy,
                          text=True, stdout=stdout, env=environment)


def run_on_fake_site(*words: str) -> int:
    """Run ``ansible-test integration`` with these arguments against a fake agent and cloud; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="m") as made, layout.collection_copy() as copy, \
            running_site(Path(made)) as variables:
        (copy / CONFIG).write_text(json.dumps(variables))
        return ansible_test_integration(copy, *words, HOME=made).returncode


if __name__ == "__main__":
    sys.exit(run_on_fake_site(*sys.argv[1:]))
