# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulation of a day: a whole cloud under load, with faults, and what is wrong with it afterwards.

``cloud`` starts it, ``filling`` gives it servers, ``load`` loads it, ``faults`` lets hosts die and upgrades the control
plane, ``record`` keeps what happened, ``verdict`` says what is wrong.
"""
