# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation shows works: the examples of all modules, the playbook of the README, calls with curl.

They run against an agent with a fake hypervisor. Paths of files are those of the test; tasks that name a host of
example.org are only checked against the options of their module.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from magnetar_agent.settings import AgentSettings
from magnetar_core.kinds import CLOUD_KINDS
from magnetar_core.options import CONNECTION
from tests.support.agent import foreign
from tests.support.agent.ova import archive, vmware_description
from tests.support.modules.documents import fences, run
from tests.unit.core.images import sparse_vmdk, vhdx
from tools import terminal

from .conftest import ROOT, Running, specification
from .sshd import Sshd

sys.path.insert(0, str(ROOT / "tools"))  # scripts for a Python without packages, which import each other by name
import machine
import quickstart

pytestmark = pytest.mark.slow

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example\n"
OTHER_KEY = KEY.replace("5BBNJ me", "5BBNK new")
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("[a-z]*.py"))
#: Beginnings of names of modules that only a cloud serves; tests/unit/control/v1 runs their examples.
CLOUDS = (*(kind.noun for kind in CLOUD_KINDS), "console", "server_backup")
#: Beginnings of names of modules whose examples are about servers.
SERVERS = ("server", "volume", "interface")
IMAGE = "- magnetar.compute.image: {name: debian, filename: /srv/images/debian-12.qcow2}"
#: What examples about servers assume to be there.
NEEDED = f"""
{IMAGE}
- magnetar.compute.flavor: {{name: small, vcpus: 1, ram: 512}}
- magnetar.compute.keypair: {{name: me, public_key_file: /home/me/.ssh/id_ed25519.pub}}
- magnetar.compute.network: {{name: lan, cidr: 192.168.100.0/24}}
- magnetar.compute.volume: {{name: records, size: 5}}
- magnetar.compute.server: {{name: web1, flavor: small, image: debian, networks: [lan]}}
"""
#: Pages with plays for each way to an agent.
WAYS = ("reach-an-agent", "reach-an-agent-over-ssh", "give-awx-access-to-agents")
#: Pages on servers whose tasks run one page after the other.
SERVER_PAGES = [
    "howto/create-a-server", "howto/resize-a-server", "howto/set-the-hardware-of-a-server",
    "howto/boot-a-server-with-uefi", "howto/give-a-server-a-tpm", "howto/encrypt-the-disks-of-a-server",
    "howto/stop-a-server", "howto/rebuild-a-server", "howto/rescue-a-server",
    "howto/save-an-image-of-a-server", "reference/servers"]
#: And examples about what is done with volumes.
VOLUMES = """
- magnetar.compute.volume: {name: data, size: 20}
- magnetar.compute.volume: {name: copy, size: 1}
- magnetar.compute.volume: {name: faster, size: 20}
"""


def examples(module: str) -> str:
    """The text of the examples of *module*."""
    text = (ROOT / f"plugins/modules/{module}.py").read_text()
    return re.search(r'^EXAMPLES = r?"""(.*?)"""', text, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def place(tmp_path):
    """An agent, and a folder with the files that the documents name."""
    with placed(tmp_path) as running:
        yield tmp_path, running


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Such a place with what examples about servers assume, for those that only read."""
    folder = tmp_path_factory.mktemp("read")
    with placed(folder) as running:
        run((folder, running), yaml.safe_dump([{"hosts": "localhost", "gather_facts": False,
                                                "tasks": yaml.safe_load(moved(NEEDED, folder))}]))
        yield folder, running


@contextmanager
def placed(folder):
    """See ``place``."""
    (folder / "home/me/.ssh").mkdir(parents=True)
    (folder / "home/me/.ssh/id_ed25519.pub").write_text(KEY)
    (folder / "home/me/.ssh/id_new.pub").write_text(OTHER_KEY)
    (folder / "srv/images").mkdir(parents=True)
    (folder / "srv/estate").mkdir()
    (folder / "agent").mkdir()
    image = folder / "srv/images/debian-12.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "1M"], check=True)
    (folder / "tiny.qcow2").write_bytes(image.read_bytes())
    ovf = vmware_description({"shop-disk1.vmdk": 1 << 30}, nics={"VM Network": "E1000"})
    disk = sparse_vmdk(capacity=1 << 21)
    for place in ("srv/images", "agent"):
        (folder / place / "shop.ova").write_bytes(archive(("shop.ovf", ovf), ("shop-disk1.vmdk", disk)))
    (folder / "srv/images/shop.vhdx").write_bytes(vhdx())
    kernel = b"\x55\xaa\0\0HdrS".rjust(518, b"\0").ljust(8192, b"\0")
    (folder / "agent/vmlinuz").write_bytes(kernel)
    running = Running(folder / "agent", bridges=("br0", "br1"), guest_agents=True)
    running.hypervisor.network_outside("default")
    for name in ("mail", "wiki"):  # domains of other programs
        disk = foreign.file_disk(foreign.overlay(folder / "srv/images", f"{name}.qcow2"))
        running.hypervisor.defined_outside(foreign.foreign_xml(name, disk), "running")
    running.start()
    try:
        yield running
    finally:
        running.stop()


def moved(text: str, folder: Path) -> str:
    """*text* with the paths of the test."""
    for path in ("/srv/images", "/srv/estate", "/home/me"):
        text = text.replace(path, f"{folder}{path}")
    return text.replace("/var/lib/magnetar/import", f"{folder}/agent")


def test_examples_of_modules(place):
    plays = []
    for module in MODULES:
        if module.startswith(CLOUDS):
            continue
        tasks = [task for task in yaml.safe_load(moved(examples(module), place[0]))
                 if "example.org" not in str(task) and "'cloud': " not in str(task)]
        needed = yaml.safe_load(moved(NEEDED, place[0])) if module.startswith(SERVERS) else []
        needed += yaml.safe_load(VOLUMES) if module.startswith("volume_") else []
        plays.append({"name": module, "hosts": "localhost", "gather_facts": False, "tasks": needed + tasks})
    run(place, yaml.safe_dump(plays, sort_keys=False))


@pytest.mark.parametrize("module", MODULES)
def test_options_of_examples(module):
    """Every option is one of the module's, with a value that it takes; every module has two examples or more."""
    tasks = yaml.safe_load(examples(module))
    assert len(tasks) > 1
    for task in tasks:
        if f"magnetar.compute.{module}" in task:
            found = ArgumentSpecValidator(**specification(module)).validate(task[f"magnetar.compute.{module}"] or {})
            assert found.error_messages == []


def test_options_of_tasks_of_pages():
    """No page names an option that its module has not."""
    odd = [(page.name, module, sorted(unknown))
           for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
           for text in fences(str(page.relative_to(ROOT)), "yaml")
           for module, given in tasks_in(yaml.safe_load(text))
           if (unknown := set(given) - names_of(specification(module)["argument_spec"]))]
    assert odd == []


def tasks_in(found):
    """Module and options of each task, wherever it stands."""
    for name, value in found.items() if isinstance(found, dict) else ():
        module = str(name).removeprefix("magnetar.compute.")
        if module != name and module in MODULES and isinstance(value, dict):
            yield module, value
    for one in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from tasks_in(one)


def names_of(options):
    """Options, and what they may be called besides."""
    return {*options, *(name for one in options.values() for name in one.get("aliases", ()))}


def test_the_playbook_of_the_readme(place):
    plays, = fences("README.md", "yaml")
    said = run(place, plays, "--check", "-e", "debian_12_sha512=" + "0" * 128)
    assert "changed=4" in said


def test_the_picture_of_the_readme():
    """It is drawn from the recorded text, whose tasks are those of the playbook."""
    recorded = (ROOT / "docs/pictures/servers.txt").read_text()
    assert f"]({'docs/pictures/servers.svg'})" in (ROOT / "README.md").read_text()
    assert (ROOT / "docs/pictures/servers.svg").read_text() == terminal.session_svg(recorded, terminal.TITLE)
    tasks = [name for name, _options in tasks_in(yaml.safe_load(fences("README.md", "yaml")[0]))]
    assert re.findall(r"^TASK \[magnetar\.compute\.(\w+)\]", recorded, re.MULTILINE) == tasks


TUTORIALS = sorted((ROOT / "docs/start").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_commands_of_tutorials(page):
    """./quickstart takes the options, and tests with guests run the playbooks: tests/lab/…/test_quickstart*.py and
    test_playbooks.py. The files that commands name are those that ./quickstart writes.
    """
    commands = [line for text in fences(str(page.relative_to(ROOT)), "sh") for line in text.splitlines()]
    tested = "".join(path.read_text() for path in (ROOT / "tests/lab").rglob("test_*.py"))
    for words in map(shlex.split, commands):
        if words[0] == "./quickstart":
            quickstart.parse_options(words[1:])
        for name in (word for word in words if word.startswith("magnetar.compute.")):
            kind = name.removeprefix("magnetar.compute.")
            assert kind in MODULES if "-m" in words else kind in tested and (ROOT / f"playbooks/{kind}.yml").exists()
    files = set(re.findall(r"\.cache/[\w./-]+\w", "\n".join(commands)))
    assert files <= {str(path.relative_to(ROOT)) for path in (
        machine.HOSTS, machine.CLOUD, machine.CLOUD.with_name("clouds.yaml"), quickstart.GUEST / "disk.qcow2",
        quickstart.KEY.with_suffix(".pub"))}


def test_tasks_of_pages_on_servers(place):
    """In this order: a page uses what those before it made."""
    run_tasks_of_pages(place, "[]", SERVER_PAGES)


@pytest.mark.parametrize("page", [
    "import-an-image", "bring-in-an-ova", "connect-servers-to-networks", "let-a-guest-send-from-other-addresses",
    "plug-servers-into-ovn", "read-passwords-of-guests"])
def test_tasks_of_pages(place, page):
    needed = {"import-an-image": "[]", "connect-servers-to-networks": IMAGE}.get(page, NEEDED)
    run_tasks_of_pages(place, needed, [f"howto/{page}"])


@pytest.mark.parametrize("page", [
    "add-a-storage-pool", "attach-a-nic", "attach-a-volume", "attach-a-volume-of-another-host",
    "boot-a-server-from-a-volume", "create-a-volume", "encrypt-a-volume", "put-servers-on-ceph", "put-servers-on-lvm",
    "replace-a-volume", "snapshot-a-volume"])
def test_tasks_of_storage_pages(place, page):
    """With the pools that the page about pools names."""
    (pools,) = [yaml.safe_load(text)["pools"] for text in fences("docs/howto/add-a-storage-pool.md", "yaml")
                if text.startswith("pools")]
    agent = place[1].agent
    agent.host.settings = replace(agent.host.settings, root_pool="vg", pools={
        name: {key: f"{place[0]}{value}" if key == "path" else value for key, value in pool.items()}
        for name, pool in pools.items()})
    for pool in agent.host.settings.pools.values():
        if "libvirt_pool" in pool:
            agent.host.hypervisor.add_pool(pool["libvirt_pool"])
    data = "- magnetar.compute.volume: {name: data, size: 20}\n"
    more = data if page in ("attach-a-volume", "replace-a-volume") else ""
    run_tasks_of_pages(place, NEEDED + more, [f"howto/{page}"])


def run_tasks_of_pages(place, needed, pages):
    """Run the tasks *needed*, and those of each page."""
    plays = [yaml.safe_load(moved(needed, place[0]))]
    for tasks in (text for page in pages for text in fences(f"docs/{page}.md", "yaml")):
        if not tasks.startswith("- "):  # settings
            continue
        plays.append([task for task in yaml.safe_load(moved(tasks, place[0])) if "example.org" not in str(task)])
        for task in plays[-1]:
            next(options for options in task.values() if isinstance(options, dict)).pop("checksum", None)
    (place[0] / "srv/images/debian-12-genericcloud-amd64.qcow2").write_bytes((place[0] / "tiny.qcow2").read_bytes())
    run(place, yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks} for tasks in plays]))


@pytest.mark.parametrize(("page", "language", "first", "needed"), [
    ("README.md", "sh", "curl", NEEDED), ("docs/reference/agent-api.md", "", "alias mag=", "[]"),
])
def test_calls_with_curl(place, page, language, first, needed):
    folder, running = place
    tasks = yaml.safe_load(moved(needed, folder))
    run(place, yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    (script,) = [one for one in fences(page, language) if one.startswith(first)]
    script = script.replace("/run/magnetar/agent.sock", str(running.socket)).replace("mag -N", "endless -N")
    script = script.replace("curl ", "curl --fail-with-body ")
    head = (f"shopt -s expand_aliases\nendless() {{ curl -sS --max-time 1 --unix-socket {running.socket} \"$@\" || "
            "[ $? = 28 ]; }\nset -eo pipefail\n")
    done = subprocess.run(["bash", "-c", head + script], cwd=folder, check=False, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert '"error": {' not in done.stdout


def test_settings_of_the_agents_page():
    known = {one.name for one in fields(AgentSettings)}
    for page in ("docs/reference/agent.md", "docs/howto/grant-access-to-an-agent.md"):
        (text,) = fences(page, "yaml")
        assert set(yaml.safe_load(text)) <= known
    assert set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/agent.md").read_text(), re.MULTILINE)) == known


def configurations() -> list[str]:
    """Examples of the inventory plugin, and those of its page."""
    text = (ROOT / "plugins/inventory/servers.py").read_text()
    shown = re.search(r'^EXAMPLES = r"""(.*?)"""', text, re.DOTALL | re.MULTILINE)[1]
    return shown.split("\n---\n") + fences("docs/howto/use-the-inventory.md", "yaml")


@pytest.mark.parametrize("text", configurations(), ids=lambda text: text.split(":")[0].split("# ")[1])
def test_inventories(read, text):
    """Each is read from a file of the name that it shows, and asks the test's agent in place of its own or a cloud."""
    folder, running = read
    name, config = re.search(r"^# (\S+\.yml)", text, re.MULTILINE)[1], yaml.safe_load(text)
    config.pop("cloud", None)
    for one in (config, *[item for item in config.get("endpoints", []) if isinstance(item, dict)]):
        one.update({"endpoint": running.endpoint} if "endpoints" not in one else {})
    config["endpoints"] = [item if isinstance(item, dict) else running.endpoint for item in config.get("endpoints", [])]
    config = {key: value for key, value in config.items() if value != []}
    assert config.pop("filters", None) or "filters" not in text  # nobody has their metadata
    (folder / name).write_text(yaml.safe_dump(config))
    said = run(read, "[]", "-i", str(folder / name), command="ansible-inventory", arguments=["--list"])
    assert '"magnetar_endpoint"' in said and "[WARNING]" not in said, said


@pytest.mark.parametrize("number", range(4))
def test_plays_of_ways_in(place, tmp_path, monkeypatch, number):
    """With the test's agent, and where it says ssh through a real sshd."""
    folder, running = place
    sshd = Sshd(tmp_path / "ssh")
    found = [yaml.safe_load(text) for page in WAYS for text in fences(f"docs/howto/{page}.md", "yaml")
             if text.startswith("- hosts")]
    play, = found[number]
    play.pop("become", None)
    assert len(found) == 4
    options = play.get("module_defaults", {}).get("group/magnetar.compute.all")
    if options and options["endpoint"].startswith("ssh"):
        sshd.home.rename(folder / "home/me/sshd")
        (folder / "home/me/.ssh").rename(folder / "home/me/.ssh-before")
        (folder / "home/me/sshd/.ssh").rename(folder / "home/me/.ssh")
        (folder / ("known_hosts" if "ssh_known_hosts" in options else "home/me/.ssh/known_hosts")).write_text(sshd.line)
        play["vars"] = {"ansible_user": sshd.user, "ansible_host": f"127.0.0.1:{sshd.port}"}
        options["endpoint"] = options["endpoint"].replace("deploy", sshd.user) + str(running.socket)
    elif options:
        play["module_defaults"]["group/magnetar.compute.all"] = {"endpoint": running.endpoint}
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    sshd.start()
    try:
        run(place, yaml.safe_dump([play]))
    finally:
        sshd.stop(hard=True)


def test_environment_variables():
    """Pages name those that there are."""
    known = {option.env for option in CONNECTION if option.env} | {
        "MAGNETAR_DIRECT", "MAGNETAR_KILL_SEED", "MAGNETAR_KILL_OPERATIONS", "MAGNETAR_KILL_SERVERS",
        "MAGNETAR_EVERY_DEATH", "MAGNETAR_FUZZ_SEED", "MAGNETAR_FUZZ_SECONDS", "MAGNETAR_CONFORMANCE"}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert set(re.findall(r"\bMAGNETAR_[A-Z_]+\b", page.read_text())) <= known, page.name


def test_links():
    """Links between pages lead somewhere."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
