# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to a cloud while people use it: a seed draws what, to which part, and for how long."""

from __future__ import annotations

import random
import threading

from .world import World

#: Seconds between two troubles; of a short one; of one in which leases run out.
BETWEEN, SHORT, LONG = (1.0, 4.0), (0.5, 4.0), (14.0, 18.0)


class Trouble(threading.Thread):
    """Makes trouble until ``end``; ``told`` says which."""

    def __init__(self, world: World, seed: str) -> None:
        super().__init__(daemon=True)
        self.world, self.random, self.told = world, random.Random(f"{seed} trouble"), list[str]()
        self.failed: BaseException | None = None
        self._over = threading.Event()
        roles, hosts = list(world.roles), list(world.hosts)
        #: What may happen, each as often as it stands here.
        self.choices = [*(("kill", name) for name in roles * 2 + hosts), *(("stop", name) for name in roles + hosts),
                        *(("hang", name) for name in hosts * 2),
                        *[("cut", "database")] * 2, *[("fill", "disk")] * (2 * world.mounted),
                        *[("freeze", "database")] * (2 * (world.engine == "postgres"))]

    def run(self) -> None:
        try:
            while not self._over.wait(self.random.uniform(*BETWEEN)):
                self.world.until_open()  # a slow machine has the time that it needs to start what was killed
                self._once(*self.random.choice(self.choices))
        except BaseException as error:
            self.failed = error

    def _once(self, what: str, whom: str) -> None:
        seconds = self.random.choice((0.0, self.random.uniform(*SHORT)))
        if what in ("stop", "hang"):
            seconds = self.random.uniform(*(LONG if self.random.random() < 0.15 else SHORT))
        self.told.append(f"{what} {whom} {seconds:.1f}")
        world = self.world
        if what in ("kill", "stop"):
            getattr(world, what)(whom, seconds)
        elif what == "hang":
            world.hang(whom, max(seconds, 0.5), self.random)
        else:
            getattr(world, what)(max(seconds, 0.5))

    def end(self) -> None:
        """No more; all goes on."""
        self._over.set()
        self.join()
        self.world.resume()
        assert self.failed is None, self.failed
        assert self.told
