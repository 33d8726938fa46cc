# SPDX-License-Identifier: GPL-3.0-or-later
"""Every route of the control plane and of an agent is asked what nobody would ask, and says what is wrong with it.

No answer is 5xx but 501 and 503; each refusal says why and nothing of the inside, changes nothing, and takes little of
the processor; and when all is over there are no more threads, tasks, open files and objects than at the beginning. The
requests follow from a seed: the commit's, or MAGNETAR_FUZZ_SEED. With MAGNETAR_FUZZ_SECONDS further seeds follow for so
long.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.services.identity import passwords
from tests.support.control.engines import engines
from tests.unit.control.conftest import cluster, databases  # noqa: F401 - fixtures

from . import cloud, routes
from .agent import FakeAgent
from .asking import Asking
from .checks import LATE, LONG, TRIED, wrong
from .running import SECONDS, findings
from .sending import Got, Sent, descriptors, threads

pytestmark = pytest.mark.slow
#: Requests to each route. Each commit asks others; in deep there are more.
CLOUD, AGENT, DEEP = 10, 20, 20
#: Refused requests that are sent again to see whether they leave something behind; and how much of a kind (threads,
#: open files) there may be more at the end, as pools keep a few.
AGAIN, SPARE = 400, 8
#: Tables that count refusals: they forget them after an hour.
COUNTED = "identity_login_failures"


class Fuzz:
    """*place*: what is asked. Keeps some of the requests that were refused."""

    def __init__(self, place: Any, targets: list[routes.Target], count: int) -> None:
        self.place, self.targets, self.count = place, targets, count
        self.asking = Asking(getattr(place, "tokens", {}), place.known)
        self.refused: list[Sent] = []
        self.statuses: Counter[int] = Counter()

    def check(self, sent: Sent) -> str | None:
        """What is wrong with the answer."""
        try:
            got = self.place.ask(sent)
            self.statuses[got.status] += 1
            if 400 <= got.status < 500 and len(self.refused) < AGAIN and sent.method == "GET":
                self.refused.append(sent)
            return wrong(sent, got) or self._changed(got) or self._long(sent, got)
        except Exception as error:
            return f"is none, but {error!r}"
        finally:
            self.place.put_back()

    def _changed(self, got: Got) -> str | None:
        """Return what a refused request has changed. Neither one whose host took too long is refused, nor one whose
        caller has waited as long as it could: the action goes on."""
        if got.status < 400 or TRIED in got.content or LATE in got.content:
            return None
        more = [one for one in self.place.written() if COUNTED not in one]
        return f"is {got.status}, and changed {more}" if more else None

    def _long(self, sent: Sent, got: Got) -> str | None:
        """Whether it takes long each time."""
        if got.seconds > LONG and min(self.place.ask(sent).seconds for _time in range(2)) > LONG:
            return f"takes {got.seconds:.1f} s of the processor"
        return None

    def grown(self) -> list[str]:
        """Ask each route once, then as often as is to be; what there is more of at the end."""
        self.found = findings(self.targets, self.asking, self.check, 1)
        before = threads(), descriptors()
        self.found += findings(self.targets, self.asking, self.check, self.count, SECONDS)
        more = [
            f"{what}: {have[what]} to {count}"
            for have, now in zip(before, (threads(), descriptors()), strict=True)
            for what, count in now.items()
            if count > have[what] + SPARE
        ]
        if tasks := self.place.server.tasks():
            more.append(f"tasks: {tasks}")
        return more + self._objects()

    def _objects(self) -> list[str]:
        """Whether what is refused leaves objects behind, each time that it is asked."""
        if not self.refused:
            return ["nothing was refused"]
        counts = []
        for _time in range(5):
            for sent in self.refused:
                self.place.ask(sent)
            gc.collect()
            counts.append(len(gc.get_objects()))
        least = min(after - before for before, after in pairwise(counts))
        return [f"objects: {counts}, by {len(self.refused)} requests"] if least > len(self.refused) / 4 else []


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cheap hashes of passwords, and no log of what is refused."""
    monkeypatch.setattr(passwords, "COST", (16, 8, 1))
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with tempfile.TemporaryDirectory(prefix="mag") as folder, contextlib.closing(FakeAgent(Path(folder))) as found:
        yield found


def judged(fuzz: Fuzz) -> None:
    grown = fuzz.grown()
    print(f"{fuzz.statuses.total()} answers: {dict(fuzz.statuses.most_common())}")
    assert not fuzz.found, "\n".join(fuzz.found)
    assert not grown


@engines("fuzz, postgres")
def test_the_cloud(databases: dict[str, str], tmp_path: Path) -> None:
    with cloud.running(tmp_path / "state", databases, f"unix:{tmp_path}/none") as place:
        mounts = dict(place.server.application.mounts)
        targets = [*routes.compute(), *routes.v1(), *routes.routed(mounts)]
        judged(Fuzz(place, targets, DEEP if databases else CLOUD))


def test_an_agent(agent: FakeAgent) -> None:
    judged(Fuzz(agent, [*routes.of_agent(agent.application.api.openapi())], AGENT))
