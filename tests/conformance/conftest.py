# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud under test: the whole control plane in this process, over fake hosts."""

from collections.abc import Iterator

import pytest

from .transport import Target

#: Certificates that samples of create and rebuild trust.
TRUSTED = ("0b5d2c72-12cc-4ba6-a8d7-3ff5cc1d8cb8", "674736e3-f25c-405c-8362-bbf991e0ce0a")


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The description of a cloud of two fake hosts."""
    folder = tmp_path_factory.mktemp("novnc")
    (folder / "vnc.html").touch()
    cloud = pytest.importorskip("tests.support.control.cloud", reason="the control plane's cloud is not there")
    signing = pytest.importorskip("tests.unit.control.image.signing")
    with cloud.Cloud(hosts=2, links=True, novnc_dir=str(folder), reclaim_instance_interval=3600,
                     shelved_offload_time=-1) as running:
        chain = signing.Chain(running.folder / "control" / "certificates")
        for id, signer in zip(TRUSTED, (chain.second, chain.first), strict=True):
            signer.id = id
            chain.keep(signer)
        yield Target(url=f"http://127.0.0.1:{running.port}", username="admin", password=running.password,
                     project="admin", flavor="1", hosts=list(running.hosts),
                     capabilities={"soft_delete": True, "failed_host": True},
                     signature=chain.client.properties(bytes(1024 * 1024)))
