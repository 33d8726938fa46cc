# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to libvirt, and the places of calls on them."""
