# SPDX-License-Identifier: GPL-3.0-or-later
"""The shared core of Magnetar: declarations, plans, errors and the client.

Standard library only, relative imports only, Python 3.9: the same files are packed into Ansible modules and installed
as the package ``magnetar_core`` next to the agent.
"""
