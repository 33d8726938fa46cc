# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent does not start on a host whose libvirt or QEMU is too old."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from magnetar_agent.api.serve import CannotStart, refuse_old_programs
from magnetar_core.errors import HypervisorDown
from magnetar_core.version import older_programs, release_number


def hypervisor(**report):
    return SimpleNamespace(host=lambda: {"hypervisor_type": "QEMU", "hypervisor_version": "7.2.0",
                                         "libvirt_version": "9.0.0", **report})


@pytest.mark.parametrize("report", [{}, {"hypervisor_version": "10.0.2", "libvirt_version": "11.3.0"},
                                    {"hypervisor_type": "FAKE", "hypervisor_version": "1.0.0"}])
def test_it_starts(report):
    refuse_old_programs(hypervisor(**report))


@pytest.mark.parametrize(("report", "message"), [
    ({"hypervisor_version": "6.2.0"}, "This host has QEMU 6.2.0, and this agent needs libvirt 9.0.0 and QEMU 7.2.0"),
    ({"libvirt_version": "8.10.1", "hypervisor_version": "7.1.99"}, "has libvirt 8.10.1 and QEMU 7.1.99, and")])
def test_it_refuses_by_name(report, message):
    with pytest.raises(CannotStart, match=message):
        refuse_old_programs(hypervisor(**report))


def test_without_libvirt_it_starts_and_logs(caplog):
    def host():
        raise HypervisorDown

    refuse_old_programs(SimpleNamespace(host=host))
    assert "the versions of libvirt and QEMU are not checked" in caplog.text
    assert older_programs({"hypervisor_type": None}) == []


def test_releases_are_numbered():
    assert [release_number(version) for version in ("0.1.0", "0.2.0.dev3+g1", "1.0.1", "0+checkout")] == [
        1, 2, 1000, None]
