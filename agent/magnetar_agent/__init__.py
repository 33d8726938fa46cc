# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent of Magnetar: it makes one libvirt host match the agent's documents, which describe the desired
servers, volumes and other resources."""
