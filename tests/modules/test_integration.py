# SPDX-License-Identifier: GPL-3.0-or-later
"""The targets in tests/integration: each module has one, and all pass against a fake agent and a fake cloud.

One ansible-playbook runs all targets here, since ``ansible-test`` starts one for each target; the deep test runs
some of them by ``ansible-test`` itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from magnetar_core.http.client import Client
from tests.support.modules.integration import (
    CONFIG,
    ROOT,
    TARGETS,
    ansible_test_integration,
    play_of_targets,
    running_site,
)
from tests.support.northbound import missing
from tools import layout

MODULES = {path.stem for path in (ROOT / "plugins/modules").glob("[a-z]*.py")}
NAMES = sorted(path.name for path in TARGETS.iterdir())
#: Targets that run by themselves; others are roles that these need.
RUNNING = [name for name in NAMES if not name.startswith("setup_")]
#: A target that is named after no module: it has all modules that only report.
REPORTS = "reports"


def aliases_of(target: str) -> list[str]:
    """Return the lines of a target's file ``aliases``."""
    return (TARGETS / target / "aliases").read_text().splitlines()


def test_every_module_has_a_target():
    """A new module gets a target of its name, or a line in the file ``aliases`` of the target that runs it."""
    named = {alias for target in RUNNING for alias in aliases_of(target) if "/" not in alias}
    assert sorted(MODULES - named - set(RUNNING)) == []
    assert sorted(named - MODULES) == [] and set(RUNNING) - MODULES == {REPORTS}


@pytest.mark.parametrize("target", RUNNING)
def test_a_target_runs_the_modules_that_it_names(target):
    """Each is in its tasks, or in what the tasks of ``setup_lifecycle`` make of the module's name."""
    tasks = "".join(path.read_text() for path in (TARGETS / target / "tasks").glob("*.yml"))
    for module in {target, *aliases_of(target)} & MODULES:
        assert f"magnetar.compute.{module}:" in tasks or f"module: {module.removesuffix('_info')}" in tasks or (
            f"module: {module}" in tasks), f"{target} does not run {module}"


@pytest.mark.parametrize("target", NAMES)
def test_a_target_is_as_ansible_test_expects(target):
    """Roles that it depends on exist, ``ansible-test`` does not run those roles by themselves, and it can select
    the others by where they run."""
    meta = TARGETS / target / "meta/main.yml"
    needed = yaml.safe_load(meta.read_text())["dependencies"] if meta.exists() else []
    assert set(needed) <= set(NAMES) - set(RUNNING)
    tasks = "".join(path.read_text() for path in (TARGETS / target / "tasks").glob("*.yml"))
    assert "setup_lifecycle" in needed or "name: setup_lifecycle" not in tasks
    places = {"magnetar/agent", "magnetar/cloud", "magnetar/ovn"} & set(aliases_of(target))
    assert places if target in RUNNING else aliases_of(target) == ["hidden"]


def test_the_template_names_all_variables():
    """Variables of targets are in the template of their configuration."""
    template = yaml.safe_load((ROOT / f"{CONFIG}.template").read_text())
    tasks = "".join(path.read_text() for path in TARGETS.rglob("*.yml"))
    assert sorted(name for name in template if name not in tasks) == []
    with_site = Path(sys.modules[running_site.__module__].__file__).read_text()
    assert sorted(name for name in template if f'"{name}"' not in with_site) == []


@pytest.mark.slow
def test_all_targets():
    """None ends early because something is not configured, and none leaves anything on the agent."""
    if missing():
        pytest.skip(missing())
    with tempfile.TemporaryDirectory(prefix="m") as made, running_site(Path(made)) as variables:
        done = play_of_targets(Path(made), variables, *RUNNING)
        assert done.returncode == 0, done.stdout[-8000:]
        with Client(variables["magnetar_agent"]["endpoint"]) as client:
            left = {noun: client.list(noun) for noun in ("flavor", "image", "network", "server", "volume", "keypair")}
    assert re.findall(r"End here.*\n(?!skipping)", done.stdout) == []
    assert not any(left.values()), left


@pytest.mark.slow
def test_ansible_test_lists_the_targets():
    with layout.collection_copy() as copy:
        listed = ansible_test_integration(copy, "--list-targets", stdout=subprocess.PIPE)
    assert listed.returncode == 0 and listed.stdout.split() == RUNNING


@pytest.mark.slow
@pytest.mark.deep(shard="integration targets")
def test_targets_by_ansible_test():
    """Some by their names, and those of an alias: the networks in OVN."""
    words = [sys.executable, "-m", "tests.support.modules.integration", "magnetar/ovn/", "flavor", "server"]
    done = subprocess.run(words, check=False, text=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-8000:]
    for target in ("flavor", "server", "trunk"):
        assert f"Running {target} integration test role" in done.stdout
