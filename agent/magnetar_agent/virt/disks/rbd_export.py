# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of an RBD image, read by Ceph's own tools. They run as QEMU's user, because the cluster's data is
untrusted. The agent reads configuration and keyring, which may be readable by root only, and passes them as files
without a name.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from magnetar_agent.virt.tools.process import TIMEOUT, pipe_program, run_program, unnamed_file
from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from magnetar_agent.host.storage import CephImage
    from magnetar_agent.virt.tools.process import User


#: Seconds without a byte until the export fails.
SILENCE = 60.0


@contextmanager
def exported_image(image: CephImage, user: User) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the size in bytes and the content, in chunks, of a snapshot of an RBD image, such as a Glance image in
    Ceph. *user*: uid and gid that the Ceph programs run with. Raises ``HypervisorError`` if the image is in another
    Ceph cluster."""
    purpose = f"read the image {image.name} in the pool {image.pool!r} of Ceph"
    with ExitStack() as stack:
        files = [unnamed_file(stack, _read(path)) for path in (image.conf, keyring_path(image))]
        who = ["--id", image.user, "--conf", f"/dev/fd/{files[0]}", "--keyring", f"/dev/fd/{files[1]}"]
        patience = f"{image.timeout:.0f}"
        cluster_id = run_program(["ceph", *who, "--connect-timeout", patience, "fsid"], "reach Ceph",
                                 image.timeout + TIMEOUT, user, files).strip()
        if cluster_id != image.fsid:
            raise HypervisorError(f"The image is in the cluster {image.fsid} of Ceph, and the agent's setting "
                                  f"rbd_ceph_conf leads to {cluster_id}.")
        rbd = ["rbd", *who, "--client-mount-timeout", patience]
        where = ["--pool", image.pool, "--image", image.name, "--snap", image.snapshot]
        size = _size(run_program([*rbd, "info", "--format=json", *where], purpose, image.timeout + TIMEOUT, user,
                                 files), purpose)
        with pipe_program([*rbd, "export", "--no-progress", *where, "--path", "-"], purpose, user, files,
                          SILENCE) as pieces:
            yield size, pieces


def _size(output: str, purpose: str) -> int:
    try:
        return int(json.loads(output)["size"])
    except (ValueError, TypeError, KeyError):
        raise HypervisorError(f"rbd could not {purpose}: it does not say its size.") from None


def keyring_path(image: CephImage) -> Path:
    """Return the path of the keyring file of the image's Ceph user, next to its ``CLUSTER.conf``:
    ``CLUSTER.client.USER.keyring``."""
    return image.conf.with_name(f"{image.conf.stem}.client.{image.user}.keyring")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HypervisorError(f"{path} cannot be read: {error.strerror}. See the agent's settings rbd_ceph_conf and "
                              "rbd_user.") from None
