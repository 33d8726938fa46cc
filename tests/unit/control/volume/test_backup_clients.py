# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups in a running cloud: by OpenStack's own client, and by ``magnetar backup import`` after the loss of a
database. The slow tests run the client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from magnetar_control import cli
from magnetar_control.services import Context
from magnetar_control.services.volume import tables
from tests.support.clients import Clients, play, story
from tests.support.control.cloud import Cloud
from tests.support.s3 import PREFIX, REGION, FakeS3
from tests.support.waiting import eventually

OWNER = Context("alice", "red", frozenset({"member"}))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    directory = tmp_path_factory.mktemp("backups") / "target"
    with Cloud(hosts=2, agent={"backup_directory": str(directory)}) as made:
        yield made


@pytest.mark.slow
def test_the_client_backs_up_and_restores(cloud: Cloud, tmp_path: Path) -> None:
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
    wrong = play(Clients(tmp_path / "clouds.yaml", tmp_path), story("volume_backups"))
    assert not wrong, "\n\n".join(wrong)


def config_of(cloud: Cloud, folder: Path) -> str:
    config = folder / "control.yml"
    config.write_text(json.dumps({**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}))
    return str(config)


def test_backups_in_a_bucket_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And another host restores them."""
    with FakeS3(tmp_path).running() as store, Cloud(hosts=2, agent={
            name: str(value) for name, value in store.settings().items()}) as cloud:
        service = cloud.services.volume
        volume = service.create(OWNER, 1, name="data")["id"]
        eventually(lambda: service.volumes.show(OWNER, volume)["status"] == "available")
        backup = service.backups.create(OWNER, volume, name="full")["id"]
        eventually(lambda: service.backups.show(OWNER, backup)["status"] == "available")
        with cloud.parts.api_database.write() as connection:
            connection.execute(delete(tables.backups))
        store.objects[f"{PREFIX}/odd/backup.json"] = b"{}"
        store.objects[f"{PREFIX}/unfinished/map"] = b""
        words = ["backup", "import", f"s3://backups/{PREFIX}", "--endpoint-url", store.endpoint_url, "--region", REGION,
                 "--credentials-file", str(store.credentials_file), "--config", config_of(cloud, tmp_path)]
        assert cli.main([*words, "--dry-run"]) == 1
        said = capsys.readouterr()
        assert f"s3://backups/{PREFIX}/odd/backup.json cannot be imported" in said.err and "unfinished" not in said.err
        assert f"{backup}  red  full  found" in said.out
        del store.objects[f"{PREFIX}/odd/backup.json"]
        assert cli.main(words) == 0 and f"{backup}  red  full  imported" in capsys.readouterr().out
        eventually(lambda: service.backups.show(OWNER, backup)["status"] == "available")
        new = service.backups.restore(OWNER, backup)["volume_id"]
        eventually(lambda: service.volumes.show(OWNER, new)["status"] == "available")
        service.backups.delete(OWNER, backup)
        eventually(lambda: service.backups.find(OWNER, backup) is None)
        assert [*store.objects] == [f"{PREFIX}/unfinished/map"]
        for wrong, message in (((), "SignatureDoesNotMatch"), (("--endpoint-url", "store"), "must be a URL"),
                               (("--region", "a b"), "--region: must have letters"),
                               (("--credentials-file", str(tmp_path / "none")), "cannot be read")):
            store.secret = "changed"
            assert cli.main([*words, *wrong]) == 1 and message in capsys.readouterr().err


def test_catalogues_are_imported(cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service, directory = cloud.services.volume, Path(cloud.agent_settings["backup_directory"])
    volume = service.create(OWNER, 1, name="data")["id"]
    eventually(lambda: service.volumes.show(OWNER, volume)["status"] == "available")
    ids = []
    for name in ("full", "changes"):
        ids.append(service.backups.create(OWNER, volume, incremental=name != "full", name=name)["id"])
        eventually(lambda: service.backups.show(OWNER, ids[-1])["status"] == "available")
    before = service.backups.show(OWNER, ids[1])
    with cloud.parts.api_database.write() as connection:
        connection.execute(delete(tables.backups))
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("chunks", "map"))
    (copy / "odd").mkdir()
    (copy / "odd" / "backup.json").write_text("{}")
    config = config_of(cloud, tmp_path)
    words = ["backup", "import", str(copy), "--config", config]
    assert cli.main([*words, "--dry-run"]) == 1
    said = capsys.readouterr()
    assert "odd/backup.json cannot be imported" in said.err and f"{ids[0]}  red  full  found" in said.out
    shutil.rmtree(copy / "odd")
    assert cli.main(words) == 0 and f"{ids[1]}  red  changes  imported" in capsys.readouterr().out
    assert cli.main(words) == 0 and "known already" in capsys.readouterr().out
    eventually(lambda: {service.backups.show(OWNER, id)["status"] for id in ids} == {"available"})
    after = service.backups.show(OWNER, ids[1])
    assert {**after, "updated_at": None} == {**before, "updated_at": None}
    new = service.backups.restore(OWNER, ids[1])["volume_id"]
    eventually(lambda: service.volumes.show(OWNER, new)["status"] == "available")
    for id in reversed(ids):
        service.backups.delete(OWNER, id)
        eventually(lambda: service.backups.find(OWNER, id) is None)  # noqa: B023 - it is called in this round
    assert [*directory.iterdir()] == []
    with pytest.raises(SystemExit):
        cli.main(["backup"])
    assert cli.main(["backup", "import", str(tmp_path / "none"), "--config", config]) == 1
