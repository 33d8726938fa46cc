# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of resource classes."""

from magnetar_control.scheduler.request_spec import with_current_offers
from tests.support.control.place import ONE
from tests.unit.control.scheduler.fleet import request


def wish(database, id, **resources):
    return with_current_offers(database, request(server_id=id, amounts=ONE, resources=resources))
