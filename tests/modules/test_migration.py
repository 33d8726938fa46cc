# SPDX-License-Identifier: GPL-3.0-or-later
"""migration and migration_info between two agents over TLS, on fake hosts; and what their pages show."""

from __future__ import annotations

import importlib

import pytest
import yaml

from tests.support.agent.pair import WAY
from tests.support.modules.documents import fences, run
from tests.support.modules.migration import endpoint, go, pair  # noqa: F401

from .conftest import COLLECTION, ROOT

pytestmark = pytest.mark.slow
PAGES = ("migrate-a-server-live", "migrate-a-busy-server", "abort-a-migration")
PLAYS = [yaml.safe_load(text) for page in PAGES for text in fences(f"docs/howto/{page}.md", "yaml")]


def test_five_steps(pair, go):
    """Check, run, run again, check again, back; what check mode predicts is what happens."""
    there = {"server": "web1", "destination": endpoint(pair.two)}
    predicted = go("migration", check=True, **there)
    assert predicted["changed"] and predicted["actions"] == WAY
    assert predicted["diff"]["before"] == {"host": "kvm1"} and predicted["diff"]["after"] == {"host": "kvm2"}
    pair.check(pair.id, pair.one)
    done = go("migration", **there)
    assert done["changed"] and done["actions"] == WAY and done["diff"] == predicted["diff"]
    assert done["server"]["id"] == pair.id and done["server"]["host"] == "kvm2"
    assert done["server"]["status"] == "ACTIVE" and done["migration"]["status"] == "completed"
    pair.check(pair.id, pair.two)
    for check in (False, True):
        again = go("migration", check=check, **there)
        assert not again["changed"] and again["actions"] == [] and again["server"]["host"] == "kvm2"
        assert again["diff"]["before"] == again["diff"]["after"] == {"host": "kvm2"}
    back = go("migration", at=pair.two, server=pair.id, destination=endpoint(pair.one), type="cold")
    assert back["changed"] and back["server"]["host"] == "kvm1"
    pair.check(pair.id, pair.one)


def test_info(pair, go):
    assert go("migration_info")["migrations"] == []
    go("migration", server="web1", destination=endpoint(pair.two))
    for host, side in ((pair.one, "source"), (pair.two, "target")):
        (found,) = go("migration_info", at=host, name="web1", filters={"side": side})["migrations"]
        assert (found["server"], found["status"], found["progress"]) == (pair.id, "completed", None)
        assert go("migration_info", at=host, filters={"status": "running"})["migrations"] == []
    assert go("migration_info", fields=["status"])["migrations"] == [{"status": "completed"}]


def test_abort(pair, go):
    """Of nothing it changes nothing; of an attempt that failed it removes what is left."""
    absent = {"server": "web1", "destination": endpoint(pair.two), "state": "absent"}
    assert not go("migration", **absent)["changed"]
    pair.one.fake.fail_next("migrate", RuntimeError("no"))
    assert go("migration", server="web1", destination=endpoint(pair.two))["failed"]
    assert go("migration", check=True, **absent)["actions"] == ["abort", "abort"]
    done = go("migration", **absent)
    assert done["changed"] and done["actions"] == ["abort", "abort"] and done["server"]["host"] == "kvm1"
    pair.check(pair.id, pair.one)
    assert not go("migration", **absent)["changed"]


@pytest.mark.parametrize(("options", "code", "words"), [
    ({"server": "web9"}, "not-found", "no server 'web9', neither on kvm1 nor on kvm2"),
    ({"bandwidth": 0}, "invalid-field", "bandwidth"),
    ({"time_limit": 0}, "invalid-field", "time_limit"),
    ({"destination": "https://127.0.0.1:1"}, "unreachable", "Cannot reach the agent at https://127.0.0.1:1"),
    ({"destination": "kvm2"}, "invalid-field", "destination"),
    ({"destination_address": "192.0.2.1"}, "unreachable", "kvm2 at 192.0.2.1"),
])
def test_refused(pair, go, monkeypatch, options, code, words):
    """Nothing is changed, and the error has a code for programs."""
    monkeypatch.setattr("magnetar_agent.link.CONNECT", 0.3)
    client = importlib.import_module(f"{COLLECTION}.plugins.module_utils.core.http.client")
    monkeypatch.setattr(client, "RETRY_FOR", 0.2)
    for check in (True, False):
        answer = go("migration", check=check, **{"server": "web1", "destination": endpoint(pair.two), **options})
        assert answer["failed"] and words in answer["msg"], answer
        assert answer["error"]["code"] == code
    pair.check(pair.id, pair.one)
    assert go("migration_info")["migrations"] == []


def test_the_server_is_there_already(pair, go):
    """Whichever of the two is asked first."""
    answer = go("migration", server="web1", destination=endpoint(pair.one), at=pair.two)
    assert not answer["changed"] and answer["server"]["host"] == "kvm1"


@pytest.mark.parametrize("number", range(len(PLAYS)))
def test_plays_of_the_pages(pair, tmp_path, number):
    """With the test's hosts in place of its own."""
    text = yaml.safe_dump(PLAYS[number])
    for name, host in (("kvm1", pair.one), ("kvm2", pair.two)):
        text = text.replace(f"https://{name}.example.org", endpoint(host))
    text = text.replace("/home/me/magnetar-pki/clients", str(pair.root / "pki"))
    text = text.replace("/home/me/magnetar-pki", str(pair.root / "pki")).replace("db1", "web1")
    (tmp_path / "home/me").mkdir(parents=True)
    running = type("None", (), {"endpoint": "", "socket": ""})
    said = run((tmp_path, running), text)
    assert ("changed=1" in said) is ("state: absent" not in text)


def test_the_pages_tell_every_option():
    text = "".join((ROOT / f"docs/howto/{page}.md").read_text() for page in PAGES)
    for name in ("max_downtime", "bandwidth", "auto_converge", "time_limit", "on_time_limit", "timeout", "post_copy",
                 "destination_address", "state: absent"):
        assert f"`{name}`" in text, name
