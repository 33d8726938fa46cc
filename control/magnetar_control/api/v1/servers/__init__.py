# SPDX-License-Identifier: GPL-3.0-or-later
"""The drivers of servers and of their attachments."""
