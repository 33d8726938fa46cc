# SPDX-License-Identifier: GPL-3.0-or-later
"""The conductor: it leases actions from queues, runs their flows, and brings servers to the requested state."""
