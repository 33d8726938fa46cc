# SPDX-License-Identifier: GPL-3.0-or-later
"""What the row of a server says of its hardware."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_core.hardware import merge


def tpm_security(server: Any) -> str:
    """See ``merge.tpm_security``; the texts of a server without a TPM, as most are, are not read for it."""
    if "tpm_version" not in server.flavor and "tpm_version" not in server.image:
        return ""
    return merge.tpm_security(orjson.loads(server.flavor), orjson.loads(server.image))
