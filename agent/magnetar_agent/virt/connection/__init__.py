# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to libvirt, and the limits of concurrent calls on them."""
