# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent of Magnetar: brings one libvirt host to the state of its documents."""
