# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two hosts that can send servers to each other, on each engine in turn."""

import itertools

import psycopg
import pytest

from tests.unit.control.cloud import Cloud
from tools import postgres

from .clouds import claims, flavors

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def databases(request):
    """URLs of three databases, as the settings take them."""
    if request.param == "sqlite":
        return {}
    folder, found = request.getfixturevalue("cluster"), {}
    with psycopg.connect(host=str(folder), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
        for name in ("database_url", "cell0_database_url", "cell_database_url"):
            made = f"moves{next(NUMBERS)}"
            connection.execute(f"CREATE DATABASE {made}")
            found[name] = postgres.url(folder, made)
    return found


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Cloud(hosts=2, links=True, databases=databases) as found:
        flavors(found)
        yield found


@pytest.fixture
def server(cloud):
    """A running server; it is removed afterwards, and claims nothing then."""
    found = cloud.admin.boot(flavorRef="small")
    yield found
    cloud.admin.delete(f"/v2.1/servers/{found['id']}")
    assert cloud.admin.settled(found["id"]) is None
    assert claims(cloud, found["id"]) == {}
