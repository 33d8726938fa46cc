# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that ask for a signature of every image."""

import orjson

from tests.support.control.cloud import Cloud
from tests.unit.control.image.signing import Signer
from tests.unit.control.moves.clouds import row

from .signing import CONTENT, ENGINES, VERSION, signing

pytestmark = ENGINES


def test_default_certificates(databases):
    """Both options, and default certificates: every server needs a signature that is linked to them."""
    with Cloud(hosts=1, databases=databases, verify_image_signatures=True, enable_certificate_validation=True,
               default_trusted_certificate_ids=["5c8b2a52-0c5f-4f0a-9f4c-3b8f0f6a4e11"]) as cloud:
        owner = signing(cloud)
        default = Signer("second", owner.chain.first, key=owner.chain.second.key)
        default.id = "5c8b2a52-0c5f-4f0a-9f4c-3b8f0f6a4e11"
        owner.chain.keep(default)
        image = owner.image()
        server = owner.boot(image)
        assert (server["status"], server["trusted_image_certificates"]) == ("ACTIVE", [default.id])
        owner.check_failed(owner.boot(owner.image({})), "it has no img_signature")
        owner.check_failed(owner.boot(image, owner.chain.root.id), "Certificate chain building failed")
        made = owner.call.post("/image/v2/images", {"name": "bad", "disk_format": "raw", "container_format": "bare",
                                                    **owner.chain.client.properties(CONTENT)}).json
        reply = owner.call.call("PUT", f"/image/v2/images/{made['id']}/file", b"\0" * 512,
                                headers={"Content-Type": "application/octet-stream"})
        assert reply.status == 400 and b"the content is not what was signed" in reply.content
        assert owner.call.get(f"/image/v2/images/{made['id']}").status == 404
        again = owner.act(server["id"], "rebuild", {
            "imageRef": image, "trusted_image_certificates": [owner.chain.second.id]}, VERSION)
        assert again["trusted_image_certificates"] == [owner.chain.second.id]
        again = owner.act(server["id"], "rebuild", {"imageRef": image, "trusted_image_certificates": None}, VERSION)
        assert (again["status"], again["trusted_image_certificates"]) == ("ACTIVE", [default.id])
        assert orjson.loads(row(cloud, server["id"]).trusted_certs) == [default.id]
        owner.clear()
