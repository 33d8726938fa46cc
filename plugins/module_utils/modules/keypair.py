# SPDX-License-Identifier: GPL-3.0-or-later
"""The module keypair, which can also read the public key from a file."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds.keypair import Keypair
from ..core.options import File, Option, name_options
from .module import PRESENT
from .resource import ResourceModule

#: The word of openstack.cloud for a keypair that is created again when its public key differs.
REPLACE = "replace"


class KeypairModule(ResourceModule):
    """The module keypair, which registers a public key, from an option or a file."""

    kind = Keypair
    states = {PRESENT: {}, REPLACE: {}}
    state_doc = ("V(present) creates a missing keypair, and fails if it has another key (see O(on_immutable)). "
                 "V(replace) is V(present) with O(on_immutable=recreate). V(absent) removes it.")
    own = name_options(public_key_file=Option(
        File(), "File with the public key, in place of O(public_key), on the machine where the module runs."))
    files = ("public_key_file",)

    @property
    def rules(self):
        return dict(super().rules, mutually_exclusive=[["public_key", "public_key_file"]])

    def allowed(self, params):
        permissions = super().allowed(params)
        return dict(permissions, on_immutable="recreate") if params["state"] == REPLACE else permissions

    def want(self, params):
        want = super().want(params)
        if params.get("public_key_file"):
            want["public_key"] = _read(params["public_key_file"])
        if "public_key" in want:
            want["public_key"] = want["public_key"].strip()
        return want


def _read(path):
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read(65536)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise InvalidField("public_key_file", "cannot be read: %s" % reason, path) from None
    if "PRIVATE KEY" in text:
        raise InvalidField("public_key_file", "holds a private key; give the file with the public one (.pub)", path)
    return text
