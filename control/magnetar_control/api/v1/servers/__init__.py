# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of servers and of their attachments."""
