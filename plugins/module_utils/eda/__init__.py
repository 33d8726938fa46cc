# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the event source of Event-Driven Ansible."""
