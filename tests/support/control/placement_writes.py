# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of placement writes."""


def call(cloud, method, path, version="1.39", body=None):
    return cloud.admin.call(method, f"/placement{path}", body,
                            headers={"OpenStack-API-Version": f"placement {version}"})
