# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked for while something else is done to the server, or something else comes meanwhile."""

import dataclasses

import pytest

from magnetar_control.compute.held_action import HeldAction

NIC = {"interfaceAttachment": {}}


class Networks:
    """One network, on which every port can be had."""

    def check_requested(self, _context, _wishes, external=False):
        return [{"network_id": "net"}]

    def allocate(self, _context, _id, _wishes, hostname="", host=""):
        return [{"port_id": "port"}]


@pytest.mark.parametrize("second", ["confirmResize", "revertResize"])
def test_a_resize_is_confirmed_once(compute, second):
    id = compute.server(host="kvm1", vm_state="resized")
    assert compute.alice.post(f"/servers/{id}/action", {"confirmResize": None}).status == 204
    reply = compute.alice.post(f"/servers/{id}/action", {second: None})
    assert reply.status == 409 and "something else is being done" in reply.message
    [one] = compute.alice.get(f"/servers/{id}/os-instance-actions").json["instanceActions"]
    assert (one["action"], one["message"]) == ("confirmResize", None)
    shown = compute.alice.get(f"/servers/{id}").json["server"]
    assert shown["OS-EXT-STS:task_state"] is None  # nobody would ever end what it says


@pytest.mark.parametrize(("method", "path"), [("POST", ""), ("DELETE", "/port")])
def test_no_nic_comes_or_goes_while_something_is_done(small, method, path):
    id = small.server(host="kvm1", task_state="suspending")
    small.cloud.services = dataclasses.replace(small.cloud.services, network=Networks())
    reply = small.alice.call(method, f"/servers/{id}/os-interface{path}", NIC if method == "POST" else None)
    assert reply.status == 409 and "while it is in task_state suspending" in reply.message


def test_who_waits_for_a_nic_is_told_that_the_server_goes(small, monkeypatch):
    id, release = small.server(host="kvm1"), HeldAction.release
    small.cloud.services = dataclasses.replace(small.cloud.services, network=Networks())

    def released(action):
        assert release(action)
        assert small.alice.delete(f"/servers/{id}").status == 204
        return True

    monkeypatch.setattr(HeldAction, "release", released)
    reply = small.alice.post(f"/servers/{id}/os-interface", NIC)
    assert reply.status == 409 and "while it is being deleted" in reply.message
