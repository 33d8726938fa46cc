# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written into servers' root disks: by the agent on a fake host, and by the program in the appliance."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import host_check, inventory
from magnetar_agent.host.storage import Disk, Injection, NetworkSource
from magnetar_agent.servers.disks import injection
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.disks import guest_files
from magnetar_agent.virt.disks import injection as virt_injection
from magnetar_agent.virt.tools import process
from magnetar_core.errors import HypervisorDown, HypervisorError, InvalidSettings
from tests.support.agent.crash import Dead
from tests.support.agent.guest_data import SECRET, TOLD, kept
from tests.support.agent.resize import folder, image
from tests.unit.agent.conftest import SMALL, Host

KEY = TOLD["keys"][0]["data"]
FILE = {"path": "/etc/motd", "contents": base64.b64encode(b"hello\n").decode()}
ALL: dict[str, Any] = {"guest_data": TOLD, "admin_pass": SECRET, "metadata": {"role": "web"}, "personality": [FILE]}


@pytest.fixture
def writes(tmp_path: Path) -> Iterator[Host]:
    """A host that writes into disks all that there is."""
    found = Host(tmp_path, inject_partition=-1, inject_password=True, inject_key=True)
    found.start()
    yield found
    found.agent.close()


def written(host: Host) -> Injection:
    return host.fake.injected[folder(host) / "disk"]


def test_a_new_server(writes: Host) -> None:
    done = writes.server(**ALL)
    given = written(writes)
    assert (given.partition, given.key, given.metadata) == (-1, KEY, {"role": "web"})
    assert given.files == ((FILE["path"], FILE["contents"]),) and done.warnings == []
    assert given.password and given.password.startswith("$6$") and SECRET not in repr(given) + kept(writes)
    writes.fake.injected.clear()
    writes.server(power="off")
    writes.ensure("flavor", "big", {**SMALL, "ram": 128, "swap": 1})
    writes.server(flavor="big")
    assert writes.fake.injected == {}  # its guest has had its disk


def test_the_password_fits(writes: Host) -> None:
    """As crypt(3) checks it: with the hash as its salt it gives the hash."""
    hashed = injection.crypt_password(SECRET)
    again = injection._library()
    import ctypes

    again.crypt_r.restype = ctypes.c_char_p
    assert again.crypt_r(SECRET.encode(), hashed.encode(), ctypes.create_string_buffer(256 * 1024)).decode() == hashed
    assert injection.crypt_password(SECRET) != hashed and len(hashed) == 3 + 16 + 1 + 86


def test_hosts_that_do_not(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "magnetar_agent.servers.disks.injection", None)  # it is not even imported
    host.server(**ALL)
    assert host.fake.injected == {}
    assert inventory.host_usage(host.agent.host)["injection"] is None


def test_passwords_and_keys_are_asked_for_by_themselves(tmp_path: Path) -> None:
    host = Host(tmp_path, inject_partition=2)
    host.start()
    host.server(**ALL)
    given = written(host)
    assert (given.partition, given.key, given.password, given.metadata) == (2, None, None, {"role": "web"})
    host.fake.injected.clear()
    host.server("web2", guest_data=TOLD, admin_pass=SECRET)
    assert host.fake.injected == {}  # there is nothing to write
    host.agent.close()


def test_a_rebuild(writes: Host) -> None:
    writes.server(**ALL)
    writes.fake.injected.clear()
    writes.fake.not_injected = {"password": "/etc/shadow has no user root"}
    answer = writes.event("rebuild", "r1", admin_pass="Sesame-43")
    assert written(writes).key == KEY and written(writes).password and written(writes).files
    assert answer["warnings"] == ["Not written into the root disk: password (/etc/shadow has no user root)."]


def test_its_own_image_has_its_files(writes: Host) -> None:
    """As when it is unshelved."""
    writes.server(**ALL)
    id = writes.show()["id"]
    image(writes, "odd")
    writes.ensure("image", "odd", {"properties": {"instance_uuid": id}})
    writes.event("rebuild", "r1", image="odd")
    assert written(writes).files == () and written(writes).key == KEY
    writes.fake.injected.clear()
    writes.event("rebuild", "r2", image="odd", personality=ALL["personality"])
    assert written(writes).files  # which are asked for now


@pytest.mark.parametrize("way", ["some", "all"])
def test_what_cannot_be_written_is_told(writes: Host, way: str, caplog: pytest.LogCaptureFixture) -> None:
    want = {name: value for name, value in ALL.items() if name != "personality"}
    if way == "some":
        writes.fake.not_injected = {"key": "no such directory"}
        told = "Not written into the root disk: key (no such directory)."
    else:
        writes.fake.unreadable = "no operating system is found on it"
        told = "Not written into the root disk: key, metadata, password (no operating system is found on it)."
    with caplog.at_level(logging.WARNING):
        done = writes.server(**want)
    assert done.warnings[0].startswith(told) and told in caplog.text and SECRET not in caplog.text
    assert writes.show()["power_state"] == "running"


def test_what_is_the_hosts_is_in_its_log_only(writes: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Users of a cloud read what is warned of."""
    writes.fake.fail_next("inject", HypervisorError("supermin could not build /var/lib/magnetar/appliance."))
    done = writes.server(**{**ALL, "personality": []})
    assert done.warnings == ["Not written into the root disk: key, metadata, password (the host could not do it; its "
                             "log says why)."]
    assert "/var/lib/magnetar/appliance" in caplog.text


def test_a_password_that_has_no_hash(writes: Host) -> None:
    """The server is made without it, as where it cannot be written."""
    done = writes.server(guest_data=TOLD, admin_pass="\U0001f511" * 255)
    assert written(writes).key == KEY and written(writes).password is None
    assert len(done.warnings) == 1 and "password (The host's crypt(3)" in done.warnings[0]


@pytest.mark.parametrize("way", ["some", "all"])
def test_files_that_cannot_be_written_fail_it(writes: Host, way: str) -> None:
    if way == "some":
        writes.fake.not_injected = {"files": "/no: no such directory"}
    else:
        writes.fake.unreadable = "no operating system is found on it"
    with pytest.raises(HypervisorError, match=r"files of server 'web1' were not written .*personality"):
        writes.server(**ALL)
    assert writes.agent.host.documents.find("server", "web1") is None


def test_a_host_without_libvirt(writes: Host) -> None:
    writes.fake.fail_next("inject", HypervisorDown())
    with pytest.raises(HypervisorDown):
        writes.server(**ALL)


@pytest.mark.parametrize("late", [False, True])
def test_an_agent_that_dies_meanwhile(writes: Host, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one writes all of it, though the document of before says that the disk is not made."""
    inject = FakeHypervisor.inject

    def dies(self: FakeHypervisor, disk: Disk, given: Injection, kvm: bool) -> Any:
        if late:
            inject(self, disk, given, kvm)
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(FakeHypervisor, "inject", dies)
        with pytest.raises(Dead):
            writes.server(**ALL)
    writes.restart()
    writes.server(**ALL)
    given = written(writes)
    assert given.password and given.key == KEY and given.files and SECRET not in kept(writes)
    assert writes.show()["power_state"] == "running"


def test_a_root_volume_is_left_alone(writes: Host) -> None:
    writes.ensure("volume", "data", {"size": 1})
    writes.server(**{**ALL, "personality": []}, block_device_mapping=[
        {"source_type": "volume", "destination_type": "volume", "uuid": "data", "boot_index": 0}])
    assert writes.fake.injected == {}


def test_the_host_tells_it(writes: Host, tmp_path: Path) -> None:
    def said() -> tuple[bool, str]:
        seen = inventory.host_resource(writes.agent.drivers)
        return {name: (fine, text) for name, fine, text in host_check.host_findings(seen)}["injection"]

    assert said() == (True, "inject_partition -1")
    writes.fake.no_injection = "libguestfs is not installed (python3-guestfs brings it)"
    assert said() == (False, "libguestfs is not installed (python3-guestfs brings it)")


@pytest.mark.parametrize("settings", [{"inject_key": True}, {"inject_password": True}, {"inject_partition": -3},
                                      {"inject_partition": 129}], ids=str)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(settings))):
        AgentSettings(**settings)


# In the appliance ---------------------------------------------------------------------------------------------------
class Guest:
    """A file system as libguestfs gives it. ``roots`` are what its inspection finds."""

    def __init__(self, files: dict[str, bytes], roots: tuple[str, ...] = ("/dev/sda1",), kind: str = "linux") -> None:
        self.files, self.roots, self.kind = files, roots, kind
        self.modes: dict[str, int] = {}
        self.mounted: list[tuple[str, str]] = []

    def mount(self, device: str, place: str) -> None:
        self.mounted.append((device, place))

    def inspect_os(self) -> list[str]:
        return list(self.roots)

    def inspect_get_type(self, _root: str) -> str:
        return self.kind

    def inspect_get_mountpoints(self, root: str) -> dict[str, str]:
        return {"/boot": "/dev/sda2", "/": root}

    def mkdir_p(self, path: str) -> None:
        self.files.setdefault(path + "/", b"")

    def chown(self, owner: int, group: int, path: str) -> None:
        assert (owner, group) == (0, 0)

    def chmod(self, mode: int, path: str) -> None:
        self.modes[path] = mode

    def is_file(self, path: str, followsymlinks: bool = False) -> bool:
        return path in self.files

    def is_dir(self, path: str, followsymlinks: bool = False) -> bool:
        return path + "/" in self.files

    def exists(self, path: str) -> bool:
        return path in self.files or path + "/" in self.files

    def filesize(self, path: str) -> int:
        return len(self.read_file(path))

    def read_file(self, path: str) -> bytes:
        if path not in self.files:
            raise RuntimeError(f"open: {path}: No such file or directory")
        return self.files[path]

    def write(self, path: str, content: bytes) -> None:
        if path.startswith("/none/"):
            raise RuntimeError(f"open: {path}: No such file or directory")
        self.files[path] = content

    def write_append(self, path: str, content: bytes) -> None:
        self.files[path] = self.files.get(path, b"") + content


def linux(**more: bytes) -> Guest:
    return Guest({"/etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "/etc/shadow": b"daemon:*:1\nroot:*:19000:0:::\n",
                  **{"/" + path: content for path, content in more.items()}})


def job(**more: Any) -> dict[str, Any]:
    return {"key": None, "password": None, "metadata": None, "files": None, **more}


def test_what_is_written_may_be_written_twice() -> None:
    guest = linux(**{"root/.ssh/authorized_keys": b"ssh-rsa B", "etc/selinux/": b"", "etc/rc.local": b"a\nexit 0\n"})
    all = job(key=KEY, password="$6$s$h", metadata={"a": "b"}, files=[["etc/motd", "aGk="]])
    assert guest_files.write_injected_parts(guest, all) == {}
    first = dict(guest.files)
    assert guest_files.write_injected_parts(guest, all) == {} and guest.files == first
    assert first["/root/.ssh/authorized_keys"] == f"ssh-rsa B\n{KEY}\n".encode()
    assert first["/etc/shadow"] == b"daemon:*:1\nroot:$6$s$h:19000:0:::\n" and first["/etc/motd"] == b"hi"
    assert first["/meta.js"] == b'{"a": "b"}'
    assert first["/etc/rc.local"].endswith(b"restorecon -RF /root/.ssh 2>/dev/null || :\n")
    assert b"exit 0" not in first["/etc/rc.local"]
    assert guest.modes == {"/root/.ssh": 0o700, "/root/.ssh/authorized_keys": 0o600, "/etc/rc.local": 0o755}


def test_each_thing_fails_by_itself() -> None:
    guest = linux(**{"etc/shadow": b"x" * (guest_files.READ_MAX + 1)})
    failed = guest_files.write_injected_parts(guest, job(key=KEY, password="$6$s$h", files=[["/none/a", ""]]))
    assert set(failed) == {"password", "files"} and "larger" in failed["password"] and "/none/a" in failed["files"]
    assert "/root/.ssh/authorized_keys" in guest.files
    for shadow in (b"", b"root", b"toor:*:1\n"):
        with pytest.raises(guest_files.NotWritable, match="no user root"):
            guest_files.replace_root_password(shadow, b"h")
    assert "no user root" in guest_files.write_injected_parts(linux(**{"etc/passwd": b"toor:x:0:0\n"}),
                                                              job(password="h"))["password"]


class Device(Guest):
    """A guest with a device, or a FIFO, which has no end."""

    def __init__(self, path: str) -> None:
        super().__init__({**linux(**{"root/.ssh/authorized_keys": b""}).files, path: b""})
        self.path = path

    def is_file(self, path: str, followsymlinks: bool = False) -> bool:
        return path != self.path and super().is_file(path)

    def read_file(self, path: str) -> bytes:
        assert path != self.path, "the host's folder is full"
        return super().read_file(path)

    filesize = Guest.filesize

    def write(self, path: str, content: bytes) -> None:
        assert path != self.path, "it waits for ever"
        super().write(path, content)

    def write_append(self, path: str, content: bytes) -> None:
        assert path != self.path, "it waits for ever"
        super().write_append(path, content)


@pytest.mark.parametrize(("path", "what"), [("/etc/passwd", "password"), ("/etc/shadow", "password"),
                                            ("/root/.ssh/authorized_keys", "key"), ("/meta.js", "metadata"),
                                            ("/etc/motd", "files")])
def test_what_is_no_file(path: str, what: str) -> None:
    all = job(key=KEY, password="$6$s$h", metadata={"a": "b"}, files=[["etc/motd", "aGk="]])
    assert guest_files.write_injected_parts(Device(path), all) == {what: f"{path} is not a file"}


def test_where_it_is_mounted() -> None:
    for partition, device in ((0, "/dev/sda"), (3, "/dev/sda3")):
        guest = linux()
        guest_files.mount_file_systems(guest, partition)
        assert guest.mounted == [(device, "/")]
    guest = linux()
    guest_files.mount_file_systems(guest, -1)
    assert guest.mounted == [("/dev/sda1", "/"), ("/dev/sda2", "/boot")]
    for bad, words in ((Guest({}, ()), "no operating system"), (Guest({}, ("a", "b")), "several"),
                       (Guest({}, kind="windows"), "windows")):
        with pytest.raises(guest_files.NotWritable, match=words):
            guest_files.mount_file_systems(bad, -1)


# The program --------------------------------------------------------------------------------------------------------
class Writer(virt_injection.Injections):
    """It runs as who tests run."""

    def qemu_user(self) -> tuple[int, int]:
        return 0, 0

    def permit(self, paths: Any) -> None:
        """All may read them."""


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """What runs programs, of which tests say what they answer."""
    found = Writer(tmp_path)
    found._can_inject = True
    monkeypatch.setattr(found, "_built", lambda: tmp_path)
    (tmp_path / "disk").write_bytes(b"\0" * 4096)
    return found


def test_no_secret_is_in_an_argument(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(arguments: list[str], what: str, timeout: float, user: Any, files: list[int], groups: Any) -> str:
        job = Path(f"/proc/self/fd/{arguments[-1]}").read_text()
        seen.append((arguments, what, timeout, user, job, Path(arguments[2]).read_text()))
        return '{"failed": {"files": "no"}}'

    monkeypatch.setattr(virt_injection, "run_program", run)
    given = Injection(1, "$6$hash", KEY, {"a": "b"}, (("/f", "aGk="),))
    assert writer.inject(Disk(tmp_path / "disk", "vda", "raw"), given, kvm=False) == {"files": "no"}
    [(arguments, what, timeout, user, job, program)] = seen
    assert "hash" not in str(arguments) + what and "$6$hash" in job and "guestfs" in program
    assert (timeout, user) == (virt_injection.EMULATED, (0, 0))


@pytest.mark.parametrize(("said", "words"), [
    ("", "does not say"),
    ("[]", "does not say"),
    ('{"failed": []}', "does not say"), ("\0" * 100000, "does not say")], ids=repr)
def test_what_the_program_may_say(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str,
                                  words: str) -> None:
    monkeypatch.setattr(virt_injection, "run_program", lambda *_args: said)
    with pytest.raises(HypervisorError, match=words):
        writer.inject(Disk(tmp_path / "disk", "vda", "raw"), Injection(1, key=KEY), kvm=False)


def test_what_the_program_says_is_for_users(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(['{"error": "no\\u001b[2J\\nLinux"}', '{"failed": {"key": "a\\u001bb"}}'])
    monkeypatch.setattr(virt_injection, "run_program", lambda *_args: next(said))
    disk, given = Disk(tmp_path / "disk", "vda", "raw"), Injection(1, key=KEY, metadata={"a": "b"})
    assert writer.inject(disk, given, kvm=False) == {"key": "no?[2J?Linux", "metadata": "no?[2J?Linux"}
    assert writer.inject(disk, given, kvm=False) == {"key": "a?b"}


def test_nothing_of_a_program_that_was_ended_is_left(writer: Writer, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def run(arguments: list[str], *_given: Any) -> str:
        folders.append(Path(json.loads(Path(f"/proc/self/fd/{arguments[-1]}").read_text())["folder"]))
        (folders[0] / "overlay").write_bytes(b"much")
        raise HypervisorError("It took too long.")

    monkeypatch.setattr(virt_injection, "run_program", run)
    with pytest.raises(HypervisorError):
        writer.inject(Disk(tmp_path / "disk", "vda", "raw"), Injection(1, key=KEY), kvm=False)
    assert folders and not folders[0].exists()


@pytest.mark.parametrize(("owner", "groups"), [(0, []), (107, [107])])
def test_roots_group_is_not_lent(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int,
                                 groups: list[int]) -> None:
    """That of /dev/kvm, where that is root's."""
    device, seen = tmp_path / "kvm", list[Any]()
    device.touch()
    os.chown(device, 0, owner)
    monkeypatch.setattr(virt_injection, "_KVM", device)
    monkeypatch.setattr(virt_injection, "run_program", lambda *given: seen.append(given[-1]) or '{"failed": {}}')
    writer.inject(Disk(tmp_path / "disk", "vda", "raw"), Injection(1, key=KEY), kvm=True)
    assert seen == [groups]


def test_a_program_that_says_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SAID_MAX", 100_000)
    with pytest.raises(HypervisorError, match="said too much"):
        process.run_program(["yes"], "write")


def test_a_disk_in_ceph(writer: Writer, tmp_path: Path) -> None:
    with pytest.raises(HypervisorError, match="Ceph"):
        disk = Disk(tmp_path / "disk", "vda", "raw", remote=NetworkSource("rbd", "p/i"))
        writer.inject(disk, Injection(1), kvm=False)


def test_what_a_host_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Writer(tmp_path)
    monkeypatch.setattr(virt_injection, "PARTS", (f"{tmp_path}/supermin.d",))
    assert "not installed" in found.lacks_injection()
    with pytest.raises(HypervisorError, match="not installed"):
        found.inject(Disk(tmp_path / "disk", "vda", "raw"), Injection(1), kvm=False)
    (tmp_path / "supermin.d").mkdir()
    monkeypatch.setenv("SUPERMIN_KERNEL", "/vmlinuz")
    monkeypatch.setattr(virt_injection, "_MODULES", tmp_path)
    assert "ProtectKernelModules" in found.lacks_injection()
    (tmp_path / "6.1").mkdir()
    (tmp_path / "6.1/modules.dep").touch()
    monkeypatch.setattr(virt_injection, "PYTHON", "/bin/false")
    assert "no module guestfs" in found.lacks_injection()
    monkeypatch.setattr(virt_injection, "PYTHON", "/bin/true")
    assert found.lacks_injection() == ""


def test_a_module_that_lacks_is_asked_for_again_when_one_may_have_come(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat asks what lacks; each answer is a process."""
    found, asked = Writer(tmp_path), []

    def lacks(words: list[str], *_more: object) -> str:
        asked.append(words[-1])
        raise HypervisorError("Could not import the module guestfs: No module named 'guestfs'")

    monkeypatch.setattr(virt_injection, "run_program", lacks)
    monkeypatch.setattr(virt_injection, "PARTS", (str(tmp_path),))
    monkeypatch.setattr(virt_injection, "_MODULES", tmp_path)
    monkeypatch.setenv("SUPERMIN_KERNEL", "/vmlinuz")
    monkeypatch.setenv("SUPERMIN_MODULES", "/lib/modules")
    modules = tmp_path / "python3/dist-packages"
    modules.mkdir(parents=True)
    monkeypatch.setattr(virt_injection, "SEARCHED", (f"{tmp_path}/python3*/*-packages",))
    for _heartbeat in range(3):
        assert "no module guestfs" in found.lacks_injection()
    assert len(asked) == 1
    os.utime(modules, ns=(1, 1))  # as when a package comes there
    assert "no module guestfs" in found.lacks_injection() and len(asked) == 2
    monkeypatch.setattr(virt_injection, "run_program", lambda *_given: "")
    assert "no module guestfs" in found.lacks_injection()
    os.utime(modules, ns=(2, 2))
    assert found.lacks_injection() == ""


def test_the_program_says_what_it_could_not_do(tmp_path: Path) -> None:
    """Without qemu-nbd's disk there is nothing that it could do."""
    with ExitStack() as held:
        task = process.unnamed_file(held, json.dumps({
            "node": "json:{}", "options": [], "files_held": [], "kvm": False, "folder": str(tmp_path)}).encode())
        done = subprocess.run([sys.executable, "-I", str(virt_injection.PROGRAM), str(task)], pass_fds=[task],
                              capture_output=True, check=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert "qemu-nbd" in json.loads(done.stdout)["error"]
