# SPDX-License-Identifier: GPL-3.0-or-later
"""Options out of declarations: spec and documentation say the same, and omission is not a default."""

from __future__ import annotations

import pytest

from magnetar_core.errors import InvalidField
from magnetar_core.fields import Field, Record
from magnetar_core.http.client import ENDPOINT, Client
from magnetar_core.kinds.server import Server
from magnetar_core.options import (
    CONNECTION,
    Option,
    check_options,
    client_arguments,
    name_options,
    options_documentation,
    options_spec,
    requested_fields,
)
from magnetar_core.values import Boolean, Choices, Integer, ListOf, MapOf, Text

FIELDS = (
    Field(Text(), "A text.", default="x", aliases=("words",)).with_name("text"),
    Field(Integer(), "A number.", on="create show", secret=True).with_name("number"),
    Field(Choices("a", "b"), "A word.", option="letter").with_name("choice"),
    Field(ListOf(Record(size=Field(Integer(), "How big."))), "Things.").with_name("things"),
    Field(MapOf(Text(), Text()), "Hidden.", option=False).with_name("hidden"),
    *name_options(own=Option(Boolean(), "Its own.", default=True, env="OWN")),
)


def test_spec():
    def fallback():
        """Stands for env_fallback."""

    found = options_spec(FIELDS, fallback)
    assert found == {
        "text": {"type": "str", "aliases": ["words"], "no_log": False},
        "number": {"type": "int", "no_log": True},
        "letter": {"type": "str", "choices": ["a", "b"], "no_log": False},
        "things": {"type": "list", "elements": "dict", "no_log": False,
                   "options": {"size": {"type": "int", "no_log": False}}},
        "own": {"type": "bool", "default": True, "no_log": False, "fallback": (fallback, ["OWN"])},
    }
    assert "fallback" not in options_spec(FIELDS)["own"]


def test_documentation_fits_the_spec():
    told, used = options_documentation(FIELDS + Server.settable()), options_spec(FIELDS + Server.settable())
    assert set(told) == set(used)
    for name, option in told.items():
        for part in ("type", "elements", "choices", "default", "aliases", "required"):
            assert option.get(part) == used[name].get(part), name
    assert "The default of a new resource is V(x)" in " ".join(told["text"]["description"])
    assert "on_immutable" in " ".join(told["number"]["description"])
    assert "E(OWN)" in " ".join(told["own"]["description"])


def test_omitted_options_say_nothing():
    assert requested_fields(FIELDS, {"text": None, "letter": "b", "number": 0}) == {"number": 0, "choice": "b"}


@pytest.mark.parametrize(("params", "said"), [
    ({"text": ""}, "at.text: must have 1 to 9 characters"), ({"number": 0}, "at.number: must be from 1 to 9"),
    ({"number": 10}, "at.number: must be from 1 to 9"), ({}, None), ({"text": None, "number": None}, None),
    ({"free": "", "kind": -1, "text": "x", "number": 1}, None)])
def test_options_keep_what_they_declare(params, said):
    """Fields of kinds are the agent's to check."""
    options = name_options(text=Option(Text(1, 9), ""), number=Option(Integer(1, 9), ""), free=Option(Text(), ""),
                           kind=Field(Integer(), ""))
    if said is None:
        check_options(options, params, "at.")
        return
    with pytest.raises(InvalidField, match=said):
        check_options(options, params, "at.")


def test_client_arguments():
    defaults = {option.option: option.default for option in CONNECTION if option.default}
    found = client_arguments(dict(defaults, timeout=7, token="t"))
    assert Client(**found).endpoint == ENDPOINT and found["token"] == "t" and found["timeout"] == 7
    assert found["connect_timeout"] == 5 and found["validate_certs"] is True
