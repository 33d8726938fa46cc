# SPDX-License-Identifier: GPL-3.0-or-later
"""Router advertisements of guests in networks of OVN: the cloud makes OVN mark them, and hosts drop marked packets.

No ACL can stop them: OVN has a flow before all ACLs that lets them pass (ovn-northd(8), ``ls_in_acl``). QoS rules of
OVN change packets after that flow (ovn-nb(5), QoS). A flow of the agent then drops them where they leave a host's
bridge for a guest or for the physical network.
"""

from __future__ import annotations

#: ICMPv6 type of a router advertisement (RFC 4861).
TYPE = 134
#: The mark in the traffic class (DSCP): a value for local use (RFC 2474) that Neutron's QoS rules do not have.
DSCP = 63
