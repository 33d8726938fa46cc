# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases about resources that are attached to servers: volumes, ports, shares."""
