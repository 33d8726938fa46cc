# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulation of a day: a whole cloud under load, with faults, and a check of the cloud afterwards.

``cloud`` starts the cloud, ``filling`` adds servers, ``load`` generates requests, ``faults`` stops hosts and upgrades
the control plane, ``record`` stores what happens, and ``verdict`` finds problems.
"""
