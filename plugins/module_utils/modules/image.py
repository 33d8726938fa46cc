# SPDX-License-Identifier: GPL-3.0-or-later
"""The module image, which creates the record of an image and uploads its content."""

from __future__ import annotations

import hashlib
import os
import re

from ..core.errors import ImageRefused, InvalidField
from ..core.kinds.image import Image
from ..core.options import File, Option, name_options
from ..core.values import Text
from .resource import ResourceModule

_PIECE = 1 << 20
#: A checksum in the form of openstack.cloud.
_MD5 = re.compile("[0-9a-f]{32}")


class ImageModule(ResourceModule):
    kind = Image
    own = name_options(
        filename=Option(
            File(), "File with the content, on the machine where the module runs. Its digest is taken first, and "
            "content that the agent has is not sent again.", aliases=("path",)),
        url=Option(Text(), "URL of the content, which the agent downloads; needs O(checksum)."),
        host_path=Option(Text(), "File with the content on the agent's host, in one of the agent's C(image_paths). It "
                         "is not sent through the module."),
        volume=Option(Text(), "Volume of the agent's host that no server has. The image becomes a copy of it, C(qcow2) "
                      "or, with O(disk_format=raw), C(raw)."),
    )
    files = ("filename",)

    @property
    def rules(self):
        return dict(super().rules, mutually_exclusive=[["filename", "url", "host_path", "volume"]])

    def want(self, params):
        params = _without_md5(params)
        want = super().want(params)
        if params.get("url"):
            if not params.get("checksum"):
                raise InvalidField("checksum", "is required with url, as sha256:HEX or sha512:HEX of the content")
            want["source"] = {"url": params["url"]}
        elif params.get("host_path"):
            want["source"] = {"path": params["host_path"]}
        elif params.get("volume"):
            want["source"] = {"volume": params["volume"]}
        elif params.get("filename"):
            checksum = file_digest(params["filename"], (params.get("checksum") or "sha256:").partition(":")[0])
            if params.get("checksum") not in (None, checksum):
                raise InvalidField("checksum", "does not fit %s, whose content has %s" % (params["filename"], checksum),
                                   params["checksum"])
            want.update(source={"upload": True, "size": os.path.getsize(params["filename"])}, checksum=checksum)
        return want

    def ensure(self, client, key, params, waiting):
        answer = super().ensure(client, key, params, waiting)
        if not params.get("filename") or not _empty(answer):
            return answer
        if waiting["dry_run"]:
            return _predicted(answer, os.path.getsize(params["filename"]))
        id = answer["resource"].get("id") or key
        try:
            sent = client.upload(self.kind.noun, id, params["filename"], timeout=waiting["timeout"],
                                 request_id=answer.get("request_id"))
        except (ImageRefused, InvalidField):
            if _new(answer):  # the claim about the content is wrong, and would be held against the right content
                client.delete(self.kind.noun, id, timeout=waiting["timeout"])
            raise
        return _joined_answer(answer, sent) if "changed" in sent else sent


def _without_md5(params):
    """Return *params* without a ``checksum`` that is an MD5 digest, as openstack.cloud.image has it, after a comparison
    with the content of ``filename``. Raises ``InvalidField`` if they differ.
    """
    digest = (params.get("checksum") or "").strip().lower()
    if not _MD5.fullmatch(digest):
        return params
    if not params.get("filename"):
        raise InvalidField("checksum", "is an MD5 digest, which is only compared with filename; use sha256: or sha512:",
                           digest)
    actual = file_digest(params["filename"], "md5").partition(":")[2]
    if actual != digest:
        raise InvalidField("checksum", "does not fit %s, whose content has %s" % (params["filename"], actual), digest)
    return dict(params, checksum=None)


def _empty(answer):
    """Return whether the image in *answer*, the answer of ``Client.ensure``, still waits for the upload of its content.
    """
    return (answer.get("resource") or {}).get("status") == "queued"


def _new(answer):
    """Return whether the image is new, according to *answer*, the answer of ``Client.ensure``."""
    return any(leaf["path"] == "name" and leaf["old"] is None for leaf in answer.get("diff") or ())


def _predicted(recorded, size):
    """Return the answer that check mode predicts for an upload of *size* bytes. *recorded*: the answer of
    ``Client.ensure`` for the image.
    """
    sent = {"steps": [{"verb": "receive"}], "resource": dict(recorded["resource"], status="active", size=size)}
    return _joined_answer(recorded, dict(recorded, **sent))


def _joined_answer(recorded, sent):
    """Merge *recorded*, the answer of ``Client.ensure`` for an image, and *sent*, the answer of the upload of its
    content, and return the result.
    """
    arrived = [{"path": "status", "old": "queued", "new": "active"}]
    return dict(
        sent, changed=True, steps=recorded["steps"] + sent["steps"],
        diff=recorded["diff"] if recorded["changed"] else arrived,
        warnings=(recorded.get("warnings") or []) + (sent.get("warnings") or []))


def file_digest(path, algorithm):
    """Return the digest of the content of the file *path* as ``ALGORITHM:HEX``. *algorithm*: sha256, sha512 or md5.
    Raises ``InvalidField``.
    """
    if algorithm not in ("sha256", "sha512", "md5"):
        raise InvalidField("checksum", "must begin with sha256: or sha512:", algorithm)
    hasher = hashlib.new(algorithm)
    try:
        with open(path, "rb") as stream:
            for piece in iter(lambda: stream.read(_PIECE), b""):
                hasher.update(piece)
    except OSError as error:
        raise InvalidField("filename", "cannot be read: %s" % error.strerror, path) from None
    return "%s:%s" % (algorithm, hasher.hexdigest())
