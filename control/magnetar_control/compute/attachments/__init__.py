# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases about what servers are given: volumes, ports, shares."""
