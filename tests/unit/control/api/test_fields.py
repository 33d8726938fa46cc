# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of fields: bodies and answers at each version, overlap, and that the table of gates is in order."""

from types import SimpleNamespace

import pytest

from magnetar_control.api.nova.fields import ApiField, Fields, View, field_errors_below
from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.servers.server_fields import FIELDS
from magnetar_control.api.nova.servers.server_view import ServerView
from magnetar_control.api.nova.versions import FIRST, NEWEST
from magnetar_control.store.engine.tables import servers
from magnetar_core.errors import InvalidField
from magnetar_core.values import Const, Integer, OneOf, Text
from magnetar_core.versions import Version

#: A shape that changed, as that of Nova's flavor did at 2.75.
SWAPPED = Fields(
    ApiField("swap", OneOf(Integer(), Const("")), name="swap_text", takes="create", shows="show", until=74),
    ApiField("swap", Integer(), takes="create", shows="show", since=75),
    ApiField("host", shows="show", rule="see-host"),
    ApiField("double", shows="show", show=lambda view, row: (view.version, 2 * row.swap)))
ROW = SimpleNamespace(swap=1, swap_text="one", host="kvm1")


def shown(version, *rules):
    policy = SimpleNamespace(allows=lambda rule, _context: rule in rules)
    call = SimpleNamespace(version=version, cloud=SimpleNamespace(policy=policy), context=None, base="", shapes={},
                           request=SimpleNamespace(root="", extra={}))
    return View(call, SWAPPED).document(ROW)


SERVER = {"id": "s1", "project_id": "p1", "user_id": "u1", "name": "web", "vm_state": "error", "host": "kvm1",
          "flavor": '{"id": "1", "name": "small", "vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0}',
          "image_id": "i1", "image": "{}", "metadata": "{}", "tags": "[]", "hints": '{"group": ["g1"]}',
          "addresses": '{"net": [{"version": 4, "addr": "10.0.0.2"}]}', "security_groups": '[{"id": "1", "name": "g"}]',
          "volumes": '[{"volume_id": "v1", "delete_on_termination": true}]', "created_at": "2026-11-25T12:00:00.000000",
          "fault": '{"code": 500, "created": "2026-11-25T12:00:00.000000", "message": "no host"}'}


NETWORK = SimpleNamespace(floating=lambda _ids: {})


@pytest.mark.parametrize("admin", [True, False])
@pytest.mark.parametrize("version", range(FIRST, NEWEST + 1))
def test_a_list_of_servers_fetches_what_it_shows_and_no_more(version, admin):
    hosts = SimpleNamespace(all=lambda: {"kvm1": SimpleNamespace(zone="nova", status="UNKNOWN")})
    policy = SimpleNamespace(allows=lambda rule, _context: admin or rule.endswith("unknown-only"))
    call = SimpleNamespace(
        version=version, context=None, base="", shapes={}, is_admin=admin, at=lambda gate: version >= gate.value[0],
        cloud=SimpleNamespace(policy=policy, hosts=hosts, services=SimpleNamespace(network=NETWORK)),
        request=SimpleNamespace(root="", extra={}))
    columns = [column.name for column in servers.c if column.name in FIELDS.shape(call, "detail").columns]
    row = SimpleNamespace(**{name: SERVER.get(name) for name in columns})
    whole = SimpleNamespace(**{column.name: SERVER.get(column.name) for column in servers.c})
    assert ServerView(call, FIELDS, "detail").document(row).keys() == ServerView(
        call, FIELDS, "detail").document(whole).keys()
    assert not {"request", "interfaces", "password"}.intersection(columns)
    assert ("user_data" in columns) == (admin and version >= 3)


def test_two_shapes_of_one_wire_name():
    body = SWAPPED.body("create")
    assert body.check({"swap": ""}, "", Version("2.74")) == {"swap": ""}
    assert body.check({"swap": 0}, "", Version("2.75")) == {"swap": 0}
    with pytest.raises(InvalidField):
        body.check({"swap": ""}, "", Version("2.75"))
    assert body.schema(Version("2.75"))["properties"] == {"swap": Integer().schema()}


def test_an_answer_shows_what_its_version_has_and_its_caller_may_see():
    assert shown(74) == {"swap": "one", "double": (74, 2)}
    assert shown(75, "see-host") == {"swap": 1, "host": "kvm1", "double": (75, 2)}


def test_overlap_does_not_import():
    with pytest.raises(TypeError, match="overlap"):
        Fields(ApiField("swap", takes="create", until=75), ApiField("swap", takes="create update", since=75))
    Fields(ApiField("swap", takes="create"), ApiField("swap", shows="show"))


def test_a_range_does_not_end_before_it_begins():
    with pytest.raises(ValueError, match="cannot end"):
        ApiField("swap", since=5, until=4)


def test_errors_name_the_field_as_it_stands_in_the_body():
    with pytest.raises(InvalidField) as refused, field_errors_below("keypair"):
        Text(1, 2).check("abc", "name")
    assert refused.value.details["field"] == "keypair.name"
    assert refused.value.message.startswith("keypair.name: ")


def test_gates_stand_in_the_order_of_their_versions():
    versions = [gate.version for gate in ApiChange]
    assert versions == sorted(versions) and versions[-1] <= NEWEST
    assert all(gate.change.endswith(".") for gate in ApiChange)
