# SPDX-License-Identifier: GPL-3.0-or-later
"""What the row of a server says of its hardware."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_core.hardware import merge

#: The note in a server's ``request`` that the key manager may have a secret of its TPM, and whose that is: ``user`` or
#: ``deployment``. It stays while the server has a flavor without a TPM.
TPM_DRAWN = "tpm_secret_drawn"


def tpm_security(server: Any) -> str:
    """See ``merge.tpm_security``; the texts of a server without a TPM, as most are, are not read for it."""
    if "tpm_version" not in server.flavor and "tpm_version" not in server.image:
        return ""
    return merge.tpm_security(orjson.loads(server.flavor), orjson.loads(server.image))


def tpm_drawn(server: Any) -> str:
    """Whose secret a server's TPM has, or had under an earlier flavor: ``user`` or ``deployment``; "" where none was
    drawn."""
    return orjson.loads(server.request).get(TPM_DRAWN, "") if TPM_DRAWN in server.request else ""
