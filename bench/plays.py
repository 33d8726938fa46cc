# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures playbooks: runs of ``ansible-playbook`` as a user starts it, next to a run with an empty play."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from figures import Figure, in_turns, spread, timed
from host import FLAVOR, FOLDER, IMAGE, NETWORK, ROOT, Host

TASKS = 50
#: Tasks of the fallback to a module process, which are slow.
FEW = 10
SERVER = {"image": IMAGE, "flavor": FLAVOR, "networks": [NETWORK], "config_drive": False}


class Plays:
    """Playbooks in the folder of the benchmark, run with the development environment."""

    def __init__(self, host: Host) -> None:
        (FOLDER / "plays").mkdir(exist_ok=True)
        (FOLDER / "plays" / "ansible.cfg").touch()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MAGNETAR_"))},
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache"), "ANSIBLE_HOME": str(FOLDER / "ansible"),
            "ANSIBLE_CONFIG": str(FOLDER / "plays" / "ansible.cfg"), "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false", "ANSIBLE_NOCOLOR": "true", "LC_ALL": "C.UTF-8",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable, "MAGNETAR_ENDPOINT": host.endpoint,
            # Bytecode is kept, as that of an installation is.
            "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(FOLDER / "bytecode"),
        }  # fmt: skip

    def run(self, name: str, tasks: list[dict[str, Any]], direct: str = "always") -> float:
        """Run a playbook with *tasks*, and return the milliseconds that it takes. *direct*: the variable
        ``magnetar_direct``. End the program if the playbook fails or a task reports a change."""
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks,
                "vars": {"magnetar_direct": direct}}  # fmt: skip
        path = FOLDER / "plays" / f"{name}.yml"
        if not path.exists():
            path.write_text(yaml.safe_dump([play], sort_keys=False), encoding="utf-8")
        words = [Path(sys.executable).parent / "ansible-playbook", path]
        said: list[str] = []

        def work() -> None:
            done = subprocess.run(words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, cwd=FOLDER, check=False)  # fmt: skip
            said.append(done.stdout)
            if done.returncode or (tasks and " changed=0 " not in done.stdout):
                raise SystemExit(f"The playbook {name} did not do what it should:\n{done.stdout[-3000:]}")

        return timed(work)


def many(title: str, count: int, module: str, /, **options: Any) -> list[dict[str, Any]]:
    """Return *count* equal tasks of a *module*, with numbered names."""
    return [{"name": f"{title} {at}", module: options} for at in range(count)]


def task(host: Host, rounds: int) -> list[Figure]:
    """Measure one task on an unchanged server with direct execution. The floor is a task of set_fact, which only the
    controller does."""
    plays, server = Plays(host), host.off(50)[0]
    facts = many("fact", TASKS, "ansible.builtin.set_fact", bench="x")
    servers = many("server", TASKS, "magnetar.compute.server", name=server, **SERVER)
    taken = in_turns(rounds, {"empty play": lambda: plays.run("empty", []),
                              "set_fact": lambda: plays.run("facts", facts),
                              "server": lambda: plays.run("servers", servers)})  # fmt: skip
    # What belongs together was taken in the same round, so differences are taken within rounds.
    floor = [(a - e) / TASKS for e, a in zip(taken["empty play"], taken["set_fact"], strict=True)]
    each = [(a - e) / TASKS for e, a in zip(taken["empty play"], taken["server"], strict=True)]
    return [Figure("playbook task on an unchanged server", statistics.median(each), floor=statistics.median(floor),
                   floor_name="set_fact", ratio=1.3, spread=spread(each))]  # fmt: skip


def batch(host: Host, rounds: int) -> list[Figure]:
    """Measure a whole run with one task of fifty unchanged servers."""
    plays, names = Plays(host), host.off(50)
    tasks = [{"name": "Fifty", "magnetar.compute.server": {"servers": [{"name": name} for name in names], **SERVER}}]
    taken = in_turns(rounds, {"empty play": lambda: plays.run("empty", []),
                              "one task of 50": lambda: plays.run("batch", tasks)})  # fmt: skip
    empty, fifty = ([value / 1000 for value in values] for values in taken.values())
    return [Figure("playbook run, 50 unchanged in one task", statistics.median(fifty), "s", ratio=1.15,
                   spread=spread(fifty), floor=statistics.median(empty), floor_name="run of an empty play")]


def fallback(host: Host, rounds: int) -> list[Figure]:
    """Measure a task on an unchanged server in a module process, which Ansible starts where direct execution is not
    possible. The floor is a task of ping."""
    plays, server = Plays(host), host.off(1)[0]
    pings = many("ping", FEW, "ansible.builtin.ping")
    servers = many("server", FEW, "magnetar.compute.server", name=server, **SERVER)
    rounds = max(2, rounds // 2)
    taken = in_turns(rounds, {"empty play": lambda: plays.run("empty", []), "ping": lambda: plays.run("pings", pings),
                              "module": lambda: plays.run("modules", servers, "never")})  # fmt: skip
    floor = [(a - e) / FEW for e, a in zip(taken["empty play"], taken["ping"], strict=True)]
    each = [(a - e) / FEW for e, a in zip(taken["empty play"], taken["module"], strict=True)]
    return [Figure("the same as a module process", statistics.median(each), floor=statistics.median(floor),
                   floor_name="ping", spread=spread(each))]  # fmt: skip
