# SPDX-License-Identifier: GPL-3.0-or-later
"""A client sends an agent of an earlier release no field that it does not know, unless the field asks for something."""

from __future__ import annotations

import pytest

from magnetar_core.errors import InvalidField, MagnetarError, NotSupported, error_from_dict
from magnetar_core.fields import ALWAYS, Record, _Fields
from magnetar_core.http.client import Client
from magnetar_core.http.older_agents import find_field, split_path
from magnetar_core.kinds import Server, Volume

#: Fields that the older agent lacks: at the top, with a default, in a record, and in a list of records.
LACKING = ("guest_data", "security_groups")


class OldClient(Client):
    """A client whose agent knows fewer fields of servers. It stores the documents that it accepts."""

    def __init__(self, lacking=LACKING):
        super().__init__("unix:///nowhere.sock")
        self.fields = _Fields.by_operation([field for field in Server.fields if field.name not in lacking])
        self.accepted, self.calls = [], 0

    def _change(self, _method, _route, _query, body, *_more):
        self.calls += 1
        if isinstance(body, list):
            return {"results": [self._result(item) for item in body], "request_id": "req-1"}
        self._take(body)
        return {"changed": True}

    def _take(self, document):
        try:
            _Fields.check_document(self.fields, document, "", None, "create", partial=True)
        except InvalidField as error:  # as it comes over HTTP
            raise error_from_dict(error.as_dict()) from None
        self.accepted.append(document)

    def _result(self, item):
        try:
            self._take(item["want"])
        except MagnetarError as error:
            return {"key": item["key"], "error": error.as_dict()}
        return {"key": item["key"], "changed": True}


def nothing(name):
    """A value of a field that asks for nothing."""
    default = Server.field(name).default
    return default or None


def test_fields_without_a_value_are_left_out():
    client = OldClient()
    want = {"name": "web", "power": "running", **{name: nothing(name) for name in LACKING}}
    assert client.ensure("server", "web", want) == {"changed": True}
    assert client.accepted == [{"name": "web", "power": "running"}] and client.calls == 1 + len(LACKING)
    assert set(LACKING) < set(want), "the caller's document stays"


def test_a_field_with_a_value_names_the_agent_and_what_to_do():
    client = OldClient()
    with pytest.raises(NotSupported, match=r"guest_data: the agent unix:///nowhere\.sock is of an earlier release, .* "
                                           "Upgrade that agent"):
        client.ensure("server", "web", {"name": "web", "guest_data": {"user_data": "eA=="}})
    assert not client.accepted


def test_what_no_release_knows_is_the_callers_mistake():
    client = OldClient(())
    with pytest.raises(InvalidField, match="powr: is not a known field; did you mean power"):
        client.ensure("server", "web", {"name": "web", "powr": None})
    with pytest.raises(InvalidField, match="power: must be"):
        client.ensure("server", "web", {"name": "web", "power": "sideways"})
    assert client.calls == 2


def test_items_of_a_batch_are_sent_again_alone():
    client = OldClient()
    items = [{"key": "a", "want": {"name": "a"}}, {"key": "b", "want": {"name": "b", "guest_data": None}},
             {"key": "c", "want": {"name": "c", "guest_data": {"user_data": "eA=="}}},
             {"key": "d", "want": {"name": "d", "powr": 1}}]
    results = client.ensure_many("server", items)["results"]
    assert [result["key"] for result in results] == ["a", "b", "c", "d"]
    assert [result.get("error", {}).get("code") for result in results] == [None, None, "not-supported",
                                                                           "invalid-field"]
    assert client.accepted == [{"name": "a"}, {"name": "b"}] and client.calls == 2


@pytest.mark.parametrize("kind", [Server, Volume])
def test_each_field_is_found_by_its_path(kind):
    for field in kind.fields:
        assert find_field(kind.noun, split_path(field.name)) is field
        inner = getattr(field.value, "value", field.value)
        if isinstance(inner, Record):
            assert all(find_field(kind.noun, [field.name, one.name]) is one for one in inner.fields)
        item = getattr(inner, "item", None)
        if isinstance(item, Record):
            assert all(find_field(kind.noun, split_path(f"{field.name}[0].{one.name}")) is one for one in item.fields)
    assert find_field(kind.noun, split_path("nothing[1].such")) is None and "create" in ALWAYS
