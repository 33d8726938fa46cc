# SPDX-License-Identifier: GPL-3.0-or-later
"""A host is alive when it accepts or refuses a connection."""

import errno
import socket

import pytest

from magnetar_core.errors import InvalidField
from magnetar_core.http import reach
from tests.support.ports import free_port


def test_a_host_that_accepts_or_refuses_is_alive():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert reach.is_host_reached("127.0.0.1", server.getsockname()[1])
    assert reach.is_host_reached("127.0.0.1", free_port())


@pytest.mark.parametrize(("error", "answer"), [
    (TimeoutError(), False), (OSError(errno.EHOSTUNREACH, "No route to host"), False),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), None), (OSError(errno.EMFILE, "Too many open files"), None),
    (socket.gaierror(-2, "Name or service not known"), None)])
def test_a_host_that_does_not_answer_or_a_fault_of_this_machine(monkeypatch, error, answer):
    def fail(*_args):
        raise error

    monkeypatch.setattr(reach.socket, "create_connection", fail)
    assert reach.is_host_reached("192.0.2.1", 6553) is answer


@pytest.mark.parametrize(("address", "port"), [("kvm1", 0), ("kvm1", 65536), ("", 1), ("a" * 256, 1), ("a\nb", 1),
                                               ("ä", 1)])
def test_odd_addresses(address, port):
    with pytest.raises(InvalidField):
        reach.is_host_reached(address, port)
