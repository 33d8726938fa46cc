# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane: the API service for OpenStack's clients, conductors, the scheduler, cells."""
