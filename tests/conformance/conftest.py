# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud under test: the whole control plane in this process, over fake hosts."""

from collections.abc import Iterator

import pytest

from tests.conformance.transport import Target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The description of a cloud of two fake hosts."""
    folder = tmp_path_factory.mktemp("novnc")
    (folder / "vnc.html").touch()
    cloud = pytest.importorskip("tests.unit.control.cloud", reason="the control plane's cloud is not there")
    with cloud.Cloud(hosts=2, links=True, novnc_dir=str(folder), reclaim_instance_interval=3600) as running:
        yield Target(url=f"http://127.0.0.1:{running.port}", username="admin", password=running.password,
                     project="admin", flavor="1", hosts=list(running.hosts), capabilities={"soft_delete": True})
