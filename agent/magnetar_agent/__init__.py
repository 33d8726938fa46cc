# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent of Magnetar: it makes one libvirt host match the documents of the agent."""
