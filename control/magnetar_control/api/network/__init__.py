# SPDX-License-Identifier: GPL-3.0-or-later
"""Neutron's API v2.0 over the network service."""
