# SPDX-License-Identifier: GPL-3.0-or-later
"""The way over SSH: a real sshd, an agent with a fake hypervisor behind its socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.magnetar.compute.plugins.module_utils import run
from ansible_collections.magnetar.compute.plugins.module_utils.core.errors import InvalidField, Unreachable
from ansible_collections.magnetar.compute.plugins.module_utils.ssh import dial, known_hosts
from tests.support.waiting import eventually

from .conftest import ROOT
from .sshd import Sshd, children_of, keygen

pytestmark = pytest.mark.slow

ELSEWHERE = {**os.environ, "PYTHONPATH": str(ROOT / ".cache")}


@pytest.fixture
def sshd(tmp_path, monkeypatch):
    found = Sshd(tmp_path / "ssh")
    monkeypatch.setenv("HOME", str(found.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    found.trust()
    found.start()
    yield found
    found.stop(hard=True)


@pytest.fixture
def connect(agent, sshd):
    """``connect(**options)``: a client of the agent over the sshd."""
    made = []

    def client(**options):
        options.setdefault("endpoint", sshd.endpoint(agent.socket))
        made.append(run.connect_client(options))
        return made[-1]

    yield client
    for one in made:
        one.close()


def refused(client):
    with pytest.raises(Unreachable) as caught:
        client.info()
    print(caught.value.message)
    assert caught.value.message.startswith("Cannot reach the agent at ssh://")
    return caught.value.message


def logins(sshd):
    return sshd.log.read_text().count("Accepted publickey")


def test_many_requests_over_one_connection(sshd, connect):
    client = connect()
    for number in range(20):
        assert client.ensure("flavor", f"f{number}", {"vcpus": 1, "ram": 64})["changed"]
    assert len(client.list("flavor")) == 20
    assert logins(sshd) == 1
    client.close()
    assert client.list("flavor", name="f1")[0]["name"] == "f1" and logins(sshd) == 2


def test_large_content_both_ways(agent, connect, tmp_path):
    (tmp_path / "big.raw").write_bytes(os.urandom(5 << 20))
    client = connect()
    client.ensure("image", "big", {"disk_format": "raw", "source": {"upload": True}})
    seen = []
    client.upload("image", "big", tmp_path / "big.raw", progress=seen.append)
    assert client.get("image", "big")["status"] == "active" and seen[-1]["done"] == 5 << 20
    client.ensure("keypair", "k", {"public_key": (tmp_path / "ssh/home/.ssh/id_ed25519.pub").read_text()})
    items = [{"key": f"f{number}", "want": {"vcpus": 1, "ram": 64, "description": "x" * 255}} for number in range(300)]
    client.ensure_many("flavor", items)
    assert len(client.list("flavor")) == 300


def test_a_channel_that_ends_is_opened_again(sshd, connect):
    client = connect()
    client.info()
    client._connection.sock._channel.close()
    assert client.info()["host"] and logins(sshd) == 1


def test_an_unknown_host_key(sshd, connect):
    known = sshd.home / ".ssh/known_hosts"
    known.write_text(known.read_text().replace("127.0.0.1", "127.0.0.2"))
    said = refused(connect())
    assert "is not known" in said and f"ssh-keyscan -p {sshd.port} 127.0.0.1" in said
    shown = subprocess.run(["ssh-keygen", "-lf", sshd.host_key], check=True, capture_output=True, text=True).stdout
    assert shown.split()[1] in said and "ssh_host_ed25519_key.pub" in said
    assert logins(sshd) == 0


def test_a_changed_host_key(sshd, connect, tmp_path):
    known = sshd.home / ".ssh/known_hosts"
    keygen(tmp_path / "other")
    known.write_text(f"# hosts\n[127.0.0.1]:{sshd.port} {(tmp_path / 'other.pub').read_text()}")
    said = refused(connect())
    assert "HAS CHANGED" in said and f"{known}:2" in said and f"ssh-keygen -R '[127.0.0.1]:{sshd.port}'" in said
    assert logins(sshd) == 0


def test_a_host_key_of_another_type(sshd, connect, tmp_path):
    """The known type is asked for first; when the host does not have it, it is refused."""
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", tmp_path / "rsa"], check=True)
    line = f"[127.0.0.1]:{sshd.port} {(tmp_path / 'rsa.pub').read_text()}"
    (sshd.home / ".ssh/known_hosts").write_text(line)
    assert "HAS CHANGED" in refused(connect())
    sshd.stop()
    sshd.configure(HostKey=f"{sshd.host_key}\nHostKey {tmp_path / 'rsa'}")
    sshd.start()
    assert connect().info()["host"]


def test_a_revoked_host_key(sshd, connect):
    with (sshd.home / ".ssh/known_hosts").open("a") as stream:
        stream.write("@revoked * " + sshd.line.partition(" ")[2])
    assert "REVOKED" in refused(connect())


def test_known_hosts_of_its_own(sshd, connect, tmp_path):
    (sshd.home / ".ssh/known_hosts").rename(tmp_path / "known")
    refused(connect())
    assert connect(ssh_known_hosts=str(tmp_path / "known")).info()["host"]
    with pytest.raises(InvalidField, match="ssh_known_hosts: does not exist"):
        connect(ssh_known_hosts=str(tmp_path / "none")).info()


def test_hashed_known_hosts(sshd, connect):
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", sshd.home / ".ssh/known_hosts"], check=True, capture_output=True)
    assert "127.0.0.1" not in (sshd.home / ".ssh/known_hosts").read_text()
    assert connect().info()["host"]


def test_a_key_that_is_not_let_in(sshd, connect, tmp_path):
    said = refused(connect(ssh_private_key=str(keygen(tmp_path / "wrong"))))
    assert f"does not let the user {sshd.user} in. Tried: {tmp_path / 'wrong'}: refused." in said
    assert "authorized_keys" in said and "id_ed25519" not in said


def test_a_key_by_option(sshd, connect, tmp_path):
    sshd.key.rename(tmp_path / "mine")
    assert "Tried: nothing" in refused(connect())
    assert "No such file" in refused(connect(ssh_private_key=str(tmp_path / "none")))
    assert connect(ssh_private_key=str(tmp_path / "mine")).info()["host"]


def test_an_encrypted_key(sshd, connect, tmp_path, monkeypatch):
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "geheim", "-f", sshd.key], check=True, capture_output=True)
    said = refused(connect())
    assert "it is encrypted" in said and "ssh-add" in said
    (tmp_path / "bad").write_text("no key")
    assert "no private key" in refused(connect(ssh_private_key=str(tmp_path / "bad")))


def test_the_ssh_agent(sshd, connect, tmp_path, monkeypatch):
    """Also with the file encrypted, and in the way of AWX: the agent alone has the key."""
    path = tmp_path / "agent.ssh"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        while subprocess.run(["ssh-add", "-l"], capture_output=True, check=False).returncode == 2:  # it cannot be asked
            time.sleep(0.01)
        subprocess.run(["ssh-add", "-q", sshd.key], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "geheim", "-f", sshd.key], check=True, capture_output=True)
        assert connect(ssh_private_key=str(sshd.key)).info()["host"]
        sshd.key.unlink()
        (sshd.home / ".ssh/id_ed25519.pub").unlink()
        assert connect().info()["host"]
        said = refused(connect(ssh_private_key=str(keygen(tmp_path / "wrong"))))
        assert "SSH agent" not in said.partition("Tried")[2].partition(". Give")[0]
    finally:
        process.terminate()
        process.wait(120)


def test_too_many_keys(sshd, connect, tmp_path):
    sshd.stop()
    sshd.configure(MaxAuthTries=2)
    sshd.start()
    wrong = [keygen(tmp_path / f"wrong{number}") for number in range(4)]
    (sshd.home / ".ssh/config").write_text("".join(f"IdentityFile {path}\n" for path in wrong))
    assert "ended the connection" in refused(connect())


def test_the_configuration_of_ssh(agent, sshd, connect, tmp_path):
    sshd.key.rename(tmp_path / "mine")
    config = sshd.home / ".ssh/config"
    config.write_text(f"Host kvm1\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n"
                      f"  IdentityFile {tmp_path / 'mine'}\n  IdentitiesOnly yes\nHost *\n  HostKeyAlias kvm\n")
    assert "kvm1 (127.0.0.1:" in refused(connect(endpoint=f"ssh://kvm1{agent.socket}"))
    (sshd.home / ".ssh/known_hosts").write_text("kvm " + sshd.line.partition(" ")[2])
    assert connect(endpoint=f"ssh://kvm1{agent.socket}").info()["host"]
    config.write_text("Host kvm1\n  Port many\n")
    assert "Port of kvm1 in ~/.ssh/config is no number: many" in refused(connect(endpoint="ssh://kvm1"))
    config.write_text("nonsense\n")
    assert "~/.ssh/config cannot be read" in refused(connect())


@pytest.mark.parametrize(("way", "count"), [
    ("ProxyJump {user}@127.0.0.1:{port}", 2), ("ProxyJump bastion,127.0.0.1:{port}", 3),
    ("ProxyCommand {python} {pump} %h %p", 1),
    ("ProxyCommand ssh -F none -i {key} -o UserKnownHostsFile={home}/.ssh/known_hosts -p {port} -W %h:%p 127.0.0.1",
     2)])
def test_through_other_hosts(agent, sshd, connect, way, count, tmp_path):
    (tmp_path / "pump.py").write_text(PUMP)
    told = way.format(user=sshd.user, port=sshd.port, python=sys.executable, pump=tmp_path / "pump.py",
                      key=sshd.key, home=sshd.home)
    (sshd.home / ".ssh/config").write_text(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {sshd.port}\nHost inner\n  HostName 127.0.0.1\n"
        f"  Port {sshd.port}\n  {told}\n")
    assert connect(endpoint=f"ssh://{sshd.user}@inner{agent.socket}").info()["host"]
    assert logins(sshd) == count


PUMP = """
import os, selectors, socket, sys
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
wait = selectors.DefaultSelector()
wait.register(0, selectors.EVENT_READ)
wait.register(there, selectors.EVENT_READ)
while True:
    for key, _events in wait.select():
        found = os.read(key.fd, 65536)
        if not found:
            sys.exit()
        os.write(1, found) if key.fileobj is there else there.sendall(found)
"""


@pytest.mark.parametrize(("way", "said"), [
    ("ProxyJump inner", "round in circles"), ("ProxyJump nobody@127.0.0.1:1", "refused"),
    ("ProxyCommand /does/not/exist", "reached through `/does/not/exist`; `ssh inner` shows"),
    ("ProxyCommand sleep 60", "ended the SSH connection")])
def test_no_way_through(agent, sshd, connect, way, said):
    (sshd.home / ".ssh/config").write_text(f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n  {way}\n")
    before = children_of(os.getpid())
    client = connect(endpoint=f"ssh://inner{agent.socket}", timeout=1, api_timeout=1)
    assert said in refused(client)
    eventually(lambda: children_of(os.getpid()) == before)  # no command is left


@pytest.mark.parametrize("setting", ["AllowStreamLocalForwarding no", "DisableForwarding yes", "restrict"])
def test_forwarding_is_forbidden(sshd, connect, setting):
    sshd.stop()
    if setting == "restrict":
        keys = sshd.folder / "authorized_keys"
        keys.write_text("restrict " + keys.read_text())
    else:
        sshd.configure(**dict([setting.split()]))
    sshd.start()
    said = refused(connect())
    assert f"sshd does not let {sshd.user} forward" in said and "AllowStreamLocalForwarding yes" in said


def test_commands_are_forbidden_too(agent, sshd, connect):
    sshd.stop()
    sshd.configure(ForceCommand="/bin/false", AllowStreamLocalForwarding="no")
    sshd.start()
    assert "Either the agent does not run there, or the user" in refused(connect())
    sshd.stop()
    sshd.configure(ForceCommand="/bin/false")
    sshd.start()
    assert connect().info()["host"], "an account for this alone is enough"


def test_no_socket_there(sshd, connect, tmp_path):
    said = refused(connect(endpoint=sshd.endpoint(tmp_path / "it's none.sock")))
    assert f"no socket {tmp_path}/it's none.sock" in said and "systemctl status magnetar-agent" in said


def test_nobody_listens(sshd, connect, tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    said = refused(connect(endpoint=sshd.endpoint(tmp_path / "left.sock"), timeout=1))
    assert "nobody listens" in said and "systemctl start magnetar-agent" in said


def test_not_in_the_group(agent):
    """As another user, where the test may become one."""
    words = ["sh", "-c", dial.PROBE_SCRIPT, "sh", str(agent.socket)]
    if os.geteuid() == 0:
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
    else:
        agent.socket.chmod(0)
    found = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert found[0] == "denied"
    assert "usermod -aG magnetar nobody" in dial.REASONS["denied"] % {"path": "x", "user": "nobody"}


def test_no_server_there(sshd, connect):
    sshd.stop(hard=True)
    assert "Does an SSH server listen there?" in refused(connect(timeout=1))
    assert "host name no.such.host.invalid is unknown" in refused(connect(endpoint="ssh://no.such.host.invalid"))


def test_something_else_listens(sshd, connect):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = f"ssh://127.0.0.1:{listener.getsockname()[1]}"
        assert "ended the SSH connection" in refused(connect(endpoint=endpoint, api_timeout=1, timeout=1))


def test_sshd_is_killed_and_comes_back(sshd, connect):
    """Requests in a row go on; the one in the middle is asked again."""
    client = connect()
    client.info()
    sshd.stop(hard=True)
    back = threading.Timer(1, sshd.start)
    back.start()
    assert client.info()["host"]
    back.join()


def test_sshd_is_killed_for_good(sshd, connect):
    client = connect(timeout=2)
    client.info()
    sshd.stop(hard=True)
    assert "Does an SSH server listen there?" in refused(client)


def test_sshd_is_killed_while_an_answer_is_waited_for(agent, sshd, connect, monkeypatch):
    """A request that takes a while is found done, or is done, when the way is back."""
    client = connect()
    client.info()
    write, asked = agent.agent.host.documents.write, []

    def slow(document, durable=True):
        asked.append(document)
        time.sleep(0.8)
        write(document, durable)

    def interrupt():
        sshd.stop(hard=True)
        sshd.start()

    monkeypatch.setattr(agent.agent.host.documents, "write", slow)
    cut = threading.Timer(0.3, interrupt)
    cut.start()
    answer = client.ensure("flavor", "small", {"vcpus": 1, "ram": 64})
    cut.join()
    assert answer["resource"]["name"] == "small" and len({one.id for one in asked}) == 1 and logins(sshd) == 2
    assert client.ensure("flavor", "small", {"vcpus": 1, "ram": 64})["changed"] is False


def test_without_paramiko(agent, sshd):
    code = ("import sys; sys.modules['paramiko'] = None\n"
            "from ansible_collections.magnetar.compute.plugins.module_utils import run\n"
            f"client = run.connect_client({{'endpoint': {sshd.endpoint(agent.socket)!r}}})\n"
            "try:\n    client.info()\nexcept Exception as error:\n    print(type(error).__name__, error)\n")
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                           env=ELSEWHERE).stdout
    assert "Unreachable" in found and f"{sys.executable} -m pip install paramiko" in found


def test_only_an_ssh_endpoint_needs_paramiko(agent):
    code = ("import sys; sys.modules['paramiko'] = None\n"
            "from ansible_collections.magnetar.compute.plugins.module_utils import run\n"
            f"print(run.connect_client({{'endpoint': {agent.endpoint!r}}}).info()['host'])\n")
    subprocess.run([sys.executable, "-c", code], check=True, env=ELSEWHERE)


def test_a_module(module, sshd, agent):
    """A task from end to end: check, run, run again; and its failures are results."""
    options = {"name": "small", "vcpus": 1, "ram": 64, "endpoint": sshd.endpoint(agent.socket)}
    assert module("flavor", check=True, **options)["changed"]
    assert module("flavor", **options)["flavor"]["ram"] == 64
    assert module("flavor", **options)["changed"] is False
    (sshd.home / ".ssh/known_hosts").unlink()
    failed = module("flavor", **options)
    assert failed["failed"] and "ssh-keyscan" in failed["msg"] and failed["error"]["code"] == "unreachable"


@pytest.mark.parametrize(("words", "direct"), [
    (["-c", "local"], "always"), (["-c", "local"], "never"),
    (["-b", "--become-user", "nobody", "--ssh-common-args", "-o UserKnownHostsFile=/dev/null"], "always")])
def test_a_task_is_done_on_the_controller(sshd, agent, tmp_path, words, direct):
    """Whatever the connection, and who becomes whom; the user of a machine credential (-u) is ansible_user."""
    task = {"magnetar.compute.flavor": {"name": "small", "vcpus": 1, "ram": 64, "direct": direct, "endpoint":
            "ssh://{{ ansible_user }}@{{ ansible_host }}:{{ ansible_port }}" + str(agent.socket)}}
    (tmp_path / "book.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    (tmp_path / "hosts").write_text(f"kvm1 ansible_host=127.0.0.1 ansible_port={sshd.port}\n")
    done = subprocess.run([Path(sys.executable).parent / "ansible-playbook", "-i", tmp_path / "hosts", "-u", sshd.user,
                           *words, tmp_path / "book.json"], check=False, capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache"), "LC_ALL": "C.UTF-8",
                               "ANSIBLE_PYTHON_INTERPRETER": sys.executable})
    assert done.returncode == 0, done.stdout + done.stderr
    assert logins(sshd) == 1


@pytest.mark.parametrize(("patterns", "name", "fits"), [
    ("kvm1", "kvm1", True), ("KVM1", "kvm1", True), ("kvm1,kvm2", "kvm2", True), ("kvm?", "kvm1", True),
    ("*.example.org,!bad.example.org", "bad.example.org", False), ("kvm1", "[kvm1]:2222", False),
    ("[kvm1]:2222", "[kvm1]:2222", True), ("[kvm*]:2222", "[kvm1]:2222", True), ("|1|bad", "kvm1", False),
])
def test_names_of_known_hosts(patterns, name, fits, tmp_path):
    known = tmp_path / "known"
    known.write_text(f"\n# {name} x\n@cert-authority * ssh-rsa AAAA\n{patterns} ssh-rsa AAAA\n{name} bad\n")
    found = known_hosts.lines_of_host(known_hosts.read_known_hosts([str(known), str(tmp_path / "none")]), name)
    assert [line.place for line in found] == ([f"{known}:4"] if fits else [])
