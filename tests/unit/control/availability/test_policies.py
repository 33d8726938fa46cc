# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies of servers: which value counts, and what the API refuses."""

import orjson
import pytest

from magnetar_control.compute.availability.ha_policy import check_ha_metadata, server_ha_policy
from magnetar_control.conductor.availability import incident_moves
from magnetar_control.settings_file import make_settings
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import InvalidField
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS


class Server:
    """A server of project p1 with these metadata and extra specs."""

    def __init__(self, metadata, specs):
        self.metadata, self.flavor, self.project_id = metadata, {"extra_specs": specs}, "p1"


@pytest.mark.parametrize(("metadata", "specs", "project", "expected"), [
    ({}, {}, None, ("best-effort", 5)),
    ({}, {}, "never", ("never", 5)),
    ({}, {"magnetar:ha": "always", "magnetar:ha_priority": "7"}, "never", ("always", 7)),
    ({"ha": "never"}, {"magnetar:ha": "always", "magnetar:ha_priority": "0"}, None, ("never", 0)),
    ({"HA_Enabled": "True"}, {"magnetar:ha": "never"}, "never", ("always", 5)),
    ({"HA_Enabled": " yes "}, {}, None, ("always", 5)),
    ({"HA_Enabled": "False"}, {}, "never", ("never", 5)),
    ({"HA_Enabled": "Treu"}, {}, None, ("best-effort", 5)),
    ({"HA_Enabled": "True", "ha": "best-effort", "ha_priority": "0"}, {}, None, ("best-effort", 0)),
    ({"ha": "alwys"}, {"magnetar:ha": "always"}, None, ("always", 5)),
    ({"ha_priority": "12"}, {"magnetar:ha_priority": "3"}, None, ("best-effort", 3))])
def test_the_most_specific_value_counts(metadata, specs, project, expected):
    settings = make_settings({"availability_projects": {"p1": project} if project else {}})
    found = server_ha_policy(settings, Server(metadata, specs))
    assert (found.policy, found.priority) == expected
    assert len(found.problems) == sum(metadata.get(key) in ("alwys", "12") for key in ("ha", "ha_priority"))


@pytest.mark.parametrize(("metadata", "field", "rule"), [
    ({"ha": "allways"}, "metadata.ha", "must be one of always, best-effort, never"),
    ({"ha": ""}, "metadata.ha", "must be one of"), ({"ha": "Always"}, "metadata.ha", "must be one of"),
    ({"ha_priority": "10"}, "metadata.ha_priority", "must be a number from 0 to 9"),
    ({"ha_priority": "-1"}, "metadata.ha_priority", "must be a number"),
    ({"ha_priority": "high"}, "metadata.ha_priority", "must be a number")])
def test_a_typo_is_refused(metadata, field, rule):
    with pytest.raises(InvalidField, match=rule) as refused:
        check_ha_metadata(make_settings({"availability_enabled": True}), metadata)
    assert refused.value.details["field"] == field
    check_ha_metadata(make_settings({}), metadata)  # the keys have no meaning


def test_other_values_pass():
    settings = make_settings({"availability_enabled": True})
    for metadata in ({}, None, {"HA": "x"}, {"HA_Enabled": "Treu"}, {"ha": "best-effort", "ha_priority": "9"}):
        check_ha_metadata(settings, metadata)


@pytest.mark.parametrize(("name", "value"), [("magnetar:ha", "sometimes"), ("magnetar:ha_priority", "10"),
                                             ("magnetar:haa", "always")])
def test_a_typo_in_a_flavor_is_refused(name, value):
    with pytest.raises(InvalidField):
        FLAVOR_SPECS.validate(name, value)


def test_the_flavor_of_a_server_is_read_as_it_was_at_its_creation():
    flavor = {"extra_specs": {"magnetar:ha": "never"}}
    server = ServerRow.of_values({"flavor": orjson.dumps(flavor).decode(), "metadata": "{}", "project_id": "p1"})
    assert server_ha_policy(make_settings({}), server).policy == "never"


def test_pauses_grow():
    first = incident_moves._failed_attempt(Row("always", 1), "x")["not_before"]
    later = incident_moves._failed_attempt(Row("always", 4), "x")["not_before"]
    longest = incident_moves._failed_attempt(Row("always", 400), "x")["not_before"]
    assert first < later < longest
    assert incident_moves._failed_attempt(Row("best-effort", 1), "x") == {"state": "failed", "message": "x"}


class Row:
    """A server with that policy and so many attempts."""

    def __init__(self, policy, attempts):
        self.policy, self.attempts = policy, attempts
