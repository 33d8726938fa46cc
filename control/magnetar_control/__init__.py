# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane: the API service that OpenStack's clients speak to, conductors, the scheduler, cells."""
