# SPDX-License-Identifier: GPL-3.0-or-later
"""Estates: declarations of the resources of several hosts and clouds, plans of their changes, and the work on a plan.

A *place* is an agent or a cloud. An *item* of a plan is one change of one resource at one place.
"""
