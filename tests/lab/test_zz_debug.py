import pytest, time
from agent import eventually
from test_cloud_ovn import *  # noqa
from test_cloud_ovn import cloud  # noqa
pytestmark = [pytest.mark.lab]
for n in ("test_servers_of_two_projects","test_the_metadata_service","test_a_floating_ip","test_a_group_is_taken_from_a_running_server","test_live_migration","test_the_central_is_killed"):
    globals().pop(n, None)
def test_debug(cloud):
    cloud.project("alpha")
    ask = cloud.of["alpha"].ask
    ask("network create lan"); ask("subnet create --network lan --subnet-range 10.5.0.0/24 lan-v4")
    ask("port create --network lan --fixed-ip ip-address=10.5.0.11 a1")
    ask("server create a1 --image tiny --flavor tiny --port a1")
    eventually(lambda: cloud.of["alpha"].json("server show a1")["status"] in ("ACTIVE", "ERROR"), "built")
    at = cloud.server("a1")
    cloud.guests.leased(at.host, at.id, cloud.of["alpha"].json("port show a1")["mac_address"], at.address)
    h = cloud.site.hosts[at.host]
    def r(c): print("$", c); print(h.run(["sh","-c",c+" 2>&1"],check=False).stdout[-5000:])
    print(cloud.sh("a1", "printf 'GET /openstack/latest/meta_data.json HTTP/1.0\\r\\n\\r\\n' | nc -w 5 169.254.169.254 80; ip neigh; ip route"))
    r("nft list ruleset"); r("ip -d link | tail -40"); r("journalctl -o cat -u magnetar-agent -u magnetar-metadata | grep -i -E 'metadata|guests|169' | tail -20")
    r("magnetar host info; curl -s --unix-socket /run/magnetar/agent.sock http://localhost/v1/host | head -c 3000")
    r("tail -5 /var/log/ovn/ovn-controller.log /var/log/openvswitch/ovs-vswitchd.log")
    (tap,) = [x for x in h.run(["ovs-vsctl","list-ports","br-int"]).stdout.split() if x.startswith("mt")]
    r("for f in /sys/class/net/*; do echo $f $(cat $f/statistics/rx_packets $f/statistics/tx_packets); done")
    print(cloud.sh("a1", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 169.254.169.254 80; ip neigh; netstat -s 2>/dev/null | head -3"))
    r("for f in /sys/class/net/*; do echo $f $(cat $f/statistics/rx_packets $f/statistics/tx_packets); done")
