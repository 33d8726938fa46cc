# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of migration."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.agent.pair import Pair
from tests.support.ports import free_port


@pytest.fixture
def pair():
    """Yield two hosts, with a server web1 on the first."""
    found = Pair(Path(tempfile.mkdtemp(prefix="mag")), (free_port(), free_port()))
    found.id = found.make()
    yield found
    found.close()


@pytest.fixture
def go(pair, module):
    """Return a function that runs the module *name* against the agent of the first host, or of the host *at*."""
    def call(name, /, at=None, **options):
        secrets = {"ca_cert": pair.one.pki.ca, "client_cert": pair.root / "pki/admin.pem",
                   "client_key": pair.root / "pki/admin.key"}
        return module(name, endpoint=endpoint(at or pair.one), timeout=30,
                      **{key: str(path) for key, path in secrets.items()}, **options)

    return call


def endpoint(host):
    return f"https://127.0.0.1:{host.port}"
