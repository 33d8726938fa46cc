# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent of Magnetar: makes one libvirt host be what its documents say."""
