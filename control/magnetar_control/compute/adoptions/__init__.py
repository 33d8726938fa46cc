# SPDX-License-Identifier: GPL-3.0-or-later
"""Adoption in a cloud: libvirt domains of its hosts that other programs have defined, and the servers they become."""
