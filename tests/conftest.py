# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files a stage imports, which tests run in one process, which of these groups begin first, which deep tests run,
and how long all took.

Tests of one group run one after the other, whatever ``pytest -n`` says: those of a file, or of files that
share something.
"""

from __future__ import annotations

import functools
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
HOSTS = {"three_hosts": ("fleet/test_drain", "fleet/test_evacuate", "fleet/test_fleet", "fleet/test_fleet_disks",
                         "fleet/test_fleet_firmware", "fleet/test_fleet_hardware", "fleet/test_fleet_keys",
                         "fleet/test_fleet_volumes", "install/test_quickstart"),
         "lab1": ("install/test_agent_on_host", "install/test_hosts")}
#: Files of tests/lab with hosts of their own, or none.
ALONE = ("cloud/test_keystone", "cloud/test_site", "cloud/test_site_upgrade", "install/test_ovn_roles",
         "install/test_quickstart_network", "install/test_roles", "network/test_cloud_ovn", "network/test_ovn",
         "network/test_ovn_cluster", "network/test_ovn_gateways", "servers/test_guest", "volumes/test_ceph")
#: All other tests with guests use this machine's own libvirt, in which agents and clouds draw the same names.
LIBVIRT = "this machine's libvirt"
GROUP_OF = {f"tests/lab/{name}.py": group for group, names in HOSTS.items() for name in names} | {
    f"tests/lab/{name}.py": f"tests/lab/{name}.py" for name in ALONE}
#: Groups that begin first, since they take long: else one process is left with them while the others have nothing to
#: do. The others follow by how many tests they have. A process takes its next group before it begins the last two tests
#: of the one before.
FIRST = (
    # slow
    "tests/conformance/test_conformance.py", "tests/fuzz/test_fuzz.py", "tests/kill/test_kill.py",
    "tests/modules/test_documents.py", "tests/modules/test_integration.py", "tests/unit/control/v1/test_modules.py",
    "tests/unit/control/moves/test_crashes.py", "tests/unit/agent/migrations/test_migration_full.py",
    "tests/unit/agent/migrations/test_migration_volumes.py",
    # lab
    "tests/lab/cloud/test_site.py", LIBVIRT, "three_hosts", "tests/lab/install/test_roles.py", "lab1",
)
#: Folders and files of tests/unit/control whose tests start agents, or whole clouds, and take their time: all are slow.
SLOW = ("access/", "attachments/", "consoles/", "faults/", "guest_data/", "moves/", "native/", "shares/", "shelve/",
        "signatures/", "skew/", "soft_delete/", "volume/", "workers/", "api/test_sdk.py", "api/test_personality.py",
        "identity/test_sdk.py", "rebuild/test_volumes.py", "test_slice.py", "test_spread.py", "v1/test_anew.py",
        "v1/test_moves.py", "v1/test_shelve.py")
CONTROL = Path(__file__).parent / "unit/control"
#: Words, one of which is in each other file with tests of a mark.
WORDS = {"slow": ("slow",), "deep": ("deep", "engines")}
DEEP = pytest.StashKey[str]()
#: Unix time after which no further long test begins (`./check --within MINUTES`), and what is said of those.
UNTIL = float(os.environ.get("MAGNETAR_UNTIL") or "inf")
LATE = "the time that --within gives was over"
#: Seconds before it when tests of long groups stop to begin: one of them may take ten minutes beside others.
MARGIN = 300


def group(nodeid: str) -> str:
    """The name of a test's group."""
    file = nodeid.partition("::")[0]
    shared = file.startswith(("tests/lab/", "tests/contract/"))
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
    parser.addoption("--stage", metavar="NAME", help="do not import files that cannot have tests of this stage")
    parser.addoption("--shard", metavar="HEX", help="run one shard of the deep tests found, chosen by this number")
    parser.addoption("--turn", metavar="HEX", help="order the groups by this number, not by size: where time is up "
                                                   "before all have run, others are left out for each number")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that cannot have tests of the stage: each process would import all 500."""
    stage = config.getoption("--stage")
    if not collection_path.match("test_*.py") or stage not in {"tests", *WORDS}:
        return None
    return (is_slow(collection_path) if stage == "tests" else not can_have(collection_path, stage)) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test that would be in no stage, since its file is left out."""
    for mark, words in WORDS.items():
        assert not item.get_closest_marker(mark) or can_have(item.path, mark), (
            f"{item.nodeid} has the mark {mark}: its file must have one of the words {words}, as ./check does not "
            "import other files for that stage")


def is_slow(path: Path) -> bool:
    """Return whether all tests of a file are slow because of its folder."""
    return path.is_relative_to(CONTROL) and path.relative_to(CONTROL).as_posix().startswith(SLOW)


@functools.cache
def can_have(path: Path, mark: str) -> bool:
    """Return whether tests of a file can have a mark."""
    text = path.read_text(encoding="utf-8").casefold()
    return (mark == "slow" and is_slow(path)) or any(word in text for word in WORDS[mark])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups in order, each in its own; of deep tests one shard may be chosen."""
    for item in items:
        assert "three_hosts" not in getattr(item, "fixturenames", ()) or group(item.nodeid) == "three_hosts", (
            f"{item.nodeid} uses the fixture three_hosts: name its file in HOSTS of tests/conftest.py")
    if number := config.getoption("--shard"):
        choose(config, items, int(number, 16))
    turn = config.getoption("--turn")
    order = turned_order(items, turn) if turn else usual_order(items)
    items.sort(key=lambda item: order[file_of(item.nodeid)])


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def usual_order(items: Iterable[pytest.Item]) -> dict[str, tuple[int, int]]:
    """Return the place of each file: long groups come first, then the group with the most tests."""
    sizes = Counter(group(item.nodeid) for item in items)
    return {file: (FIRST.index(name) if name in FIRST else len(FIRST), -sizes[name])
            for file in map(file_of, (item.nodeid for item in items)) for name in [group(file)]}


def turned_order(items: Iterable[pytest.Item], turn: str) -> dict[str, tuple[int, int, int]]:
    """Return the place of each file where time may be up before all have run: other tests are left out for another
    *turn*.

    One long group keeps one process busy, another one each time. The others run the short groups meanwhile, and then
    further long ones. Guests on this machine's libvirt take longer than there is time: they always begin first, and
    with another file each time.
    """
    files = list(dict.fromkeys(file_of(item.nodeid) for item in items))
    names = {file: group(file) for file in files}
    long = sorted({name for name in names.values() if name in FIRST and name != LIBVIRT},
                  key=lambda name: drawn(turn, name))
    ranks = {LIBVIRT: 0, **dict.fromkeys(long[:1], 1), **dict.fromkeys(long[1:], 3)}
    on_libvirt = [file for file in files if names[file] == LIBVIRT]
    start = drawn(turn, LIBVIRT) % max(1, len(on_libvirt))
    places = {file: place for place, file in enumerate([*on_libvirt[start:], *on_libvirt[:start]])}
    return {file: (ranks.get(name, 2), drawn(turn, name), places.get(file, 0)) for file, name in names.items()}


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
    name = group(item.nodeid)
    until = UNTIL - (MARGIN if name in FIRST and name != LIBVIRT else 0)
    if time.time() > until and any(map(item.get_closest_marker, ("slow", "lab", "deep"))):
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
