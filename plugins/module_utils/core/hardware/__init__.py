# SPDX-License-Identifier: GPL-3.0-or-later
"""The known extra specs of flavors and properties of images, and the parts that act on them.

Each has a row in ``flavor_specs`` or ``image_properties``. A spec sets a field of the server's ``hardware`` (``rows``;
``merge`` combines flavor and image), or acts in one or more parts of Magnetar (``AGENT``, ``API``, ``SCHEDULER``). A
server with a spec that no part acts on is refused, and the message names the spec and the missing part; with the
setting ``specs_without_effect`` the server is made with a warning. See ``without_effect``.
"""

from __future__ import annotations

import difflib
import re
from functools import cached_property
from typing import Any, Callable, Collection, Iterator, Mapping, NamedTuple, Optional, Sequence

from ..errors import InvalidField
from .rows import Row

#: Parts that act on specs.
AGENT, API, SCHEDULER = "agent", "api", "scheduler"
EVERYWHERE = frozenset((AGENT, API, SCHEDULER))


class Spec(NamedTuple):
    """A known extra spec of flavors, or a known property of images (below, both are called spec).

    *name*, *value*: regular expressions for the name and for the valid values. *usual*: a regular expression for values
    that only request the default. *acts*: the parts of Magnetar that implement the spec (``AGENT``, ``API``,
    ``SCHEDULER``). *lacks*: if no part implements the spec, a text about the missing feature. *row*: the ``Row`` of the
    field of ``hardware`` (a field of servers) that the spec sets. *exists*: a function that checks the text that the
    group ``what`` of *name* matches, such as the name of a trait. *ignored*: Nova does not know the spec and ignores
    it.
    """

    name: str
    value: str
    acts: frozenset[str] = frozenset()
    usual: str = ""
    lacks: str = ""
    row: Optional[Row] = None
    exists: Callable[[str], bool] = bool
    ignored: bool = False

    def asks_for_nothing(self, value: str) -> bool:
        """Return whether *value* requests only the default, which every server has anyway."""
        return bool(self.usual) and re.fullmatch(self.usual, value) is not None


class Table:
    """All known extra specs of flavors, or all known properties of images. *namespaces*: a regular expression for
    prefixes of names. Unknown names with such a prefix are errors; other unknown names are allowed.
    """

    def __init__(self, resource_type: str, rows: Sequence[Spec], namespaces: str) -> None:
        self.what, self.rows = resource_type, tuple(rows)
        self._namespaces = namespaces

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Spec]]:
        """Return a pair for each ``Spec`` in the table: the compiled pattern of its name, and the ``Spec``. The
        patterns are compiled at the first use, because they take half a megabyte of memory.
        """
        return [(re.compile(row.name), row) for row in self.rows]

    def find(self, name: str) -> Optional[Spec]:
        """Return the ``Spec`` for the extra spec or property *name*; ``None`` for an unknown name."""
        return next((row for pattern, row in self._patterns if (match := pattern.fullmatch(name)) and (
            "what" not in pattern.groupindex or row.exists(match["what"]))), None)

    def reserved(self, name: str) -> bool:
        """Return whether *name* begins with a prefix in ``namespaces``, so that an unknown name is an error."""
        return bool(re.match(self._namespaces, name))

    def validate(self, name: str, value: str) -> None:
        """Raise ``InvalidField`` if the extra spec *name* does not accept *value*, or if *name* is unknown and has a
        reserved prefix.
        """
        row = self.find(name)
        if row is None and self.reserved(name):
            raise InvalidField("extra_specs.%s" % name, "Validation failed; extra spec '%s' does not appear to be a "
                               "valid extra spec.%s Another namespace is free to use" % (name, self._nearest(name)))
        if row is not None and not re.fullmatch(row.value, value):
            raise InvalidField("extra_specs.%s" % name, "Validation failed; it must match %s" % row.value, value)

    def _nearest(self, name: str) -> str:
        near = difflib.get_close_matches(name, [re.sub(r"\\(.)", r"\1", row.name) for row in self.rows], 1, 0.7)
        return " Did you mean '%s'?" % near[0] if near and self.find(near[0]) else ""

    def acted_on(self, specs: Mapping[str, Any], part: str) -> dict[str, str]:
        """Return the *specs* (name to value) that *part* of Magnetar (``AGENT``, ``API`` or ``SCHEDULER``) implements,
        with their values as strings.
        """
        rows = ((name, value, self.find(name)) for name, value in specs.items())
        return {name: str(value) for name, value, row in rows if row is not None and part in row.acts}

    def malformed(self, specs: Mapping[str, Any]) -> Iterator[str]:
        """Yield an error message for each of the *specs* (name to value) whose value is malformed. Specs that set a
        field of ``hardware`` are skipped; ``without_effect`` reports their malformed values."""
        for name, value in sorted(specs.items()):
            row = self.find(name)
            if row is not None and row.row is None and not re.fullmatch(row.value, str(value)):
                yield "%s %s=%s: it must match %s" % (self.what, name, value, row.value)

    def without_effect(self, specs: Mapping[str, str], parts: Collection[str] = EVERYWHERE) -> Iterator[str]:
        """Yield a message with the reason for each of the *specs* (name to value) that has no effect. Either its name
        is unknown, its value is not supported, or none of the *parts* of Magnetar implements it. Unknown names without
        a reserved prefix are skipped, because other software uses them. Values that only request the default are
        skipped too."""
        for name, value in sorted(specs.items()):
            row = self.find(name)
            if row is not None and row.row is not None:
                try:
                    row.row.parse(str(value))
                except InvalidField as error:
                    yield "%s %s=%s: %s" % (self.what, name, value, error.details["rule"])
            elif row is None:
                if self.reserved(name):
                    yield "%s %s=%s: there is no such %s" % (self.what, name, value, self.what)
            elif not row.ignored and not row.acts.intersection(parts) and not row.asks_for_nothing(str(value)):
                lacks = row.lacks or "nothing here acts on it yet"
                yield "%s %s=%s: %s" % (self.what, name, value, lacks if not row.acts else
                                        "only a cloud's %s acts on it" % " and ".join(sorted(row.acts)))

    def ignored(self, specs: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message for each of the *specs* (name to value) that Nova does not know and therefore ignores."""
        for name, value in sorted(specs.items()):
            row = self.find(name)
            if row is not None and row.ignored:
                yield "%s %s=%s is ignored: Nova knows no such %s" % (self.what, name, value, self.what)
