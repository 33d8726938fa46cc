# SPDX-License-Identifier: GPL-3.0-or-later
"""A release is built of a tree that is ready for it, and the same tree gives the same files."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile

import pytest
import yaml

from tools import release, releases


@pytest.fixture
def clean(monkeypatch):
    """The answers of git for a clean tree without tags, which a test may change."""
    answers = {"status": "", "tag": "", "rev-list": "c0ffee", "rev-parse": "c0ffee", "log": "c0ffee 1700000000"}
    monkeypatch.setattr(release, "git_output", lambda word, *_words: answers[word])
    return answers


def test_versions_must_be_the_same(monkeypatch, tmp_path):
    (tmp_path / "galaxy.yml").write_text("version: 0.2.0\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nversion = '0.1.0'\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(release.NotReady, match=r"galaxy.yml has version 0.2.0 and pyproject.toml 0.1.0"):
        release.release_version()


def test_a_tree_that_is_not_ready_gives_no_file(clean, tmp_path, monkeypatch):
    monkeypatch.setattr(release.lock, "lock_problems", lambda: ["requirements/agent.txt lacks fastapi"])
    tag = f"v{release.release_version()}"
    clean.update(status=" M README.md", tag=tag, **{"rev-list": "decade"})
    (tmp_path / "old.whl").touch()
    with pytest.raises(release.NotReady) as raised:
        release.build_release(tmp_path)
    for reason in ("requirements/agent.txt lacks fastapi", "uncommitted files. Commit them, or give --rehearse",
                   f"The tag {tag} is on another commit", "is not empty"):
        assert reason in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old.whl"]


def test_the_command_says_why_in_words(clean, tmp_path, monkeypatch, capsys):
    clean["status"] = " M README.md"
    monkeypatch.setattr(sys, "argv", ["release", str(tmp_path / "dist")])
    assert release.main() == 1 and "There is no release yet:\nThere are uncommitted" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["release", str(tmp_path / "dist"), "--tag", "--rehearse"])
    with pytest.raises(SystemExit):
        release.main()
    assert "a rehearsal is not tagged" in capsys.readouterr().err


def test_notes_are_those_of_one_version(monkeypatch, tmp_path):
    (tmp_path / "CHANGELOG.rst").write_text("Notes\n=====\n\nv0.2.0\n======\n\nNew.\n\nv0.1.0\n======\n\nOld.\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.notes_of_version("0.2.0") == "v0.2.0\n======\n\nNew.\n"
    assert release.notes_of_version("0.1.0") == "v0.1.0\n======\n\nOld.\n"
    with pytest.raises(release.NotReady, match=r"no section v0\.3\.0"):
        release.notes_of_version("0.3.0")


def test_archives_of_two_builds_are_the_same(tmp_path):
    for name, time in (("a.tar.gz", 5), ("b.tar.gz", 9)):
        member = tarfile.TarInfo("folder/file")
        member.size, member.mtime, member.uid, member.mode = 3, time, time, 0o755
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            archive.addfile(member, io.BytesIO(b"abc"))
        release.set_times(tmp_path / name, 1700000000)
    one, two = ((tmp_path / name).read_bytes() for name in ("a.tar.gz", "b.tar.gz"))
    assert one == two and gzip.decompress(one)
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        [member] = archive.getmembers()
        assert (member.mtime, member.uname, member.mode) == (1700000000, "root", 0o755)
        assert archive.extractfile(member).read() == b"abc"


@pytest.mark.slow
def test_a_release_has_all_files_with_their_checksums(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    description = release.build_release(first, rehearse=True)
    version = description["version"]
    assert description["files"] == ["RELEASE_NOTES.rst", f"magnetar-{version}-py3-none-any.whl",
                                    f"magnetar-{version}.tar.gz", f"magnetar-compute-{version}.tar.gz",
                                    "sbom.cdx.json"]
    assert yaml.safe_load((first / "release.yml").read_text()) == description
    assert description["commit"] == subprocess.run(["git", "rev-parse", "HEAD"], cwd=release.ROOT, check=True,
                                                   capture_output=True, text=True).stdout.strip()
    for line in (first / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((first / name).read_bytes()).hexdigest() == digest
    with tarfile.open(first / f"magnetar-compute-{version}.tar.gz") as archive:
        assert {"MANIFEST.json", "sbom.cdx.json", "agent/magnetar_agent/cli.py"} <= set(archive.getnames())
    release.build_release(second, rehearse=True)
    assert (second / "SHA256SUMS").read_text() == (first / "SHA256SUMS").read_text()


@pytest.fixture
def released(clean, monkeypatch, tmp_path):
    """A tree of version 0.1.0, whose commit is c0ffee."""
    (tmp_path / "changelogs").mkdir()
    (tmp_path / "galaxy.yml").write_text("name: compute\nversion: 0.1.0\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (tmp_path / releases.FILE).write_text('"0.0.9": {commit: ba5eba11, date: 2026-11-01}\n')
    for module in (release, releases):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    clean["log"] = "c0ffee 2026-11-30"
    return tmp_path


def test_the_next_version_follows_a_recorded_release(released):
    release.start_version("0.2.0")
    assert releases.released_commits() == {"0.0.9": "ba5eba11", "0.1.0": "c0ffee"}
    assert release.release_version() == "0.2.0"


@pytest.mark.parametrize("version", ["0.1.0", "0.0.10", "0.2", "next"])
def test_the_next_version_must_be_higher(released, version):
    with pytest.raises(release.NotReady, match="is not a version above 0.1.0"):
        release.start_version(version)
    assert release.release_version() == "0.1.0" and list(releases.released_commits()) == ["0.0.9"]


def test_the_first_release_has_no_other_before_it(released):
    (released / releases.FILE).write_text("# Releases\n")
    assert releases.released_commits() == {}
    release.start_version("1.0.0")
    assert releases.released_commits() == {"0.1.0": "c0ffee"}


def test_a_release_is_recorded_once_and_of_a_commit(released, clean):
    releases.add_release("0.1.0", "decade", "2026-11-29")
    clean["status"] = " M README.md"
    with pytest.raises(release.NotReady, match=r"uncommitted files(?s:.)*has 0.1.0 already"):
        release.start_version("0.2.0")


def test_a_clone_without_the_commit_has_no_tree_of_a_release(released, tmp_path):
    assert releases.unpack_release("0.0.9", tmp_path / "unpacked") is None
