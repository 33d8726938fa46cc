# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings: types, ranges, unknown keys, and that all of them are documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.settings import AgentSettings, describe_agent_settings, load_agent_settings
from magnetar_core.errors import InvalidSettings
from tools.agent_settings_page import DEFAULTS, GROUPS, LINKS, agent_settings_page


def test_defaults() -> None:
    found = AgentSettings()
    assert found.state_dir == Path("/var/lib/magnetar") and found.parallel >= 2 and found.address is None


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yml"
    file.write_text("wait: 5\nimage_paths: [/srv/a, /srv/b]\nlisten: '[::1]:6553'\ntls_cert: /c\ntls_key: /k\n"
                    "client_certs: {awx: operate}\n")
    found = load_agent_settings(file, state_dir=tmp_path, socket=None)
    assert (found.wait, found.image_paths) == (5.0, (Path("/srv/a"), Path("/srv/b")))
    assert found.address == ("::1", 6553) and found.state_dir == tmp_path
    file.write_text("")
    assert load_agent_settings(file) == AgentSettings()


@pytest.mark.parametrize(("content", "says"), [
    ("wiat: 5", "Did you mean wait?"),
    ("zzzz: 5", "Known keys: state_dir"),
    ("wait: soon", "wait: must be a number"),
    ("wait: -1", "wait: must be from 0 to 86400"),
    ("parallel: 1.5", "parallel: must be a whole number"),
    ("parallel: true", "parallel: must be a whole number"),
    ("parallel: 0", "parallel: must be from 1 to 512"),
    ("state_dir: relative", "state_dir: must be an absolute path"),
    ("state_dir:", "state_dir: needs a value"),
    ("image_paths: /srv", "image_paths: must be a list of folders"),
    ("virt_type: xen", "virt_type: must be one of auto, kvm, qemu"),
    ("restart_on_crash: maybe", "restart_on_crash: must be true or false"),
    ("client_certs: {awx: admin}", "client_certs: awx: must be read or operate"),
    ("listen: '6553'", "listen: must be host:port"),
    ("instances_path: servers", "instances_path: must be an absolute path"),
    ("{instances_path: /srv, root_pool: vms, pools: {vms: {type: rbd, libvirt_pool: vms}}}",
     "instances_path: excludes root_pool"),
    ("listen: 0.0.0.0:6553", "TCP is offered with TLS only"),
    ("- a list", "must be a mapping"),
    ("a: [", "is not valid YAML at line 1"),
])
def test_refusals_name_file_key_and_rule(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "agent.yml"
    file.write_text(content)
    with pytest.raises(InvalidSettings) as raised:
        load_agent_settings(file)
    assert says in raised.value.message and str(file) in raised.value.message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load_agent_settings(tmp_path / "none.yml")


def test_the_reference_page_is_that_of_the_settings() -> None:
    """When this fails: python -m tools.reference agent >docs/reference/agent.md"""
    assert (Path(__file__).parents[3] / "docs/reference/agent.md").read_text() == agent_settings_page()
    keys = [line["key"] for line in describe_agent_settings()]
    assert sorted(keys) == sorted(name for names in GROUPS.values() for name in names)
    assert {*LINKS, *DEFAULTS} <= {*keys}


def test_each_key_is_documented() -> None:
    for line in describe_agent_settings():
        assert len(line["doc"]) > 10, line


def test_given_values_win() -> None:
    given: dict[str, Any] = {"libvirt_uri": "test:///default"}
    assert AgentSettings(**given).libvirt_uri == "test:///default"
