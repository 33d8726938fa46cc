# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers of the network service's kinds."""
