# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that need one image at once: its service is asked once, and the host gets it once."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from magnetar_control.delivery import Delivery
from magnetar_control.services import Context, Document, Images
from magnetar_core.http.client import Client

KERNEL, MACHINE = str(uuid.uuid4()), str(uuid.uuid4())


class CountedImages:
    """An image, with a kernel where asked. Counts how often each is shown with its location."""

    def __init__(self, kernel: bool) -> None:
        self.shown: list[str] = []
        self.properties = {"kernel_id": KERNEL} if kernel else {}

    def show(self, _context: Context, id: str) -> Document:
        disk_format = "aki" if id == KERNEL else "qcow2"
        return {"id": id, "status": "active", "owner": "demo", "disk_format": disk_format, "visibility": "private",
                "properties": self.properties if id == MACHINE else {}}

    def show_with_location(self, context: Context, id: str) -> tuple[Document, str]:
        self.shown.append(id)
        time.sleep(0.2)  # others come meanwhile
        return self.show(context, id), ""


class WaitingHost:
    """The agent of a host, which takes images when all have asked."""

    def __init__(self) -> None:
        self.go, self.ensured = threading.Event(), list[str]()

    def ensure(self, _noun: str, key: str, *_want: Any, **_more: Any) -> Document:
        self.go.wait(30)
        self.ensured.append(key)
        return {"resource": {"status": "active"}}


@pytest.mark.parametrize("kernel", [False, True])
def test_the_image_service_is_asked_once(kernel: bool) -> None:
    images, host = CountedImages(kernel), WaitingHost()
    delivery = Delivery(cast("Images", images), 30)
    started = threading.Barrier(5)

    def bring() -> None:
        started.wait(30)
        delivery.image(cast("Client", host), "kvm1", MACHINE)

    with ThreadPoolExecutor(4) as pool:
        brought = [pool.submit(bring) for _server in range(4)]
        started.wait(30)
        host.go.set()
        for one in brought:
            one.result(30)
    wanted = [MACHINE, *([KERNEL] if kernel else [])]
    assert images.shown == wanted and sorted(host.ensured) == sorted(wanted)


def test_images_that_name_each_other_do_not_wait_in_a_circle() -> None:
    """A kernel may name the image that names it: it is brought as what it is, without what it names."""
    images, host = CountedImages(kernel=True), WaitingHost()
    real = images.show
    images.show = lambda context, id: {**real(context, id), "disk_format": "aki",
                                       "properties": {  # type: ignore[method-assign]
        "kernel_id": MACHINE if id == KERNEL else KERNEL}}
    delivery = Delivery(cast("Images", images), 30)
    host.go.set()
    with ThreadPoolExecutor(2) as pool:
        brought = [pool.submit(delivery.image, cast("Client", host), "kvm1", id) for id in (MACHINE, KERNEL) * 8]
        for one in brought:
            one.result(30)
    assert set(host.ensured) == {MACHINE, KERNEL}
