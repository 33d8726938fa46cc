# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of options of openstack.cloud: refused, renamed, converted, ignored, or a filter."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.options import Option
from ..core.values import Text

OF = "For playbooks of C(openstack.cloud). "


class ForeignOption(Option):
    """An option of openstack.cloud. ``translate`` replaces it by options of this collection."""

    def __init__(self, value, doc, aliases=(), secret=False):
        super().__init__(value, OF + doc, aliases=aliases, secret=secret)

    def translate(self, params):
        """Change *params*, a copy of the module parameters, so that they say the same in options of this collection.
        Raises ``InvalidField`` if that is not possible. Only called if the option is set.
        """
        raise NotImplementedError


class RefusedOption(ForeignOption):
    """An option of openstack.cloud that is refused. *reason*: the end of the error message, which says why, or how to
    get the same effect. *harmless*: values that are accepted, because they request nothing.
    """

    def __init__(self, reason, value=None, harmless=(), aliases=()):
        accepted = " Only %s is accepted." % " or ".join("V(%s)" % str(text).lower() if text not in ([], {}) else
                                                         "an empty value" for text in harmless) if harmless else ""
        super().__init__(value or Text(), "Refused: %s.%s" % (reason, accepted), aliases)
        self.reason, self.harmless = reason, harmless

    def translate(self, params):
        if params[self.option] not in self.harmless:
            raise InvalidField(self.option, "is an option of openstack.cloud that is refused here: %s" % self.reason)


class IgnoredOption(ForeignOption):
    """An option of openstack.cloud that has no counterpart in this collection, and no effect."""

    def translate(self, params):
        pass


class RenamedOption(ForeignOption):
    """An option of openstack.cloud that has the name *target* in this collection. *convert*: a function that returns
    the value of *target*; its parameters are the option's value and the module parameters.
    """

    def __init__(self, value, target, doc="", convert=None, aliases=()):
        super().__init__(value, "The same as O(%s)%s." % (target, doc and "; " + doc), aliases)
        self.target, self.convert = target, convert

    def translate(self, params):
        if params.get(self.target) is not None:
            raise InvalidField(self.option, "cannot be combined with %s; give one or the other" % self.target)
        value = params[self.option]
        params[self.target] = value if self.convert is None else self.convert(value, params)


class ConvertedOption(ForeignOption):
    """An option of openstack.cloud that *convert* replaces by options of this collection. *convert*: a function that
    changes the module parameters, its only argument.
    """

    def __init__(self, value, doc, convert, aliases=()):
        super().__init__(value, doc, aliases)
        self.convert = convert

    def translate(self, params):
        self.convert(params)


class FilterOption(ForeignOption):
    """An option of an info module of openstack.cloud that is an item of the option ``filters`` in this collection.
    *field*: the filtered field, by default named like the option. *convert*: a function that returns the filter's
    value.
    """

    def __init__(self, value, field=None, convert=None, aliases=()):
        super().__init__(value, "The filter%s of O(filters)." % (" C(%s)" % field if field else ""), aliases)
        self.filtered, self.convert = field, convert

    def translate(self, params):
        value = params[self.option]
        name, value = self.filtered or self.option, value if self.convert is None else self.convert(value)
        filters = params.get("filters") or {}
        if filters.get(name, value) != value:
            raise InvalidField(self.option, "differs from filters.%s; give one or the other" % name)
        params["filters"] = dict(filters, **{name: value})
