# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tests run in one process, which of these groups begin first, which deep tests run, and how long all took.

Tests of one group run one after the other, whatever ``pytest -n`` says: those of a file, or of files that
share something.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

pytest.register_assert_rewrite("tests.support")
#: Files of tests/lab whose tests share hosts in containers, by the hosts' name.
HOSTS = {"three_hosts": ("test_drain", "test_evacuate", "test_fleet", "test_fleet_disks", "test_fleet_firmware",
                         "test_fleet_hardware", "test_fleet_keys", "test_fleet_volumes", "test_quickstart"),
         "lab1": ("test_agent_on_host", "test_hosts")}
#: Files of tests/lab with hosts of their own, or none.
ALONE = ("test_ceph", "test_cloud_ovn", "test_guest", "test_keystone", "test_ovn", "test_ovn_cluster",
         "test_ovn_gateways", "test_ovn_roles", "test_quickstart_network", "test_roles", "test_site",
         "test_site_upgrade")
#: All other tests with guests use this machine's own libvirt, in which agents and clouds draw the same names.
LIBVIRT = "this machine's libvirt"
GROUP_OF = {f"tests/lab/{name}.py": group for group, names in HOSTS.items() for name in names}
#: Groups that begin first, since they take long: else one process is left with them while the others have nothing to
#: do. The others follow by how many tests they have. A process takes its next group before it begins the last two tests
#: of the one before.
FIRST = (
    # slow
    "tests/conformance/test_conformance.py", "tests/fuzz/test_fuzz.py", "tests/kill/test_kill.py",
    "tests/modules/test_documents.py", "tests/unit/control/v1/test_modules.py",
    "tests/unit/control/moves/test_crashes.py", "tests/unit/agent/migrations/test_migration_full.py",
    "tests/unit/agent/migrations/test_migration_volumes.py",
    # lab
    "tests/lab/test_site.py", LIBVIRT, "three_hosts", "tests/lab/test_roles.py", "lab1",
)
DEEP = pytest.StashKey[str]()
#: Unix time after which no further long test begins (`./check --within MINUTES`), and what is said of those.
UNTIL = float(os.environ.get("MAGNETAR_UNTIL") or "inf")
LATE = "the time that --within gives was over"


def group(nodeid: str) -> str:
    """The name of a test's group."""
    file = nodeid.partition("::")[0]
    shared = file.startswith(("tests/lab/", "tests/contract/")) and Path(file).stem not in ALONE
    return GROUP_OF.get(file, LIBVIRT if shared else file)


class ByGroup(LoadScopeScheduling):
    """Each group goes to one process. (``--dist loadgroup`` does not work with pytest 9.2: it marks tests by an
    attribute that they no longer have, and spreads them all.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """Share the tests among processes by group, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return ByGroup(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let one shard of the deep tests be chosen, and the order of the groups."""
    parser.addoption("--shard", metavar="HEX", help="run one shard of the deep tests found, chosen by this number")
    parser.addoption("--turn", metavar="HEX", help="order the groups that are not long by this number, not by size: "
                                                   "where time is up before all have run, others are left out each day")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long groups come first, each in its order; of deep tests one shard may be chosen."""
    for item in items:
        assert "three_hosts" not in getattr(item, "fixturenames", ()) or group(item.nodeid) == "three_hosts", (
            f"{item.nodeid} uses the fixture three_hosts: name its file in HOSTS of tests/conftest.py")
    if number := config.getoption("--shard"):
        choose(config, items, int(number, 16))
    sizes = Counter(group(item.nodeid) for item in items)
    turn = config.getoption("--turn")
    order = {name: (FIRST.index(name) if name in FIRST else len(FIRST), drawn(turn, name) if turn else -size)
             for name, size in sizes.items()}
    items.sort(key=lambda item: order[group(item.nodeid)])


def drawn(number: str, name: str) -> int:
    """Return the place of a group in the order that *number* stands for."""
    return int.from_bytes(hashlib.sha256(f"{number} {name}".encode()).digest()[:8])


def choose(config: pytest.Config, items: list[pytest.Item], number: int) -> None:
    """Keep one shard of the deep tests, and say which."""
    shards: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("deep"):
            shards[mark.kwargs["shard"]].append(item)
    if not shards:
        return
    chosen = sorted(shards)[number % len(shards)]
    left = {name: found for name, found in sorted(shards.items()) if name != chosen}
    out = [item for found in left.values() for item in found]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    config.stash[DEEP] = (
        f"Deep: the shard {chosen!r} ({len(shards[chosen])}) was run. Left out: "
        f"{', '.join(f'{name!r} ({len(found)})' for name, found in left.items())}. `./check deep` runs all of them.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a long test, before its fixtures are set up, when there is no time left."""
    if time.time() > UNTIL and any(map(item.get_closest_marker, ("slow", "lab", "deep"))):
        pytest.skip(LATE)


def pytest_runtest_logstart() -> None:
    """What was worked before is no test's."""
    _worked()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the CPU seconds of a setup, test or teardown."""
    report = yield
    report.user_properties.append(("cpu", _worked()))
    return report


def _worked(before: list[float] = [0.0]) -> float:  # noqa: B006
    """CPU seconds since the last call, of this process and of the children that it has waited for."""
    now = sum(os.times()[:4])
    worked, before[0] = now - before[0], now
    return worked


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests tells the first one which shard it was; all say the same."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deep"] = session.config.stash.get(DEEP, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear it."""
    if said := getattr(node, "workeroutput", {}).get("deep"):
        node.config.stash[DEEP] = said


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests were left out; write into the file MAGNETAR_DURATIONS how long all others took."""
    if hasattr(config, "workeroutput"):
        return
    if said := config.stash.get(DEEP, ""):
        terminalreporter.write_line(said)
    late = Counter(one.nodeid.partition("::")[0] for one in terminalreporter.stats.get("skipped", ())
                   if LATE in str(one.longrepr))
    if late:
        terminalreporter.write_line(f"Left out, since {LATE}: {late.total()} tests of "
                                    f"{', '.join(sorted(late))}. Run their stage by its name.")
    if path := os.environ.get("MAGNETAR_DURATIONS"):
        reports = [one for found in terminalreporter.stats.values() for one in found if hasattr(one, "duration")]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("".join(f"{line}\n" for line in times(reports)), encoding="utf-8")
        terminalreporter.write_line(f"Seconds of each file, and of what took one or more: {path}")


def times(reports: Iterable[Any]) -> list[str]:
    """Lines of seconds, and of the CPU's among them: those of each file, then of its tests, setups and teardowns."""
    whole: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    long = []
    for one in reports:
        # A report holds what was noted for the ones before it, too.
        worked = [seconds for name, seconds in one.user_properties if name == "cpu"][-1:] or [0.0]
        took = [one.duration, *worked]
        file = one.nodeid.partition("::")[0]
        whole[file] = [sum(two) for two in zip(whole[file], took, strict=True)]
        if one.duration >= 1:
            long.append((took, f"{one.when:<8} {one.nodeid}"))
    files = sorted(((took, name) for name, took in whole.items()), reverse=True)
    return [f"{took[0]:8.1f} {took[1]:8.1f} {what}" for took, what in [*files, *sorted(long, reverse=True)]]
