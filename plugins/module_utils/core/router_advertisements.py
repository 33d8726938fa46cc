# SPDX-License-Identifier: GPL-3.0-or-later
"""Router advertisements of guests in networks of OVN: the cloud has OVN mark them, and hosts drop what is marked.

No rule of OVN stops them: its own flow, which lets them pass, comes before all ACLs (ovn-northd(8), ``ls_in_acl``). Its
rows of QoS change packets after that (ovn-nb(5), QoS), and a flow of the agent's ends them where they leave a host's
bridge for a guest, or for the physical network.
"""

from __future__ import annotations

#: ICMPv6's type of a router advertisement (RFC 4861).
TYPE = 134
#: What they are marked by in the traffic class (DSCP): one of the values for local use (RFC 2474), which Neutron's QoS
#: rules do not have.
DSCP = 63
