# SPDX-License-Identifier: GPL-3.0-or-later
"""Somebody with signed images, and what a cloud's servers of them say."""

import uuid

from tests.support.control.engines import engines
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.image.signing import Chain
from tests.unit.control.moves.clouds import at, claims, flavors

ENGINES = engines("signatures, postgres")
CONTENT = bytes(range(256)) * 256
VERSION = "2.63"


class Signing(Owner):
    """Somebody with signed images. *chain*: certificates that the cloud's key manager has."""

    def __init__(self, cloud, chain):
        super().__init__(cloud)
        self.chain = chain

    def image(self, properties=None, content=CONTENT):
        """An image with the client's signature, or these properties."""
        signed = self.chain.client.properties(CONTENT) if properties is None else properties
        return self.call.image(f"image-{uuid.uuid4()}", content, **signed)

    def boot(self, image, *trusted, **more):
        """A new server, when it has settled."""
        given = {"trusted_image_certificates": list(trusted)} if trusted else {}
        return self.call.boot(imageRef=image, version=VERSION, **{"networks": "none", "flavorRef": "small", **given,
                                                                  **more})

    def act(self, id, action, args=None, version="2.91"):
        reply = self.call.act(id, action, args, version)
        assert reply.status == 202, reply
        return self.call.settled(id)

    def check_failed(self, server, *words):
        """It is in error for this reason, on no host, and no other host was tried."""
        id, fault = server["id"], server["fault"]
        assert server["status"] == "ERROR" and fault["code"] == 400
        for word in words:
            assert word in fault["message"] + fault["details"]
        assert at(self.cloud, id) == {} and claims(self.cloud, id) == {}
        [action] = self.call.get(f"/v2.1/servers/{id}/os-instance-actions", "2.84").json["instanceActions"]
        events = self.call.get(f"/v2.1/servers/{id}/os-instance-actions/{action['request_id']}",
                               "2.84").json["instanceAction"]["events"]
        assert [one["event"] for one in events].count("compute__do_build_and_run_instance") == 1

    def contents(self, image):
        """The checksum of an image on each host that has it."""
        return {one["checksum"] for host in self.cloud.hosts for one in self.on_host("image", host)
                if one["id"] == image}


def signing(cloud):
    """An owner, and the certificates in the cloud's key manager."""
    chain = Chain(cloud.folder / "control" / "certificates")
    flavors(cloud)
    return Signing(cloud, chain)
