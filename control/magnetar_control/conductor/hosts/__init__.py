# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch over hosts and their agents, and the sending of changes to hosts and running guests."""
