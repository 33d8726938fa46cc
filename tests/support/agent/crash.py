# SPDX-License-Identifier: GPL-3.0-or-later
"""Crashes of an agent after a given number of changes, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.fake.rbd import FakeRbdPool
from magnetar_agent.images.store import ImageStore
from magnetar_agent.reconcile import task as agent_task
from magnetar_agent.reconcile.documents import Documents
from magnetar_agent.reconcile.events import _Journal
from tests.unit.agent.conftest import Host

CHANGES = ("discard_save", "define", "undefine", "start", "shutdown", "destroy", "pause", "resume", "save",
           "make_disk", "copy_disk", "grow_disk", "make_iso", "make_network", "remove_network", "begin_copy",
           "finish_copy", "freeze", "thaw", "set_password", "inject_nmi", "make_content", "copy_into", "grow_content",
           "remove_content", "label_disk", "inject", "begin_mirror", "pivot", "end_mirror")
RBD_CHANGES = ("make", "clone", "grow", "remove", "protect", "remove_base")


#: A module or class, and the names of its functions that change something.
Changes = tuple[Any, tuple[str, ...]]


class Dead(BaseException):
    """The agent's process has ended. No code catches this exception."""


class Reaper:
    """Patches that end the agent at the change after *lives* changes: with *late* after that change is made, otherwise
    before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lives: int, late: bool,
                 more: Sequence[Changes] = ()) -> None:
        self.lives, self.late, self.dead, self.armed = lives, late, False, True
        for owner, names in (*more, (FakeHypervisor, CHANGES), (FakeRbdPool, RBD_CHANGES),
                             (Documents, ("write", "remove")),
                             (ImageStore, ("commit",)), (_Journal, ("begin", "end")), (agent_task, ("flush_file",))):
            for name in names:
                monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.armed:
                return method(*args, **kwargs)
            if self.dead:
                raise Dead
            self.lives -= 1
            if self.lives < 0 and not self.late:
                self.dead = True
                raise Dead
            found = method(*args, **kwargs)
            if self.lives < 0:
                self.dead = True
                raise Dead
            return found

        return call


class Life:
    """The life of an agent on the started *host* that ends after *number* further changes."""

    def __init__(self, host: Host, number: int, late: bool, more: Sequence[Changes] = ()) -> None:
        self.host, self.number, self.late, self.more, self.survived = host, number, late, more, False

    def ends_in(self, act: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Call *act* until the agent dies, or *act* returns (``survived``)."""
        with pytest.MonkeyPatch.context() as patch:
            reaper = Reaper(patch, self.number, self.late, self.more)
            with suppress(Dead):
                act(*args, **more)
                self.survived = True
            reaper.armed = False


def lives(folder: Path, late: bool, more_than: int = 1, most: int = 40,
          prepared: Callable[[Host], object] = lambda _host: None, more: Sequence[Changes] = (),
          **settings: Any) -> Iterator[Life]:
    """Yield agents on new hosts, each of which dies one change later than the previous one, until one survives.
    *prepared*: called with the host before its agent starts. *more*: further changes at which it may die."""
    for number in range(most):
        host = Host(folder / str(number), **settings)
        prepared(host)
        host.start()
        life = Life(host, number, late, more)
        yield life
        host.agent.close()
        if life.survived:
            assert number > more_than
            return
    pytest.fail("the story never ends")
