# SPDX-License-Identifier: GPL-3.0-or-later
"""keypair: a public SSH key for servers."""

from __future__ import annotations

from ..fields import FIXED, READ, Field
from ..values import Choices, Text
from .common import Resource


class Keypair(Resource):
    """A public SSH key. Users generate and store the private key themselves (as in Nova since 2.92)."""

    noun, plural = "keypair", "keypairs"

    public_key = Field(Text(16, 16384), "The public key, one line as in authorized_keys.", required=True, on=FIXED,
                       sample="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ... me@example")
    type = Field(Choices("ssh"), "Type of the key.", default="ssh", on=FIXED, sample="ssh")
    fingerprint = Field(Text(0, 128), "SHA256 fingerprint, as ssh-keygen -l shows it.", on=READ,
                        sample="SHA256:uJ0r...")
    fingerprint_md5 = Field(Text(0, 64), "MD5 fingerprint, as Nova shows it.", on=READ,
                            sample="35:9d:d0:c3:4a:80:d3:d8:86:f1:ca:f7:df:c4:f9:d8")
