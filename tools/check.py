# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the project: `./check fast` without real guests, `./check` with them. Sets up what it needs (root).

`./check` runs one shard of the stage deep, which the commit's hash chooses; `./check deep` runs all of them. `--within`
is for machines whose time is limited: what is left out then is said, and differs from commit to commit.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import layout
import machine

ROOT, BIN, SRC = machine.ROOT, machine.VENV / "bin", machine.CACHE / "src"
DURATIONS = machine.CACHE / "durations"
#: Tests of one group run one after the other (see tests/conftest.py). Those without guests wait more than they work.
PYTEST = ("python", "-m", "pytest", "-q", "--durations=30", "--color=no", "-o", "tmp_path_retention_policy=failed",
          "-n")
MANY, TWO = (os.cpu_count() or 1) + 1, 2
#: Where tests with guests stand: to look through all others takes half a minute of the CPUs.
WITH_GUESTS = ("tests/lab", "tests/contract")
#: Runs a command with a file system in memory at TMPDIR, so large that fake hosts have room for what tests ask of them.
#: Only that command sees it: it goes with the last process, however that ends.
IN_MEMORY = ("unshare", "--mount", "--propagation", "slave", "sh", "-c",
             'mount -t tmpfs -o size=256g,mode=0755 tmpfs "$TMPDIR" && exec "$@"', "sh")
#: The KiB of memory that must be free for it. Tests that pass leave a few hundred MiB there.
ROOM = 4 << 20
PIP = 'import os, sys\nos.execv(sys.executable, [sys.executable, "-m", "ensurepip", "--upgrade"])\n'


def call(*words: object, folder: Path = ROOT, **more: str) -> bool:
    """True when the command of the development environment succeeds; *more* are environment variables. Python keeps
    what it compiled, whatever the caller's environment says: else each process compiles tests and agent again."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(SRC), "LC_ALL": "C.UTF-8",
                   "ANSIBLE_COLLECTIONS_PATH": str(machine.CACHE), "PYTHONDONTWRITEBYTECODE": "", **more}
    return subprocess.run([str(word) for word in words], check=False, cwd=folder, env=environment).returncode == 0


def tests(stage: str, at_once: int, marks: str, *words: str) -> bool:
    """Run the tests with these *marks*, so many *at_once*; what each took is kept in a file of the stage's name."""
    file = DURATIONS / f"{stage}.txt"
    folders = WITH_GUESTS if stage == "lab" else ("tests",)
    with contextlib.nullcontext(((), {})) if stage in GUESTS else temporary() as (first, more):
        return call(*first, *PYTEST, at_once, "-m", marks, *words, *folders, MAGNETAR_DURATIONS=str(file), **more)


@contextlib.contextmanager
def temporary() -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """How a command gets its temporary files in memory: the words before it, and variables; nothing where there is no
    room. Agents wait for the disk at each document that they write, which takes more than half of the time of tests,
    and a third of the CPU."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        more = {"TMPDIR": folder}
        possible = roomy() and not subprocess.run(
            [*IN_MEMORY, "true"], check=False, env={**os.environ, **more}).returncode
        yield (IN_MEMORY, more) if possible else ((), {})


def roomy() -> bool:
    """Whether there is memory for the files of tests."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return any(int(line.split()[1]) > ROOM for line in lines if line.startswith("MemAvailable:"))


def commit() -> str:
    """The commit's number, in hex: it chooses one of deep's shards."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def end_by(seconds: float) -> None:
    """Let no long test begin when so many seconds have passed, and have the commit choose which come late."""
    os.environ["MAGNETAR_UNTIL"] = str(time.time() + seconds)
    for name in LONG:
        what, stage = STAGES[name]
        STAGES[name] = what, partial(stage, f"--turn={commit()}")


def sanity(*words: str) -> bool:
    """ansible-test sanity on a copy of the files, laid out as it wants a collection; *words* say which tests and files.

    The environments that it makes at its first run (two minutes) are kept in ~/.ansible/test.
    """
    stand_in = Path.home() / ".ansible/test/cache/get_pip_24_2.py"  # ansible-test would download this file
    if not stand_in.exists():
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(PIP, encoding="utf-8")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with layout.laid_out() as copy:
        return call("ansible-test", "sanity", "--local", "--requirements", "--python", version, "--color", "no", *words,
                    folder=copy)


def docs() -> bool:
    """antsibull-docs finds nothing wrong in what Galaxy will show of plugins and roles."""
    with layout.laid_out() as copy:
        return call("antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs=all",
                    "--disallow-unknown-collection-refs", copy, ANSIBLE_COLLECTIONS_PATH=str(copy.parents[2]))


def _documented(plugins: Path, folder: str, kind: str, **more: str) -> bool:
    """ansible-doc shows every plugin of a kind."""
    names = [f"magnetar.compute.{path.stem}" for path in sorted((plugins / folder).glob("[a-z]*.py"))]
    return subprocess.run([BIN / "ansible-doc", "--json", "-t", kind, *names], check=False, stdout=subprocess.DEVNULL,
                          env={**os.environ, **more}).returncode == 0


def collection() -> bool:
    """The collection builds, installs, documents every plugin and holds what installs the agent, with its SBOM."""
    with tempfile.TemporaryDirectory() as folder:
        built, elsewhere = Path(folder) / "built", {"ANSIBLE_COLLECTIONS_PATH": folder}
        if not call("python", "-m", "tools.collection", built):
            return False
        archive = next(built.glob("*.tar.gz"))
        if not call("ansible-galaxy", "collection", "install", "--offline", "-p", folder, archive, **elsewhere):
            return False
        installed = Path(folder) / "ansible_collections/magnetar/compute"
        documented = all(_documented(installed / "plugins", *kind, **elsewhere)
                         for kind in (("modules", "module"), ("inventory", "inventory")))
        wheel = Path(folder) / "wheel"
        packed = call("pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheel, installed)
        listed = call("python", "-m", "json.tool", installed / "sbom.cdx.json", os.devnull)
        return documented and packed and listed and all(
            call("python", "-m", "zipfile", "-t", path) for path in wheel.glob("magnetar-*.whl"))


STAGES: dict[str, tuple[str, Callable[[], bool]]] = {
    "ruff": ("lint", partial(call, "ruff", "check", ".")),
    "mypy": ("types of core and agent, strict", partial(call, "mypy")),
    "imports": ("which layer may import which", partial(call, "lint-imports")),
    "tests": ("unit, contract and module tests", partial(tests, "tests", MANY, "not slow and not lab and not deep")),
    "ansible-lint": ("roles and playbooks, profile production",
                     partial(call, "ansible-lint", "--offline", "--profile", "production", "roles", "playbooks")),
    "changelog": ("changelog fragments", partial(call, "antsibull-changelog", "lint")),
    "docs": ("what Galaxy shows of plugins and roles", docs),
    "sanity": ("ansible-test sanity of what Ansible loads",
               partial(sanity, *(f"--exclude={folder}/" for folder in ("agent", "bench", "control", "tests")))),
    "collection": ("the collection builds, installs and holds the agent", collection),
    "audit": ("known vulnerabilities of the locked packages; skipped where pip-audit's database cannot be reached",
              partial(call, "python", "-m", "tools.audit")),
    "pylint": ("ansible-test's pylint of agent and control plane, which the collection carries",
               partial(sanity, "--test=pylint", "agent/", "control/")),
    "slow": ("tests without guests that take long: moves, faults, crashes, kills, conformance",
             partial(tests, "slow", MANY, "slow and not deep")),
    "lab": ("tests with real guests and hosts", partial(tests, "lab", TWO, "lab and not deep")),
    "deep": ("further proofs of what others show, and what is long by nature; one shard of it unless it is named. Its "
             "first run on Ceph fetches 70 MB of packages, for hosts in containers",
             partial(tests, "deep", TWO, "deep")),
}
FAST = [name for name in STAGES if name not in ("docs", "sanity", "pylint", "slow", "lab", "deep")]
GUESTS = {"lab", "deep"}
#: Stages with tests that `--within` may leave out.
LONG = ("slow", "lab", "deep")
#: Stages that run one after the other, and those that do so beside them: tests wait for other things half of the time.
#: Last stands what keeps all CPUs busy by itself, for the others have ended by then.
TRACKS = ((("ruff",), ()),
          (("tests",), ("mypy", "imports", "ansible-lint", "changelog", "collection", "audit")),
          (("lab", "deep"), ("docs", "sanity", "pylint", "slow")))
#: How much the second ones stand behind in their turn for the CPUs (nice): guests and their hosts are waited for.
BEHIND = 5
#: Stages that ran: whether they passed, and seconds.
Ended = dict[str, tuple[bool, float]]


def run(names: list[str]) -> Ended:
    """Run the stages."""
    ended: Ended = {}
    for name in names:
        print(f"==> {name}", flush=True)
        started = time.monotonic()
        good = STAGES[name][1]()
        ended[name] = good, time.monotonic() - started
        print(f"==> {name}: {'passed' if good else 'FAILED'} ({ended[name][1]:.1f} s)", flush=True)
    return ended


@contextlib.contextmanager
def beside(names: list[str], ended: Ended) -> Iterator[None]:
    """Run stages in a process of their own beside the block; then show what they said, and add how they ended."""
    if names:
        print(f"==> {', '.join(names)}: at the same time, shown afterwards", flush=True)
    with tempfile.TemporaryFile("w+") as said:
        told, tell = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_beside, args=(names, said.fileno(), tell))
        process.start()
        tell.close()
        try:
            yield
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.terminate()
            raise
        finally:
            process.join()
            said.seek(0)
            print(said.read(), end="", flush=True)
        try:
            ended |= told.recv()
        except EOFError:  # it died
            ended |= dict.fromkeys(names, (False, 0.0))


def _beside(names: list[str], said: int, tell: multiprocessing.connection.Connection) -> None:
    os.setsid()
    os.nice(BEHIND)
    with contextlib.suppress(OSError):  # Linux may share the CPUs among sessions first
        Path("/proc/self/autogroup").write_text(str(BEHIND), encoding="ascii")
    os.dup2(said, 1)
    os.dup2(said, 2)
    tell.send(run(names))


def tracks(chosen: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Which of the chosen stages run one after the other, and which beside these."""
    for both in TRACKS:
        first, second = ([one for one in names if one in chosen] for names in both)
        if first or second:
            yield (first, second) if first else (second[-1:], second[:-1])


def work() -> int:
    """Set up, run each stage, say how it ended."""
    began = time.monotonic()
    listed = "\n".join(f"  {name:<13}{what}" for name, (what, _stage) in STAGES.items())
    parser = argparse.ArgumentParser("check", description=__doc__, epilog=f"Stages:\n{listed}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="*", choices=[[], "fast", *STAGES], help="fast, or stages by name; default: all")
    parser.add_argument("--within", metavar="MINUTES", type=float, help="begin no test of slow, lab and deep later")
    asked = parser.parse_args()
    given = asked.stage
    chosen = [name for name in STAGES if not given or name in given or ("fast" in given and name in FAST)]
    machine.need_root()
    machine.install_packages("agent", "test", *(["lab", "keystone"] if GUESTS & {*chosen} else []),
                             *(["injection"] if "deep" in given else []))
    machine.development_environment()
    if GUESTS & {*chosen}:
        machine.libvirt()
    if not given:
        STAGES["deep"] = STAGES["deep"][0], partial(STAGES["deep"][1], f"--shard={commit()}")
    if asked.within is not None:
        end_by(began + asked.within * 60 - time.monotonic())
    ended: Ended = {"set-up": (True, time.monotonic() - began)}
    for first, second in tracks(chosen):
        with beside(second, ended):
            ended |= run(first)
    failed = [name for name, (good, _seconds) in ended.items() if not good]
    if failed:
        print(f"Failed: {', '.join(failed)}. Run one alone with ./check NAME.")
    took = ", ".join(f"{name} {seconds:.0f}" for name, (_good, seconds) in ended.items())
    print(f"Seconds: {took}; in all {time.monotonic() - began:.0f}")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(machine.main(work))
