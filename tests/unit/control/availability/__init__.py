# SPDX-License-Identifier: GPL-3.0-or-later
"""Automatic evacuation of hosts that have died."""
