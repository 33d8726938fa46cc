# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the project: `./check fast` without real guests, `./check` with them. Sets up everything it needs (root).

`./check` runs one shard of the stage deep, chosen by the commit's hash; `./check deep` runs all of them. `--within` is
for machines with limited time: it reports the tests left out, which differ from commit to commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
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
import tutorials

ROOT, BIN, SRC = machine.ROOT, machine.VENV / "bin", machine.CACHE / "src"
DURATIONS = machine.CACHE / "durations"
#: Tests of one group run one after the other (see tests/conftest.py). Tests without guests wait more than they work.
PYTEST = ("python", "-m", "pytest", "-q", "--durations=30", "--color=no", "-o", "tmp_path_retention_policy=failed",
          "-n")
MANY, TWO = (os.cpu_count() or 1) + 1, 2
#: Folders of tests with guests: collecting all others takes half a minute of the CPUs.
WITH_GUESTS = ("tests/lab", "tests/contract")
#: Runs a command with a file system in memory at TMPDIR, large enough for fake hosts to have the room that tests
#: expect. Only that command sees it, and it vanishes with the last process, however that ends.
IN_MEMORY = ("unshare", "--mount", "--propagation", "slave", "sh", "-c",
             'mount -t tmpfs -o size=256g,mode=0755 tmpfs "$TMPDIR" && exec "$@"', "sh")
#: KiB of memory that must be free for it. Passing tests leave a few hundred MiB there.
ROOM = 4 << 20
#: Tests of a stage that may fail beside others and pass alone. More are a fault.
UNSTEADY = 4
PIP = 'import os, sys\nos.execv(sys.executable, [sys.executable, "-m", "ensurepip", "--upgrade"])\n'


def run_command(*arguments: object, folder: Path = ROOT, **more: str) -> bool:
    """Run the command of the development environment in *folder*; return whether it succeeds. *more*: environment
    variables. Python always keeps compiled files, because otherwise each process would compile tests and agent again.
    """
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(SRC), "LC_ALL": "C.UTF-8",
                   "ANSIBLE_COLLECTIONS_PATH": str(machine.CACHE), "PYTHONDONTWRITEBYTECODE": "", **more}
    return subprocess.run([str(argument) for argument in arguments], check=False, cwd=folder,
                          env=environment).returncode == 0


def run_tests(stage: str, at_once: int, marks: str, *words: str) -> bool:
    """Run the tests with these *marks*, *at_once* at a time, and return whether they pass. A file named after the stage
    stores their durations. Tests that fail while others run are run once more, alone."""
    file, cache = DURATIONS / f"{stage}.txt", machine.CACHE / f"pytest-{stage}"
    folders = WITH_GUESTS if stage == "lab" else ("tests",)
    shutil.rmtree(cache, ignore_errors=True)
    with contextlib.nullcontext(((), {})) if stage in GUESTS else temporary_files() as (first, more):
        passed = run_command(*first, *PYTEST, at_once, "-o", f"cache_dir={cache}", "-m", marks, f"--stage={stage}",
                             *words, *folders, MAGNETAR_DURATIONS=str(file), **more)
        return passed or run_failed_alone(cache, *first, **more)


def run_failed_alone(cache: Path, *first: str, **more: str) -> bool:
    """Run the tests that failed once more, one at a time, print their names, and return whether they pass now. Such
    tests depend on the speed of their machine. *cache*: pytest's cache folder, which has their names. *first*: words
    before the command; *more*: environment variables. Return False immediately if many tests failed, or if pytest
    itself failed."""
    try:
        failed = sorted(json.loads((cache / "v/cache/lastfailed").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return False
    if not failed or len(failed) > UNSTEADY:
        return False
    print(f"==> {len(failed)} failed beside others, once more alone: {' '.join(failed)}", flush=True)
    if not run_command(*first, *PYTEST, 0, "-o", f"cache_dir={cache}", *failed, MAGNETAR_UNTIL="", **more):
        return False
    print(f"==> UNSTEADY, passed alone: {' '.join(failed)}. Mend what depends on the machine's speed.", flush=True)
    return True


@contextlib.contextmanager
def temporary_files() -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield words to put before a command, and environment variables, that put its temporary files into memory; both
    are empty if the machine has too little memory. Agents wait for the disk whenever they write a document, which takes
    more than half of the time of tests, and a third of their CPU time."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        more = {"TMPDIR": folder}
        possible = has_memory() and not subprocess.run(
            [*IN_MEMORY, "true"], check=False, env={**os.environ, **more}).returncode
        yield (IN_MEMORY, more) if possible else ((), {})


def has_memory() -> bool:
    """Return whether there is enough free memory for the temporary files of tests."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return any(int(line.split()[1]) > ROOM for line in lines if line.startswith("MemAvailable:"))


def commit_hash() -> str:
    """Return the commit's hash in hex. It decides which shard of the stage deep runs."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def limit_tests(seconds: float) -> None:
    """Make the stages start no long test after *seconds*. The commit's hash decides which tests come first, and which
    last; for one commit in four, the stage deep comes before lab, and takes all remaining time.
    """
    os.environ["MAGNETAR_UNTIL"] = str(time.time() + seconds)
    turn = commit_hash()
    for name in LONG:
        description, stage = STAGES[name]
        STAGES[name] = description, partial(stage, f"--turn={turn}")
    first, second = TRACKS[-1]
    if int(turn[:2], 16) % 4 == 0:  # the shard follows from the last digits
        TRACKS[-1] = first[::-1], second


def ansible_sanity(*words: str) -> bool:
    """Run ansible-test sanity on a copy of the files in a collection's layout; *words*: arguments that select tests and
    files.

    Its first run makes environments (two minutes), which stay in ~/.ansible/test.
    """
    stand_in = Path.home() / ".ansible/test/cache/get_pip_24_2.py"  # ansible-test would download this file
    if not stand_in.exists():
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(PIP, encoding="utf-8")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with layout.collection_copy() as copy:
        return run_command("ansible-test", "sanity", "--local", "--requirements", "--python", version, "--color", "no",
                           *words, folder=copy)


def lint_collection_docs() -> bool:
    """Run antsibull-docs on Galaxy's pages of plugins and roles. Return whether it finds no error. Its rstcheck is left
    out: the site has the same pages, and Sphinx reads them there.
    """
    with layout.collection_copy() as copy:
        return run_command("antsibull-docs", "lint-collection-docs", "--plugin-docs", "--skip-rstcheck",
                           "--validate-collection-refs=all", "--disallow-unknown-collection-refs", copy,
                           ANSIBLE_COLLECTIONS_PATH=str(copy.parents[2]))


def build_docs() -> bool:
    """Return whether the collection's documentation has no error, and the site builds without a warning."""
    return lint_collection_docs() and run_command("python", "-m", "tools.docsite")


def _documented(plugins: Path, folder: str, kind: str, **more: str) -> bool:
    """Return whether ansible-doc shows every plugin of this *kind*, such as module or lookup, in *folder* of *plugins*.
    *more*: environment variables."""
    names = [f"magnetar.compute.{path.stem}" for path in sorted((plugins / folder).glob("[a-z]*.py"))]
    return subprocess.run([BIN / "ansible-doc", "--json", "-t", kind, *names], check=False, stdout=subprocess.DEVNULL,
                          env={**os.environ, **more}).returncode == 0


def check_collection() -> bool:
    """Return whether a release builds, and its collection installs, documents every plugin, and contains the agent's
    package and SBOM.
    """
    with tempfile.TemporaryDirectory() as folder:
        built, elsewhere = Path(folder) / "built", {"ANSIBLE_COLLECTIONS_PATH": folder}
        if not run_command("python", "-m", "tools.release", "--rehearse", built):
            return False
        archive = next(built.glob("magnetar-compute-*.tar.gz"))
        if not run_command("ansible-galaxy", "collection", "install", "--offline", "-p", folder, archive, **elsewhere):
            return False
        installed = Path(folder) / "ansible_collections/magnetar/compute"
        documented = all(_documented(installed / "plugins", *kind, **elsewhere)
                         for kind in (("modules", "module"), ("inventory", "inventory")))
        wheel = Path(folder) / "wheel"
        packed = run_command("pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheel,
                             installed)
        listed = run_command("python", "-m", "json.tool", installed / "sbom.cdx.json", os.devnull)
        return documented and packed and listed and all(
            run_command("python", "-m", "zipfile", "-t", path) for path in wheel.glob("magnetar-*.whl"))


STAGES: dict[str, tuple[str, Callable[[], bool]]] = {
    "ruff": ("lint", partial(run_command, "ruff", "check", ".")),
    "mypy": ("types of core and agent, strict", partial(run_command, "mypy")),
    "imports": ("which layer may import which", partial(run_command, "lint-imports")),
    "tests": ("unit, contract and module tests", partial(run_tests, "tests", MANY,
                                                         "not slow and not lab and not deep")),
    "ansible-lint": ("roles and playbooks, profile production",
                     partial(run_command, "ansible-lint", "--offline", "--profile", "production", "roles",
                             "playbooks")),
    "changelog": ("changelog fragments, and the release notes that they make",
                  partial(run_command, "python", "-m", "tools.release_notes", "--check")),
    "docs": ("what Galaxy shows of plugins and roles; the documentation site, in .cache/site", build_docs),
    "sanity": ("ansible-test sanity of what Ansible loads; its test of fragments is the stage changelog",
               partial(ansible_sanity, "--skip-test=changelog",
                       *(f"--exclude={folder}/" for folder in ("agent", "bench", "control", "tests")))),
    "collection": ("a release builds; its collection installs and holds the agent", check_collection),
    "audit": ("known vulnerabilities of the locked packages; skipped where pip-audit's database cannot be reached",
              partial(run_command, "python", "-m", "tools.audit")),
    "pylint": ("ansible-test's pylint of agent and control plane, which the collection carries",
               partial(ansible_sanity, "--test=pylint", "agent/", "control/")),
    "slow": ("tests without guests that take long: moves, faults, crashes, kills, conformance",
             partial(run_tests, "slow", MANY, "slow and not deep")),
    "lab": ("tests with real guests and hosts", partial(run_tests, "lab", TWO, "lab and not deep")),
    "deep": ("further proofs, and tests that take long; one shard unless it is named. The first run on Ceph fetches "
             "70 MB of packages",
             partial(run_tests, "deep", TWO, "deep")),
    "tutorials": ("the commands of the tutorials, which set up this machine and empty it again; only by name",
                  tutorials.run_tutorials),
}
#: Stages that run only when they are named.
NAMED = ("tutorials",)
FAST = [name for name in STAGES if name not in ("docs", "sanity", "pylint", "slow", "lab", "deep", *NAMED)]
GUESTS = {"lab", "deep"}
#: Stages with tests that `--within` may leave out.
LONG = ("slow", "lab", "deep")
#: Stages that run one after the other, and stages that do so in parallel to them: tests wait half of the time. The last
#: one keeps all CPUs busy by itself, as the others have ended by then.
TRACKS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (NAMED, ()),
    (("ruff",), ()),
    (("tests",), ("mypy", "imports", "ansible-lint", "changelog", "collection", "audit")),
    (("lab", "deep"), ("docs", "sanity", "pylint", "slow"))]
#: Increase of the nice value of the parallel ones: guests and their hosts come first.
BEHIND = 5
#: Stages that ran: whether they passed, and seconds.
Ended = dict[str, tuple[bool, float]]


def run_stages(names: list[str]) -> Ended:
    """Run the stages in order. Return, by stage, whether it passed and its seconds."""
    ended: Ended = {}
    for name in names:
        print(f"==> {name}", flush=True)
        started = time.monotonic()
        good = STAGES[name][1]()
        ended[name] = good, time.monotonic() - started
        print(f"==> {name}: {'passed' if good else 'FAILED'} ({ended[name][1]:.1f} s)", flush=True)
    return ended


@contextlib.contextmanager
def run_beside(names: list[str], ended: Ended) -> Iterator[None]:
    """Within the context, run the stages *names* in a separate process, in parallel. Then print their output, and add
    their outcomes to *ended*.
    """
    if names:
        print(f"==> {', '.join(names)}: at the same time, shown afterwards", flush=True)
    with tempfile.TemporaryFile("w+") as output:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_beside, args=(names, output.fileno(), sender))
        process.start()
        sender.close()
        try:
            yield
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.terminate()
            raise
        finally:
            process.join()
            output.seek(0)
            print(output.read(), end="", flush=True)
        try:
            ended |= receiver.recv()
        except EOFError:  # the process died
            ended |= dict.fromkeys(names, (False, 0.0))


def _beside(names: list[str], output: int, sender: multiprocessing.connection.Connection) -> None:
    os.setsid()
    os.nice(BEHIND)
    with contextlib.suppress(OSError):  # Linux may share the CPUs among sessions first
        Path("/proc/self/autogroup").write_text(str(BEHIND), encoding="ascii")
    os.dup2(output, 1)
    os.dup2(output, 2)
    sender.send(run_stages(names))


def split_tracks(chosen: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Divide the *chosen* stages into groups, in order. Yield for each group the stages that run one after the other,
    and the stages that run in parallel to these."""
    for both in TRACKS:
        first, second = ([name for name in names if name in chosen] for names in both)
        if first or second:
            yield (first, second) if first else (second[-1:], second[:-1])


def check_command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    listed = "\n".join(f"  {name:<13}{description}" for name, (description, _stage) in STAGES.items())
    parser = argparse.ArgumentParser("check", description=__doc__, epilog=f"Stages:\n{listed}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="*", choices=[[], "fast", *STAGES],
                        help=f"fast, or stages by name; default: all but {', '.join(NAMED)}")
    parser.add_argument("--within", metavar="MINUTES", type=float, help="start no test of slow, lab and deep later "
                        "than this")
    return parser


def run_checks() -> int:
    """Set up the machine, run each stage, report the outcomes."""
    began = time.monotonic()
    options = check_command_line().parse_args()
    stages = options.stage
    chosen = [name for name in STAGES if name in stages or ("fast" in stages and name in FAST)
              or (not stages and name not in NAMED)]
    machine.need_root()
    machine.install_packages("agent", "test", *(["lab", "keystone"] if GUESTS & {*chosen} else []),
                             *(["injection"] if "deep" in stages else []))
    machine.development_environment()
    if GUESTS & {*chosen}:
        machine.start_libvirt()
    if not stages:
        STAGES["deep"] = STAGES["deep"][0], partial(STAGES["deep"][1], f"--shard={commit_hash()}")
    if options.within is not None:
        limit_tests(began + options.within * 60 - time.monotonic())
    ended: Ended = {"set-up": (True, time.monotonic() - began)}
    for first, second in split_tracks(chosen):
        with run_beside(second, ended):
            ended |= run_stages(first)
    failed = [name for name, (good, _seconds) in ended.items() if not good]
    if failed:
        print(f"Failed: {', '.join(failed)}. Run one alone with ./check NAME.")
    took = ", ".join(f"{name} {seconds:.0f}" for name, (_good, seconds) in ended.items())
    print(f"Seconds: {took}; in all {time.monotonic() - began:.0f}")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(machine.main(run_checks))
