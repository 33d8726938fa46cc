# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of an RBD image, by Ceph's own tools, which run as QEMU's user: what they read of the cluster may be
anybody's. The agent reads configuration and keyring, which may be root's, and hands them over as files without a name.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from magnetar_agent.virt.tools.process import TIMEOUT, piped, run, unnamed
from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from magnetar_agent.host.storage import CephImage
    from magnetar_agent.virt.tools.process import User


#: Seconds without a byte.
SILENCE = 60.0


@contextmanager
def exported(image: CephImage, user: User) -> Iterator[tuple[int, Iterator[bytes]]]:
    """``ceph fsid``, ``rbd info``, ``rbd export``; see ``HypervisorStorage.export_image``."""
    what = f"read the image {image.name} in the pool {image.pool!r} of Ceph"
    with ExitStack() as held:
        files = [unnamed(held, _read(path)) for path in (image.conf, keyring(image))]
        who = ["--id", image.user, "--conf", f"/dev/fd/{files[0]}", "--keyring", f"/dev/fd/{files[1]}"]
        patience = f"{image.timeout:.0f}"
        found = run(["ceph", *who, "--connect-timeout", patience, "fsid"], "reach Ceph", image.timeout + TIMEOUT, user,
                    files).strip()
        if found != image.fsid:
            raise HypervisorError(f"The image is in the cluster {image.fsid} of Ceph, and the agent's setting "
                                  f"rbd_ceph_conf leads to {found}.")
        rbd = ["rbd", *who, "--client-mount-timeout", patience]
        where = ["--pool", image.pool, "--image", image.name, "--snap", image.snapshot]
        size = _size(run([*rbd, "info", "--format=json", *where], what, image.timeout + TIMEOUT, user, files), what)
        with piped([*rbd, "export", "--no-progress", *where, "--path", "-"], what, user, files,
                   SILENCE) as pieces:
            yield size, pieces


def _size(said: str, what: str) -> int:
    try:
        return int(json.loads(said)["size"])
    except (ValueError, TypeError, KeyError):
        raise HypervisorError(f"rbd could not {what}: it does not say its size.") from None


def keyring(image: CephImage) -> Path:
    """Where Ceph has the key of a user of the cluster that *conf* is named after."""
    return image.conf.with_name(f"{image.conf.stem}.client.{image.user}.keyring")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HypervisorError(f"{path} cannot be read: {error.strerror}. See the agent's settings rbd_ceph_conf and "
                              "rbd_user.") from None
