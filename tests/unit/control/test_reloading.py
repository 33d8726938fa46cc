# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGHUP: settings that all code reads when it needs them take effect, the others are named, and wrong ones change
nothing."""

from __future__ import annotations

import ast
import dataclasses
import logging
from collections import defaultdict
from pathlib import Path

import pytest

from magnetar_control import cli, serve, settings_file
from magnetar_control.reloading import SettingsReloader, changed_settings
from magnetar_control.settings import Settings
from magnetar_control.settings_file import RELOADED, make_settings
from magnetar_core.errors import InvalidSettings
from tests.support.ports import free_port

SOURCE = Path(serve.__file__).parent
#: Properties and methods of Settings, and the settings that they read.
DERIVED = {"limits": ("builds_per_host", "live_migrations_per_host"), "of_project": ("project_share",),
           "workers_of_host": ("workers", "host_share"), "pools": ("network_pools",)}
#: Functions that parts call once, when they are made.
BUILDERS = {"scheduler_rules", "options_of", "_computed_weighers", "image_quota_defaults", "offered_shares",
            "receivers_of", "_urls", "engine_of", "keystone_of_settings"}
#: What ``follow_settings`` computes again, and lambdas that read a setting later.
FOLLOWED = {name for name in RELOADED if name.startswith(("quota_", "vendordata_")) or "weight" in name} | {
    "log_level", "shares", "host_down_after", "hold_upgrade", "weighers", "host_subset_size", "enabled_filters",
    "max_instances_per_host", "max_io_ops_per_host", "isolated_hosts", "isolated_images",
    "restrict_isolated_hosts_to_isolated_images", "aggregate_image_properties_isolation_namespace",
    "aggregate_image_properties_isolation_separator",
    "enable_isolated_aggregate_filtering", "limit_tenants_to_placement_aggregate",
    "placement_aggregate_required_for_tenants", "metrics_required", "reserve_room_to_fail"}


def uses():
    """The functions that read each setting, as (file, function)."""
    found = defaultdict(set)

    def walk(node, path, function):
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Attribute):
                owner = child.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name == "settings":
                    for setting in DERIVED.get(child.attr, (child.attr,)):
                        found[setting].add((path, inner))
            walk(child, path, inner)

    for file in sorted(SOURCE.rglob("*.py")):
        walk(ast.parse(file.read_text()), str(file.relative_to(SOURCE)), "")
    return found


def is_read_once(use):
    path, function = use
    once = path in ("serve.py", "cli.py") or path.startswith("workers")
    return once or function == "__init__" or function in BUILDERS


def test_all_code_reads_a_reloaded_setting_when_it_needs_it():
    """When this fails, a part keeps the value of a setting: let ``follow_settings`` change it, or add the setting to
    ``RESTARTED``."""
    found = uses()
    # Who registers hosts looks at the setting; the command line only adds this machine.
    kept = {name: sorted(filter(is_read_once, found[name])) for name in RELOADED - FOLLOWED - {"hosts"}}
    assert {name: where for name, where in kept.items() if where} == {
        "purge_deleted_after": [("cli.py", "run_db_purge")],
        "api_stop_delay": [("serve.py", "drain"), ("workers/supervisor.py", "stop")]}  # at the signal


def test_each_setting_that_can_be_reloaded_is():
    names = {setting.name for setting in dataclasses.fields(Settings)}
    late = {name for name, where in uses().items() if name in names and not any(map(is_read_once, where))}
    assert late <= RELOADED <= names


@pytest.fixture
def parts(tmp_path):
    parts = serve.Parts(Settings(state_dir=tmp_path, listen=f"127.0.0.1:{free_port()}", quota_networks=5))
    parts.upgrade()
    yield parts
    parts.close()


def reloader_of(parts, **values):
    """A reloader whose file has *values* in addition to what the parts began with."""
    fresh = dataclasses.replace(parts.settings, **values)
    reloader = SettingsReloader(parts.settings, lambda: fresh)
    reloader.follow(parts)
    return reloader


def reload(reloader):
    settings = reloader.read()
    if settings is not None:
        reloader.apply(settings)


def test_parts_follow_what_is_reloaded(parts, caplog):
    caplog.set_level(logging.INFO)
    services = parts.services()
    parts.applications(services)
    parts.working = parts.conductor(services)
    share = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    reload(reloader_of(parts, max_limit=7, quota_networks=6, quota_volumes=3, quota_images=4, shares={share: "home"},
                       cpu_allocation_ratio=2.0, reserved_host_cpus=3, enabled_filters=["NumInstancesFilter"],
                       vendordata_dynamic_read_timeout=9.0, builds_per_host=2, host_down_after=99.0, listen="x:1",
                       workers=3))
    conductor = parts.working
    assert parts.cloud.settings.max_limit == conductor.settings.max_limit == 7
    assert parts.networks.quota.defaults["network"] == 6 and parts.volumes.quota.defaults["volumes"] == 3
    assert 4 in parts.images.quota.defaults.values() and list(parts.cloud.shares) == [share]
    assert conductor.ratios.vcpus == 2.0 and conductor.reserved["vcpus_reserved"] == 3
    assert "NumInstancesFilter" in {one.name for one in conductor.states.rules.filters}
    assert conductor.vendordata.times[1] == 9.0 and conductor.settings.limits()["build"] == 2
    assert parts.health.down_after() == 99.0
    assert parts.settings.listen != "x:1" and parts.settings.workers == 16
    assert "these settings take effect when the service is started again: listen, workers" in caplog.text
    assert "the settings are read again: builds_per_host, cpu_allocation_ratio, enabled_filters" in caplog.text


@pytest.mark.parametrize(("values", "reason"), [
    ({"enabled_filters": ["JasonFilter"]}, "there is no filter 'JasonFilter'"),
    ({"shares": {"x": "y"}}, "shares: x: must be a uuid"),
    ({"log_level": "loud"}, "log_level must be debug, info, warning or error, and is 'loud'"),
    ({"vendordata_dynamic_targets": ["nothing"]}, "vendordata_dynamic_targets")])
def test_wrong_settings_change_nothing(parts, caplog, values, reason):
    parts.working = parts.conductor(parts.services())
    before = dataclasses.replace(parts.settings)
    reload(reloader_of(parts, max_limit=7, **values))
    assert "the settings are not read again: " in caplog.text and reason in caplog.text
    assert changed_settings(before, parts.settings) == []


def test_a_file_that_cannot_be_read_changes_nothing(parts, caplog, tmp_path):
    path = tmp_path / "control.yml"
    reloader = SettingsReloader(parts.settings, lambda: settings_file.load_settings(path))
    assert reloader.read() is None and "cannot be read" in caplog.text
    path.write_text("max_limt: 3")
    assert reloader.read() is None and "max_limt is not a setting; did you mean max_limit?" in caplog.text


def test_the_level_of_the_log_follows(parts, caplog):
    root = logging.getLogger()
    level = root.level
    reload(reloader_of(parts, log_level="error"))
    assert root.level == logging.ERROR
    root.setLevel(level)


def test_without_a_change_nothing_is_named(parts, caplog):
    caplog.set_level(logging.INFO)
    reload(reloader_of(parts))
    assert "none of those that can be reloaded has changed" in caplog.text and "started again" not in caplog.text


@pytest.fixture
def renamed(monkeypatch):
    monkeypatch.setattr(settings_file, "RENAMED", {"page_limit": "max_limit"})


def test_a_former_name_works_with_a_warning(renamed, caplog):
    assert make_settings({"page_limit": 7}, "control.yml").max_limit == 7
    assert "control.yml: page_limit is deprecated: the setting is now max_limit, and the next release refuses " \
        "page_limit" in caplog.text


@pytest.mark.parametrize(("values", "reason"), [
    ({"page_limit": 7, "max_limit": 8}, "page_limit is the former name of max_limit, which is set too. Remove page_l"),
    ({"page_limit": "many"}, "max_limit must be of type int"),
    ({"page_limits": 7}, "page_limits is not a setting")])
def test_a_former_name_is_checked_as_the_new_one(renamed, values, reason):
    with pytest.raises(InvalidSettings, match=reason):
        make_settings(values)


def test_the_check_of_an_upgrade_names_former_names(renamed, tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\npage_limit: 7\n")
    assert cli.main(["db", "upgrade", "--config", str(path)]) == 0
    (tmp_path / "backup").write_text("dump")
    assert cli.main(["upgrade", "check", "--backup", str(tmp_path / "backup"), "--config", str(path)]) == 1
    assert "page_limit is deprecated: the setting is now max_limit" in capsys.readouterr().out


def test_former_names_are_not_settings():
    names = {setting.name for setting in dataclasses.fields(Settings)}
    assert not names & settings_file.RENAMED.keys() and set(settings_file.RENAMED.values()) <= names
