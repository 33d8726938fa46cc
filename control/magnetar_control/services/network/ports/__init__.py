# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports, NICs and trunks."""
