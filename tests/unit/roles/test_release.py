# SPDX-License-Identifier: GPL-3.0-or-later
"""How a release of the agent is packed on the controller and put in place on a host."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.support.roles.release import ROLE, ROOT, pack, release


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    for name, text in {"agent/magnetar_agent/__init__.py": "", "agent/magnetar_agent/cli.py": "x = 1\n",
                       "plugins/module_utils/core/plan.py": "",
                       "agent/__pycache__/cli.pyc": "compiled", "pyproject.toml": "[project]\n",
                       "COPYING": "free\n", "requirements/agent.txt": "one==1\n",
                       "requirements/control.txt": "two==2\n", "requirements/dev.txt": "three==3\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_archive_depends_on_the_sources_alone(checkout, tmp_path):
    first = pack.digest(checkout)
    pack.pack(tmp_path / "one.tar.gz", checkout)
    for path in checkout.rglob("*.py"):
        path.touch()
        path.chmod(0o755)
    (checkout / "agent/__pycache__/cli.pyc").write_text("compiled anew")
    pack.pack(tmp_path / "two.tar.gz", checkout)
    assert pack.digest(checkout) == first
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    (checkout / "agent/magnetar_agent/cli.py").write_text("x = 2\n")
    assert pack.digest(checkout) != first
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert archive.getnames() == ["magnetar/COPYING", "magnetar/agent/magnetar_agent/__init__.py",
                                      "magnetar/agent/magnetar_agent/cli.py",
                                      "magnetar/plugins/module_utils/core/plan.py", "magnetar/pyproject.toml",
                                      "magnetar/requirements/agent.txt", "magnetar/requirements/control.txt"]


def test_another_lock_is_another_release(checkout):
    first = pack.digest(checkout)
    (checkout / "requirements/dev.txt").write_text("three==4\n")
    assert pack.digest(checkout) == first
    (checkout / "requirements/agent.txt").write_text("one==1.1\n")
    assert pack.digest(checkout) != first


def test_a_renamed_file_is_another_digest(checkout):
    first = pack.digest(checkout)
    (checkout / "agent/magnetar_agent/cli.py").rename(checkout / "agent/clj.py")
    assert pack.digest(checkout) != first


@pytest.fixture
def releases(tmp_path, monkeypatch):
    """A folder for releases, which are made without pip; the list of what was made."""
    made = []

    def make(folder, archive, digest, extras, wheels, _installer):
        if release.read(folder / release.STAMP) != digest:
            made.append(digest)
            (folder / "bin").mkdir(parents=True)
            (folder / release.STAMP).write_text(digest)

    monkeypatch.setattr(release, "make", make)
    folder = tmp_path / "magnetar"
    folder.mkdir()
    return folder, made


def name(letter):
    return letter * 64


def state(folder):
    return {
        "stamp": (folder / release.STAMP).read_text()[0], "bin": release.used(folder / "bin")[0],
        "previous": release.used(folder / "previous")[:1],
        "kept": sorted(path.name[0] for path in (folder / "releases").iterdir()),
    }  # fmt: skip


def test_the_release_before_is_kept_and_taken_back(releases):
    folder, made = releases
    for letter in "aabc":
        release.install(folder, "archive", name(letter))
    assert made == [name("a"), name("b"), name("c")]
    assert state(folder) == {"stamp": "c", "bin": "c", "previous": "b", "kept": ["b", "c"]}
    release.back(folder)
    assert state(folder) == {"stamp": "b", "bin": "b", "previous": "c", "kept": ["b", "c"]}
    release.install(folder, "archive", name("c"))
    assert state(folder) == {"stamp": "c", "bin": "c", "previous": "b", "kept": ["b", "c"]}


def test_there_is_no_release_before_the_first(releases):
    folder, _made = releases
    release.install(folder, "archive", name("a"))
    with pytest.raises(SystemExit, match="no release before"):
        release.back(folder)
    assert state(folder)["bin"] == "a"


def test_a_folder_named_bin_makes_way(releases):
    folder, _made = releases
    (folder / "bin").mkdir()
    (folder / "bin/python").touch()
    release.install(folder, "archive", name("a"))
    assert state(folder) == {"stamp": "a", "bin": "a", "previous": "", "kept": ["a"]}


def test_wheels_that_were_brought_go_when_the_release_is_there(releases, tmp_path):
    folder, made = releases
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    release.install(folder, "archive", name("a"), "agent", str(wheels))
    assert (made, wheels.exists()) == ([name("a")], False)


@pytest.mark.parametrize(("extras", "wheels", "source"), [
    ("agent", "", ""),
    ("agent,control", "/srv/wheels", "--no-index --find-links /srv/wheels "),
])
def test_pip_gets_locks_first_and_the_project_by_itself(checkout, tmp_path, monkeypatch, extras, wheels, source):
    folder, archive, calls = tmp_path / "release", tmp_path / "magnetar.tar.gz", []
    pack.pack(archive, checkout)

    def run(*words):
        calls.append(" ".join(str(word) for word in words))
        (folder / "lib/python3.11/site-packages").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(release, "run", run)
    release.make(folder, str(archive), name("a"), extras, wheels)
    pip = f"{folder}/bin/pip install -q --disable-pip-version-check --no-cache-dir "
    locks = " ".join(f"-r {folder}/requirements/{extra}.txt" for extra in extras.split(","))
    assert calls[1:] == [f"{pip}{source}--require-hashes --only-binary :all: {locks}",
                         f"{pip}--no-index --no-deps --no-build-isolation {archive}"]
    assert (folder / "requirements/agent.txt").read_text() == "one==1\n"


def test_an_extra_without_a_lock_is_refused(checkout, tmp_path):
    archive = tmp_path / "magnetar.tar.gz"
    pack.pack(archive, checkout)
    with pytest.raises(SystemExit, match="has no lock of dev: extras are agent and control"):
        release.locks(str(archive), "agent,dev", tmp_path / "requirements")


def test_a_broken_release_is_made_anew(checkout, tmp_path, monkeypatch):
    folder, archive, calls = tmp_path / "release", str(tmp_path / "magnetar.tar.gz"), []
    pack.pack(Path(archive), checkout)
    (folder / "half").mkdir(parents=True)

    def run(*words):
        calls.append([str(word) for word in words])
        (folder / "lib/python3.11/site-packages").mkdir(parents=True, exist_ok=True)
        return ""

    monkeypatch.setattr(release, "run", run)
    release.make(folder, archive, name("a"), "agent")
    assert not (folder / "half").exists()
    assert calls[-1][-1] == archive
    assert (folder / release.STAMP).read_text() == name("a")
    calls.clear()
    release.make(folder, archive, name("a"), "agent")
    assert calls == []
    shutil.rmtree(folder)


def test_quickstart_fills_the_whole_unit():
    """tools/machine.py puts in three names and knows nothing of templates."""
    text = (ROLE / "templates/magnetar-agent.service.j2").read_text()
    for known in ("{{ agent_venv }}", "{{ agent_unit_write_paths }}", "{{ agent_unit_hides_modules }}"):
        assert known in text
        text = text.replace(known, "")
    assert "{" not in text
    for kind in ("socket", "service"):
        text = (ROLE / f"templates/magnetar-metadata.{kind}.j2").read_text().replace("{{ agent_venv }}", "")
        assert "{" not in text


def test_defaults_and_argument_specs_agree():
    for role in ("agent", "api", "cell", "common", "conductor", "network"):
        defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
        specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
        options = {option: spec for entry in specs.values() for option, spec in entry.get("options", {}).items()}
        assert set(defaults) == set(options)
        told = {option: spec["default"] for option, spec in options.items() if "default" in spec}
        assert {option: defaults[option] for option in told} == told
        tasks = {path.stem for path in (ROOT / "roles" / role / "tasks").glob("*.yml")}
        assert set(specs) <= tasks
