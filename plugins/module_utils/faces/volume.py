# SPDX-License-Identifier: GPL-3.0-or-later
"""volume, volume_snapshot, and an ``_info`` of each."""

from __future__ import annotations

from ..core.kinds.volume import Volume, VolumeSnapshot
from ..core.options import Option, collect
from ..core.values import Boolean
from .resource import InfoFace, ResourceFace

PURGE = collect(purge_metadata=Option(
    Boolean(), "Whether keys missing in O(metadata) are removed, when O(metadata) is given.", default=True))


class VolumeFace(ResourceFace):
    kind = Volume
    own = PURGE


class SnapshotFace(ResourceFace):
    kind = VolumeSnapshot
    own = PURGE


MODULES = {"volume": VolumeFace(), "volume_info": InfoFace(Volume),
           "volume_snapshot": SnapshotFace(), "volume_snapshot_info": InfoFace(VolumeSnapshot)}
