# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the collection openstack.cloud that this collection names otherwise, or refuses: a table for each module.
"""

from __future__ import annotations

from .compute import COMPUTE
from .identity import IDENTITY
from .network import NETWORK
from .storage import STORAGE

#: The options of openstack.cloud by name of the module.
FOREIGN = dict(COMPUTE, **IDENTITY, **NETWORK, **STORAGE)
