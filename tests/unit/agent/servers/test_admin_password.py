# SPDX-License-Identifier: GPL-3.0-or-later
"""The password of a create, a rebuild or a rescue, set by the guest agent as soon as it is there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.reconcile.documents import Documents
from magnetar_agent.servers import admin_password, spec
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, NotFound
from tests.support.agent.crash import lives
from tests.support.agent.guest_data import SECRET, drive, kept
from tests.support.agent.pair import Pair
from tests.support.agent.resize import folder, image
from tests.support.waiting import eventually
from tests.unit.agent.conftest import SMALL, Host

AGENT = {"guest_agent": True}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_password, "SOON", 0.01)
    monkeypatch.setattr(admin_password, "AGAIN", 0.01)


def made(host: Host, **want: Any) -> str:
    """The uuid of a server with this password that runs, without a guest agent yet."""
    return str(host.server(admin_pass=SECRET, **{"hardware": AGENT, **want}).resource["id"])  # type: ignore[index]


def is_set(host: Host, id: str, password: str = SECRET, user: str = "root") -> None:
    """Wait until it is, and forgotten."""
    eventually(lambda: host.fake.passwords.get((id, user)) == password)
    eventually(lambda: password not in kept(host))


def looked(host: Host, id: str) -> None:
    host.settled()
    host.agent.admin_passwords._set_waiting_password(id)


def test_it_is_set_when_the_agent_comes_up(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    id = made(host)
    path = host.root / f"state/documents/server/{id}.json"
    assert SECRET in kept(host) and path.stat().st_mode & 0o777 == 0o600 and drive(host)["admin_pass"] == SECRET
    assert host.server(hardware=AGENT).steps == [] and SECRET not in str(host.show())
    host.fake.agent_comes_up(id)
    is_set(host, id)
    assert SECRET not in caplog.text
    host.fake.passwords.clear()
    host.server(power="off", hardware=AGENT)
    host.server(power="running", hardware=AGENT)
    looked(host, id)
    assert not host.fake.passwords and not host.agent.admin_passwords._pending


@pytest.mark.parametrize(("properties", "user"), [
    ({"hw_qemu_guest_agent": "yes"}, "root"), ({"hw_qemu_guest_agent": "yes", "os_admin_user": "cloud"}, "cloud"),
    ({"hw_qemu_guest_agent": "yes", "os_admin_user": "Local Admin", "os_type": "windows"}, "Local Admin"),
    ({"hw_qemu_guest_agent": "true", "os_type": "windows"}, "Administrator"), ({"os_admin_user": "cloud"}, ""),
    ({"hw_qemu_guest_agent": "no"}, ""), ({}, "")])
def test_the_image_says_whether_and_whose(host: Host, properties: dict[str, str], user: str) -> None:
    image(host, "system", **properties)
    id = made(host, image="system", hardware={}, config_drive=False)
    host.fake.agent_comes_up(id)
    if user:
        is_set(host, id, user=user)
    assert SECRET not in kept(host)
    looked(host, id)
    assert [*host.fake.passwords] == [(id, user)] * bool(user)


def test_neither_is_a_matter_of_qemus(host: Host) -> None:
    """Servers of agents that did not keep ``guest_agent: true`` run on, and whose password it is may change."""
    host.agent.admin_passwords.close()
    image(host, "system", hw_qemu_guest_agent="yes")
    id, documents = made(host, image="system", hardware={}), host.agent.host.documents
    older = documents.find("server", "web1")
    assert older is not None
    older.want["hardware"] = {}
    documents.write(older)
    host.fake.define(spec.domain_spec(host.agent.host, older))
    for hardware in ({}, {"guest_agent": True}, {"admin_user": "cloud"}):
        assert [step.verb for step in host.server(image="system", hardware=hardware).steps] in (["record"], [])
        assert host.server(image="system", hardware=hardware).steps == []
    host.fake.talking.add(id)
    host.event("change_password", "r1", password="newer")
    assert host.fake.passwords == {(id, "cloud"): "newer"}


def test_another_password_is_for_the_same_user(host: Host) -> None:
    host.agent.admin_passwords.close()
    image(host, "system", os_admin_user="cloud")
    id = made(host, image="system")
    host.fake.talking.add(id)
    host.event("change_password", "r0", password="theirs", user="root")
    assert SECRET in kept(host)  # of another user
    host.event("change_password", "r1", password="newer")
    assert host.fake.passwords[id, "cloud"] == "newer" and SECRET not in kept(host)
    looked(host, id)
    assert host.fake.passwords[id, "cloud"] == "newer"


def test_a_rebuild_and_a_rescue_have_their_own(host: Host) -> None:
    image(host, "system", hw_qemu_guest_agent="yes")
    id = made(host, image="system", hardware={})
    host.event("rebuild", "r1", "web1", image="system", admin_pass="Rebuilt-1")
    assert SECRET not in kept(host)
    host.fake.agent_comes_up(id)
    is_set(host, id, "Rebuilt-1")
    host.fake.talking.clear()
    host.ensure("server", "web1", {"rescue": {}, "admin_pass": "Rescue-1"})
    host.fake.agent_comes_up(id)
    is_set(host, id, "Rescue-1")


@pytest.mark.parametrize("again", ["rebuild", "rescue", "unrescue", "delete"])
def test_what_was_meant_for_another_system_is_not_set(host: Host, again: str) -> None:
    image(host, "system", hw_qemu_guest_agent="yes")
    id = made(host, image="system", hardware={}, **({"rescue": {}} if again == "unrescue" else {}))
    assert SECRET in kept(host)
    if again == "rebuild":
        host.event("rebuild", "r1", "web1", image="system")
    elif again == "delete":
        host.ensure("server", "web1", None)
    else:
        host.ensure("server", "web1", {"rescue": {} if again == "rescue" else None})
    assert not host.agent.admin_passwords._pending
    if again != "delete":
        host.fake.agent_comes_up(id)
        looked(host, id)
        assert not host.fake.passwords and SECRET not in kept(host)


def test_its_time_ends(host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(admin_password, "AGENT_TIMEOUT", 0.05)
    made(host)
    eventually(lambda: "web1: the password of root is not set: its guest agent was not there" in caplog.text)
    assert SECRET not in kept(host) and SECRET not in caplog.text and not host.agent.admin_passwords._pending


REFUSED = HypervisorError("libvirt could not set a password in the domain: no such user")


@pytest.mark.parametrize(("error", "said"), [
    (Conflict("No guest agent answers."), "was asked 5 times and did not answer"), (REFUSED, "no such user")])
def test_an_agent_that_does_not_do_it_is_left_alone(host: Host, caplog: pytest.LogCaptureFixture, error: Exception,
                                                    said: str) -> None:
    id = made(host)
    for _time in range(10 * admin_password.TRIES):  # one more than TRIES where somebody has the server just then
        host.fake.fail_next("set_password", error)
    host.fake.agent_comes_up(id)
    eventually(lambda: said in caplog.text)
    assert not host.fake.passwords and SECRET not in kept(host) and SECRET not in caplog.text


@pytest.mark.parametrize("error", [Conflict("No guest agent answers."), REFUSED])
def test_an_agent_that_is_slow_or_sooner_than_the_user_is_asked_again(host: Host, error: Exception) -> None:
    id = made(host)
    for _time in range(2):
        host.fake.fail_next("set_password", error)
    host.fake.agent_comes_up(id)
    is_set(host, id)


def test_guests_that_do_not_answer_come_last(host: Host) -> None:
    """Whoever has ten such guests has others wait for each of them once."""
    setter = host.agent.admin_passwords
    setter.close()
    setter._ending = False
    silent = [str(host.ensure("server", f"silent{at}", {"flavor": SMALL, "admin_pass": SECRET, "hardware": AGENT})
                  .resource["id"]) for at in range(3)]  # type: ignore[index]
    for one in silent:
        host.fake.fail_next("set_password", Conflict("No guest agent answers."))
        host.fake.talking.add(one)
        looked(host, one)
    other = made(host)
    for id in (*silent, other):
        setter._pending[id].due = 0.0
    assert setter._next() == other


def test_a_guest_that_opens_and_closes_its_channel_is_not_looked_at_each_time(
        host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are those told who wait for the host's servers."""
    setter, id, looks, told = host.agent.admin_passwords, made(host), [], []
    eventually(lambda: setter._pending[id].looked)
    monkeypatch.setattr(admin_password, "SOON", 60.0)
    monkeypatch.setattr(setter, "_set_waiting_password", looks.append)
    monkeypatch.setattr(host.agent.host.changes, "tell", told.append)
    for _time in range(100):
        host.fake.agent_comes_up(id)
    time.sleep(0.1)
    assert looks in ([], [id]) and told == [] and setter._pending[id].due > time.time() + 30


class Silent:
    """A guest agent that takes its time: until *go* is set."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None,
                 password: str = SECRET) -> None:
        self.password = password
        self.asked, self.go, self.error, self._set = threading.Event(), threading.Event(), error, host.fake.set_password
        monkeypatch.setattr(host.fake, "set_password", self)

    def __call__(self, uuid: str, user: str, password: str) -> None:
        if password == self.password:
            self.asked.set()
            assert self.go.wait(60)
            if self.error:
                raise self.error
        self._set(uuid, user, password)


def meanwhile(host: Host, what: str) -> None:
    """The server is stopped, removed or rebuilt."""
    if what == "off":
        host.server(image="system", power="off")
    elif what == "delete":
        host.ensure("server", "web1", None)
    else:
        host.event("rebuild", "r2", "web1", image="system", admin_pass="Rebuilt-1")


@pytest.mark.parametrize("what", ["off", "delete", "rebuild"])
def test_a_server_is_not_locked_while_its_guest_agent_says_nothing(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                                   what: str) -> None:
    """It is stopped at once. What the guest agent did counts for what it was asked for alone."""
    image(host, "system", hw_qemu_guest_agent="yes")
    id = made(host, image="system", hardware={})
    silent = Silent(host, monkeypatch, Conflict("No guest agent answers."))
    host.fake.agent_comes_up(id)
    assert silent.asked.wait(60)
    meanwhile(host, what)
    tries = {one.tries for one in host.agent.admin_passwords._pending.values()}
    silent.go.set()
    if what == "rebuild":
        is_set(host, id, "Rebuilt-1")
        return
    eventually(lambda: not host.agent.host.locks.held(admin_password.SETTING, id))
    looked(host, id)
    assert not host.fake.passwords and tries <= {0}
    if what == "off":  # it is not given up, as there was nothing to answer
        assert {one.tries for one in host.agent.admin_passwords._pending.values()} == {0}
        silent.error = None
        host.server(image="system", power="running")
        host.fake.agent_comes_up(id)
        is_set(host, id)


def test_the_password_that_was_asked_for_last_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is being set is waited for: the guest agent may do it at the end of its time."""
    id = made(host)
    silent = Silent(host, monkeypatch)
    host.fake.agent_comes_up(id)
    assert silent.asked.wait(60)
    other = threading.Thread(target=host.event, args=("change_password", "r1"), kwargs={"password": "newer"})
    other.start()
    eventually(lambda: host.agent.host.locks._held[admin_password.SETTING, id][1] == [2])
    silent.go.set()
    other.join(60)
    eventually(lambda: host.fake.passwords.get((id, "root")) == "newer")
    host.settled()
    looked(host, id)
    assert host.fake.passwords[id, "root"] == "newer" and SECRET not in kept(host)


@pytest.mark.parametrize("what", ["off", "delete", "rebuild"])
def test_nor_while_another_password_is_asked_for(host: Host, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Nor is the place of the operation taken."""
    image(host, "system", hw_qemu_guest_agent="yes")
    id = made(host, image="system", hardware={})
    host.agent.admin_passwords.close()
    host.fake.talking.add(id)
    silent = Silent(host, monkeypatch, Conflict("No guest agent."), "newer")
    operations, locks = host.agent.host.operations, host.agent.host.locks
    places = operations._places
    asked = operations.start("change_password", lambda operation: host.event(
        "change_password", "r1", operation=operation, password="newer"))
    assert silent.asked.wait(60)
    assert not locks.held("server", id) and operations._places == places
    meanwhile(host, what)
    silent.go.set()
    assert asked.wait(60)
    assert isinstance(asked.exception, NotFound if what == "delete" else Conflict)
    if what != "delete":
        note = host.agent.host.documents.find("server", "web1").state[admin_password.NOTE]  # type: ignore[union-attr]
        assert note["password"] == ("Rebuilt-1" if what == "rebuild" else SECRET) and admin_password.ASIDE not in note
    assert not locks._held


@pytest.mark.parametrize("does", [True, False])
def test_what_is_still_to_be_set_waits_for_what_is_asked_for_later(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                                   does: bool) -> None:
    """It is set where the guest agent does not do the other."""
    id = made(host)
    silent = Silent(host, monkeypatch, None if does else REFUSED, "newer")
    later = host.agent.host.operations.start(
        "change_password", lambda _operation: host.event("change_password", "r1", password="newer"))
    assert silent.asked.wait(60)
    host.fake.agent_comes_up(id)
    looked(host, id)
    assert not host.fake.passwords and SECRET in kept(host)
    silent.go.set()
    assert later.wait(60) and (later.error is None) is does
    is_set(host, id, "newer" if does else SECRET)
    assert SECRET not in kept(host)


def test_a_crash_while_another_password_is_asked_for(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows which the guest has: the older one is not set any more, and forgotten when its time is over."""
    id = made(host)
    host.fake.talking.add(id)
    with admin_password.override_admin_password(host.agent.host, id, None):
        documents = host.agent.host.documents
        document = documents.get("server", id)
        assert document is not None
    assert SECRET not in kept(host)
    documents.write(document)
    host.restart()
    host.fake.agent_comes_up(id)
    looked(host, id)
    assert not host.fake.passwords and SECRET in kept(host)
    document.state[admin_password.NOTE]["until"] = 0.0
    host.agent.host.documents.write(document)
    eventually(lambda: "another one was asked for" in caplog.text)
    assert SECRET not in kept(host) and not host.fake.passwords


def test_what_it_has_done_is_noted_when_the_server_is_free(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    id = made(host)
    silent = Silent(host, monkeypatch)
    host.fake.agent_comes_up(id)
    assert silent.asked.wait(60)
    with host.agent.host.locks.hold("server", id):
        silent.go.set()
        eventually(lambda: host.fake.passwords.get((id, "root")) == SECRET)
        assert SECRET in kept(host)
    is_set(host, id)


def test_nobody_is_waited_for(host: Host) -> None:
    locks = host.agent.host.locks
    with locks.hold_if_free("server", "one") as first, locks.hold_if_free("server", "one") as second:
        assert (first, second) == (True, False)
    with locks.hold("server", "one"), locks.hold_if_free("server", "one") as third:
        assert not third
    assert not locks.held("server", "one")


def test_libvirt_is_away_for_a_moment(host: Host) -> None:
    id = made(host)
    host.fake.fail_next("set_password", HypervisorDown())
    host.fake.agent_comes_up(id)
    eventually(lambda: not host.fake._failures["set_password"])
    host.fake.disconnect()
    host.fake.reconnect()
    is_set(host, id)


def test_guests_that_do_not_run_and_servers_that_others_change_wait(host: Host) -> None:
    id = made(host, power="paused")
    host.fake.agent_comes_up(id)
    looked(host, id)
    assert not host.fake.passwords
    with host.agent.host.locks.hold("server", id):
        host.fake.resume(id)
        time.sleep(0.05)
        assert not host.fake.passwords
    is_set(host, id)


@pytest.mark.parametrize("password", ["two\nlines", "\x7f"])
def test_what_cannot_be_typed_is_not_tried(host: Host, password: str) -> None:
    host.server(admin_pass=password, hardware=AGENT)
    assert admin_password.NOTE not in host.agent.host.documents.find("server", "web1").state  # type: ignore[union-attr]


def test_no_thread_turns_while_nobody_waits(host: Host) -> None:
    """Neither servers without such a password nor those that wait for their agent are looked at again and again."""
    setter, rounds = host.agent.admin_passwords, [0]
    look = setter._set_waiting_password

    def counted(id: str) -> None:
        rounds[0] += 1
        look(id)

    setter._set_waiting_password = counted  # type: ignore[method-assign]
    for number in range(5):
        host.ensure("server", f"idle{number}", {"flavor": SMALL, "admin_pass": SECRET})
    id = made(host)
    eventually(lambda: rounds[0] > 0)
    time.sleep(0.2)
    before = rounds[0]
    time.sleep(0.2)
    assert rounds[0] == before < 20 and [*setter._pending] == [id]


def test_it_goes_along_when_the_server_moves(pair: Pair) -> None:
    id = pair.make(admin_pass=SECRET, hardware=AGENT)
    pair.migrate(type="live")
    two = pair.two
    two.fake.agent_comes_up(id)
    eventually(lambda: two.fake.passwords.get((id, "root")) == SECRET)
    eventually(lambda: admin_password.NOTE not in two.agent.host.documents.get("server", id).state)


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("what", ["create", "rescue", "rebuild"])
def test_death_at_every_change(tmp_path: Path, what: str, late: bool) -> None:
    """Whatever the drive says is set, also where the agent died before the guest's came up."""
    for life in lives(tmp_path, late):
        host = life.host
        image(host, "system", hw_qemu_guest_agent="yes")
        if what != "create":
            host.server(image="system")
        life.ends_in(_ask, host, what)
        host.restart()
        _ask(host, what)
        host.fake.agent_comes_up(host.show()["id"])
        is_set(host, host.show()["id"])
        assert drive(host, name="rescue.config.iso" if what == "rescue" else "config.iso")["admin_pass"] == SECRET


def _ask(host: Host, what: str) -> None:
    if what == "rebuild":
        host.event("rebuild", "r1", "web1", image="system", admin_pass=SECRET)
    elif what == "create" or not (folder(host) / "rescue.config.iso").exists():
        host.server(image="system", admin_pass=SECRET, **({"rescue": {}} if what == "rescue" else {}))


@pytest.mark.parametrize("late", [True, False])
def test_death_while_it_is_set(tmp_path: Path, late: bool) -> None:
    """Before or after the guest has it, and before or after it is forgotten: then all is as after one time."""
    for life in lives(tmp_path, late, most=3):
        host = life.host
        host.agent.admin_passwords.close()
        id = made(host)
        host.fake.talking.add(id)
        life.ends_in(looked, host, id)
        had = host.fake.passwords
        host.restart()
        host.fake.passwords.update(had)
        host.fake.agent_comes_up(id)
        is_set(host, id)


def test_a_full_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set, and the note is removed when there is room again."""
    monkeypatch.setattr(admin_password, "LATER", 0.01)
    id, write = made(host), Documents.write

    def full(documents: Documents, document: Any, durable: bool = True) -> None:
        raise admin_password.MagnetarError("No room.")

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "write", full)
        host.fake.agent_comes_up(id)
        eventually(lambda: host.fake.passwords)
    assert SECRET in kept(host) and Documents.write is write
    is_set(host, id)
