# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of a key manager, of the embedded one and of Barbican."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from magnetar_control.services import Context, KeyManager
from magnetar_control.services.barbican import BarbicanKeys
from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_core.errors import Conflict, Forbidden, InvalidSettings, NotFound, Unavailable

from .barbican import FakeBarbican

PEM = b"-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n"
ME, YOU = Context("me", "p"), Context("you", "p", frozenset({"admin"}))


class Place(NamedTuple):
    """A key manager, and how an operator or user puts a certificate into it (returns its uuid)."""

    keys: KeyManager
    store: Callable[[bytes], str]


@pytest.fixture
def barbican() -> Iterator[FakeBarbican]:
    """One that knows a token of the service, and one of a user."""
    with FakeBarbican({"service": "service", "users": "p"}) as found:
        yield found


def tokens(*given: str) -> Callable[[bool], str]:
    """Gives the first token, and the last one where a fresh one is asked for."""
    return lambda fresh: given[-1 if fresh else 0]


@pytest.fixture(params=["embedded", "barbican"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each."""
    if request.param == "barbican":
        found: FakeBarbican = request.getfixturevalue("barbican")
        return Place(BarbicanKeys(found.url, tokens("service")), lambda payload: found.store(
            "service", payload=payload, secret_type="certificate"))

    def store(payload: bytes) -> str:
        id = str(uuid.uuid4())
        (tmp_path / f"{id}.pem").write_bytes(payload)
        (tmp_path / f"{id}.pem").chmod(0o644)
        return id

    return Place(EmbeddedKeys(tmp_path, tmp_path / "keys"), store)


def test_certificates(place: Place) -> None:
    assert place.keys.certificate(ME, place.store(PEM)) == PEM
    for id in (str(uuid.uuid4()), "no-uuid", "../keys"):
        with pytest.raises(NotFound, match="no certificate") as refusal:
            place.keys.certificate(ME, id)
        assert refusal.value.details["key"] == id


def test_a_key_is_drawn_once(place: Place) -> None:
    id, other = str(uuid.uuid4()), str(uuid.uuid4())
    drawn = place.keys.create_key(id)
    assert len(bytes.fromhex(drawn)) == 32 and place.keys.create_key(id) == drawn == place.keys.key(YOU, id)
    assert place.keys.create_key(other) != drawn


def test_a_key_like_another(place: Place) -> None:
    id, copy, none = (str(uuid.uuid4()) for _at in range(3))
    drawn = place.keys.create_key(id)
    assert place.keys.create_key(copy, like=id) == drawn
    with pytest.raises(NotFound, match=none):
        place.keys.create_key(str(uuid.uuid4()), like=none)
    place.keys.delete_key(id)
    assert place.keys.create_key(copy, like=id) == drawn == place.keys.key(ME, copy)


def test_a_key_of_a_user(place: Place) -> None:
    id, copy = str(uuid.uuid4()), str(uuid.uuid4())
    drawn = place.keys.create_key(id, owner="me")
    assert place.keys.create_key(id, owner="you") == drawn == place.keys.key(ME, id)
    assert place.keys.create_key(id, owner="me", asks=ME) == drawn
    with pytest.raises(Forbidden):
        place.keys.create_key(id, asks=YOU)
    with pytest.raises(Forbidden, match="another user's") as refusal:
        place.keys.key(YOU, id)
    assert drawn not in str(refusal.value)
    assert place.keys.create_key(copy, like=id) == drawn == place.keys.key(YOU, copy)


def test_a_key_that_is_gone(place: Place) -> None:
    id = str(uuid.uuid4())
    before = place.keys.create_key(id)
    for _at in range(2):
        place.keys.delete_key(id)
        with pytest.raises(NotFound):
            place.keys.key(ME, id)
    assert place.keys.create_key(id) != before


# Barbican ---------------------------------------------------------------------------------------------------------
def test_a_certificate_is_read_as_its_user_or_as_the_service_that_may(barbican: FakeBarbican) -> None:
    keys = BarbicanKeys(f"{barbican.url}/v1/", tokens("service"))
    id = barbican.store("p", payload=PEM.decode(), secret_type="certificate", payload_content_type="text/plain")
    assert keys.certificate(Context("me", "p", token="users"), id) == PEM
    with pytest.raises(Forbidden, match="adds it to the secret's ACL"):
        keys.certificate(ME, id)
    barbican.secrets[id]["readers"] = ("service",)
    assert keys.certificate(ME, id) == PEM


def test_nothing_but_certificates_is_read_as_one(barbican: FakeBarbican) -> None:
    """Whoever names the uuid of another secret learns nothing of it."""
    keys = BarbicanKeys(barbican.url, tokens("service"))
    key = keys.create_key(str(uuid.uuid4()))
    (id,) = barbican.secrets
    with pytest.raises(Conflict, match="no certificate: its type is opaque") as refusal:
        keys.certificate(ME, id)
    assert key not in str(refusal.value) and not any(key in one for one in barbican.asked)
    with pytest.raises(NotFound):
        keys.certificate(ME, barbican.store("service", secret_type="certificate"))  # it has no payload yet


def test_of_two_keys_that_were_made_at_once_the_first_stays(barbican: FakeBarbican) -> None:
    keys, id = BarbicanKeys(barbican.url, tokens("service")), str(uuid.uuid4())
    first = keys.create_key(id)
    barbican.store("service", name=f"magnetar-{id}", payload="00" * 32, payload_content_type="text/plain")
    barbican.store("service", name=f"magnetar-{id}-else", payload="11" * 32, payload_content_type="text/plain")
    assert keys.create_key(id) == first
    keys.delete_key(id)
    assert [one["name"] for one in barbican.secrets.values()] == [f"magnetar-{id}-else"]


def test_a_token_is_made_anew_once(barbican: FakeBarbican) -> None:
    id = str(uuid.uuid4())
    assert BarbicanKeys(barbican.url, tokens("old", "service")).create_key(id)
    with pytest.raises(Unavailable, match="refused the control plane's own token"):
        BarbicanKeys(barbican.url, tokens("old")).create_key(id)


def test_one_that_is_away(barbican: FakeBarbican) -> None:
    with FakeBarbican({}) as gone:
        url = gone.url
    with pytest.raises(Unavailable, match="key manager does not answer"):
        BarbicanKeys(url, tokens("service")).create_key(str(uuid.uuid4()))
    for bad in ("barbican:9311", "ftp://barbican"):
        with pytest.raises(InvalidSettings, match="must begin with http"):
            BarbicanKeys(bad, tokens("service"))
    with pytest.raises(InvalidSettings, match="cannot be used"):
        BarbicanKeys(url, tokens("service"), Path("/nowhere.pem"))
