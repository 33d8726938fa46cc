# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports of servers: a folder with the disks of a stopped server, and a definition for libvirt that needs no Magnetar.
"""
