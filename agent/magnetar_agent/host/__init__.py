# SPDX-License-Identifier: GPL-3.0-or-later
"""The host: hypervisor protocol, inventory, networks, storage, and power sync."""
