# SPDX-License-Identifier: GPL-3.0-or-later
"""Capabilities of the host: libvirt's, KVM, devices."""
