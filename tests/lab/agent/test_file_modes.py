# SPDX-License-Identifier: GPL-3.0-or-later
"""A user of the host who is in no group of libvirt's reads nothing in the agent's state folder, after any flow."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.file_modes import exposed
from tests.support.lab.agent import LabAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

FLAVOR = {"vcpus": 1, "ram": 128, "disk": 1, "ephemeral": 1, "swap": 64}
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with an image, whose state folder anybody may enter, as the role has it."""
    with LabAgent(shutdown_timeout=5) as made:
        made.import_image("disk", guest_image["disk"])
        yield made


def readable(lab: LabAgent) -> list[str]:
    """Return what is open by its mode, and what another user of the host reads indeed."""
    found = subprocess.run([*NOBODY, "find", lab.state, "(", "-readable", "-o", "-writable", ")", "!", "-type", "l"],
                           check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [*exposed(lab.state), *found.stdout.split()]


def test_nothing_is_readable_after_any_flow(lab: LabAgent) -> None:
    def server(**want: Any) -> None:
        lab.ensure("server", "web", want, on_immutable="rebuild")

    def event(what: str, **args: Any) -> None:
        with lab.client() as client:
            client.event("server", "web", what, args, request_id=f"{what}-{lab.mark}", timeout=300)

    flows: dict[str, Callable[[], Any]] = {
        "build": lambda: server(flavor=FLAVOR, image="disk", config_drive=True, user_data="I2Nsb3VkLWNvbmZpZwo="),
        "boot": lambda: lab.up("web"),
        "volume": lambda: lab.ensure("volume", "data", {"size": 1}),
        "attachment": lambda: lab.ensure("volume_attachment", "web:data", {"server": "web", "volume": "data"}),
        "volume snapshot": lambda: lab.ensure("volume_snapshot", "then", {"volume": "data"}),
        "image": lambda: event("create_image", name="of-web"),
        "rescue": lambda: server(rescue={"image": "disk"}, admin_pass="rescue-word"),
        "unrescue": lambda: server(rescue=None),
        "pause": lambda: server(power="paused"),
        "suspend": lambda: server(power="suspended"),
        "resume": lambda: server(power="running"),
        "rebuild": lambda: event("rebuild", image="of-web"),
        "resize": lambda: server(flavor={**FLAVOR, "disk": 2, "swap": 128}, power="off"),
        "start": lambda: server(power="running"),
        "stop": lambda: server(power="off"),
        "encrypted": lambda: lab.ensure("server", "hidden", {
            "flavor": FLAVOR, "image": "disk", "hardware": {"ephemeral_encryption": True}}),
        "raw": lambda: lab.ensure("server", "raw", {"flavor": FLAVOR, "image": "disk", "root_format": "raw",
                                                       "hardware": {"firmware": "uefi"}}),
        "restart": lambda: (lab.stop(), lab.start()),
        "delete": lambda: [lab.delete("server", name) for name in ("raw", "hidden", "web")],
    }
    found = {}
    for flow, act in flows.items():
        act()
        if open_files := readable(lab):
            found[flow] = open_files
    assert found == {}
