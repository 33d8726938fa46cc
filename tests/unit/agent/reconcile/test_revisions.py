# SPDX-License-Identifier: GPL-3.0-or-later
"""Revisions: a dry run tells one, and a change that was planned for another is refused."""

from __future__ import annotations

import pytest

from magnetar_core.errors import ChangedSince, HypervisorError, InvalidField
from magnetar_core.kinds import Server
from magnetar_core.reconcile import NO_RESOURCE, revision_of
from tests.unit.agent.conftest import SMALL, Host


def test_of_a_resource_that_does_not_exist(host: Host) -> None:
    planned = host.ensure("server", "web1", {"flavor": SMALL}, dry_run=True)
    assert planned.revision == NO_RESOURCE and planned.as_dict()["revision"] == NO_RESOURCE
    done = host.ensure("server", "web1", {"flavor": SMALL}, revision=NO_RESOURCE)
    assert done.changed and "revision" not in done.as_dict()
    assert not host.ensure("server", "web1", {"flavor": SMALL}, revision=NO_RESOURCE).changed  # it is done
    with pytest.raises(ChangedSince, match=r"'web1' exists now, and did not exist when this was planned"):
        host.ensure("server", "web1", {"tags": ["a"]}, revision=NO_RESOURCE)


def test_of_a_resource_that_has_changed(host: Host) -> None:
    host.server()
    revision = host.ensure("server", "web1", {"tags": ["a"]}, dry_run=True).revision
    assert revision and revision == host.ensure("server", "web1", None, dry_run=True).revision
    host.server(description="by hand")
    for dry_run in (True, False):
        for want in ({"tags": ["a"]}, None):
            with pytest.raises(ChangedSince, match="'web1' has changed since this was planned"):
                host.ensure("server", "web1", want, dry_run, revision=revision)
    assert not host.server(description="by hand").as_dict().get("revision")
    host.server(description="")
    assert host.ensure("server", "web1", {"tags": ["a"]}, revision=revision).changed


def test_of_a_resource_that_is_gone(host: Host) -> None:
    host.server()
    revision = host.ensure("server", "web1", None, dry_run=True).revision
    host.ensure("server", "web1", None, revision=revision)
    assert not host.ensure("server", "web1", None, revision=revision).changed
    with pytest.raises(ChangedSince, match="no longer exists"):
        host.ensure("server", "web1", {"flavor": SMALL}, revision=revision)
    host.server()  # another one with the name
    with pytest.raises(ChangedSince):
        host.ensure("server", "web1", None, revision=revision)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("call", ["define", "start"])
def test_an_unfinished_change_is_continued_by_its_own_plan_only(host: Host, call: str, restarted: bool) -> None:
    host.server()
    bigger = {"flavor": {**SMALL, "ram": 128}}
    revision = host.ensure("server", "web1", bigger, dry_run=True, allow_reboot=True).revision
    host.fake.fail_next(call, HypervisorError("QEMU is tired."))
    with pytest.raises(HypervisorError):
        host.ensure("server", "web1", bigger, allow_reboot=True, revision=revision)
    with pytest.raises(ChangedSince):
        host.ensure("server", "web1", bigger, allow_reboot=True, revision="of another plan")
    if restarted:
        host.restart()
    host.ensure("server", "web1", bigger, allow_reboot=True, revision=revision)
    assert host.ensure("server", "web1", bigger, dry_run=True).steps == []


def test_secrets_are_not_in_a_revision() -> None:
    fields = {"id": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "name": "web1"}
    assert Server.secrets() & {"user_data", "admin_pass"}
    secret = next(iter(Server.secrets()))
    assert revision_of(Server, fields) == revision_of(Server, {**fields, secret: "x", "status": "ACTIVE"})
    assert revision_of(Server, fields) != revision_of(Server, {**fields, "description": "x"})


def test_a_revision_that_is_none(host: Host) -> None:
    with pytest.raises(InvalidField, match="revision"):
        host.ensure("server", "web1", {"flavor": SMALL}, revision="")
