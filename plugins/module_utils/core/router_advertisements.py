# SPDX-License-Identifier: GPL-3.0-or-later
"""Protection from router advertisements that guests send in networks of OVN: the cloud lets OVN mark them, and hosts
drop marked packets.

ACLs cannot drop them: OVN has a flow before all ACLs that lets them pass (ovn-northd(8), ``ls_in_acl``). QoS rules of
OVN apply after that flow (ovn-nb(5), QoS), so such a rule sets the mark. A flow of the agent drops marked packets where
they leave a host's bridge for a guest or the physical network.
"""

from __future__ import annotations

#: ICMPv6 type of a router advertisement (RFC 4861).
TYPE = 134
#: The mark in the traffic class (DSCP): a value for local use (RFC 2474) that Neutron's QoS rules do not have.
DSCP = 63
