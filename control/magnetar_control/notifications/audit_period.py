# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit periods: the hours, days, months or years (``instance_usage_audit_period``) by which usage is told. Moments are
in UTC."""

from __future__ import annotations

from datetime import datetime, timedelta


def last_period(unit: str, before: datetime) -> tuple[datetime, datetime]:
    """The last hour, day, month or year that was over before a moment."""
    end = _beginning(unit, before)
    if end == before:
        end = _earlier(unit, end)
    return _earlier(unit, end), end


def current_period(unit: str, moment: datetime) -> tuple[datetime, datetime]:
    """The part that has passed of the period in which a moment is."""
    return _beginning(unit, moment), moment


def _beginning(unit: str, moment: datetime) -> datetime:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return {"hour": moment.replace(minute=0, second=0, microsecond=0), "day": day, "month": day.replace(day=1),
            "year": day.replace(month=1, day=1)}[unit]


def _earlier(unit: str, moment: datetime) -> datetime:
    """The beginning of the period before the one that begins at *moment*."""
    if unit == "year":
        return moment.replace(year=moment.year - 1)
    if unit == "month":
        return (moment - timedelta(days=1)).replace(day=1)
    return moment - timedelta(**{f"{unit}s": 1})
