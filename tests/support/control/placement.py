# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of placement."""

import sys
from pathlib import Path

OPENSTACK = (sys.executable, "-m", "openstackclient.shell")
FOLDER = Path(__file__).parents[2] / "cases"


def call(cloud, method, path, body=None, version="1.39"):
    """Return the answer to an administrator's request to Placement at *version*."""
    return cloud.admin.call(method, f"/placement{path}", body,
                            headers={"OpenStack-API-Version": f"placement {version}"})


def get(cloud, path, version):
    return call(cloud, "GET", path, version=version)


def filled(value, ids):
    """Return *value* with the uuids (*ids*) in place of their names."""
    if isinstance(value, dict):
        return {filled(key, ids): filled(one, ids) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, ids) for one in value]
    return value.format(**ids) if isinstance(value, str) else value


def holds(part, whole):
    """Return whether *whole* contains *part*: objects may have further keys, unless those of *part* are empty."""
    if isinstance(part, dict) and part:
        return all(key in whole and holds(value, whole[key]) for key, value in part.items())
    return part == whole
