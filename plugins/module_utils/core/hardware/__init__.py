# SPDX-License-Identifier: GPL-3.0-or-later
"""Hardware of servers: which extra specs of flavors and properties of images there are, and what acts on them.

One row each, in ``flavor_specs`` and ``image_properties``. A spec sets a field of the server's ``hardware`` (``rows``,
which ``merge`` makes one of flavor and image), or acts in one or more parts of Magnetar (``AGENT``, ``API``,
``SCHEDULER``). A server of a spec that nothing acts on is refused, by name, with what is missing (or made with a
warning where the setting ``specs_without_effect`` says so): see ``without_effect``.
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
    """*name*, *value* and *usual* are regular expressions of the whole text; *usual* are the values that ask for what
    every server has anyway. *acts*: the parts that act on it. *lacks*: what is missing where nothing does. *row*: the
    row of the field of ``hardware`` that it sets. *exists*: which texts of the group ``what`` of *name* there are; a
    table with hundreds of names is no regular expression. *ignored*: Nova does not know the name, and ignores it."""

    name: str
    value: str
    acts: frozenset[str] = frozenset()
    usual: str = ""
    lacks: str = ""
    row: Optional[Row] = None
    exists: Callable[[str], bool] = bool
    ignored: bool = False

    def asks_for_nothing(self, value: str) -> bool:
        """Return whether *value* asks for what every server has anyway."""
        return bool(self.usual) and re.fullmatch(self.usual, value) is not None


class Table:
    """The rows of one kind of specs. *namespaces*: a regular expression of the beginnings of names in which nothing but
    the rows exists; other names are free."""

    def __init__(self, what: str, rows: Sequence[Spec], namespaces: str) -> None:
        self.what, self.rows = what, tuple(rows)
        self._namespaces = namespaces

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Spec]]:
        """The rows with their names compiled, when they are first needed: together they take half a megabyte."""
        return [(re.compile(row.name), row) for row in self.rows]

    def find(self, name: str) -> Optional[Spec]:
        """The row of the spec *name*; ``None`` for one that nobody knows."""
        return next((row for known, row in self._patterns if (match := known.fullmatch(name)) and (
            "what" not in known.groupindex or row.exists(match["what"]))), None)

    def reserved(self, name: str) -> bool:
        """Whether only the rows exist in the namespace of *name*."""
        return bool(re.match(self._namespaces, name))

    def validate(self, name: str, value: str) -> None:
        """Raises ``InvalidField`` when the namespace of *name* is reserved, and there is no such spec or value."""
        row = self.find(name)
        if row is None and self.reserved(name):
            raise InvalidField("extra_specs.%s" % name, "Validation failed; extra spec '%s' does not appear to be a "
                               "valid extra spec.%s Another namespace is free to use" % (name, self._nearest(name)))
        if row is not None and not re.fullmatch(row.value, value):
            raise InvalidField("extra_specs.%s" % name, "Validation failed; it must match %s" % row.value, value)

    def _nearest(self, name: str) -> str:
        near = difflib.get_close_matches(name, [re.sub(r"\\(.)", r"\1", row.name) for row in self.rows], 1, 0.7)
        return " Did you mean '%s'?" % near[0] if near and self.find(near[0]) else ""

    def acted_on(self, given: Mapping[str, Any], part: str) -> dict[str, str]:
        """Those of the *given* specs that a *part* acts on, as texts."""
        rows = ((name, value, self.find(name)) for name, value in given.items())
        return {name: str(value) for name, value, row in rows if row is not None and part in row.acts}

    def malformed(self, given: Mapping[str, Any]) -> Iterator[str]:
        """For each of the *given* specs whose value is none that it can have: a text that names it."""
        for name, value in sorted(given.items()):
            row = self.find(name)
            if row is not None and row.row is None and not re.fullmatch(row.value, str(value)):
                yield "%s %s=%s: it must match %s" % (self.what, name, value, row.value)

    def without_effect(self, given: Mapping[str, str], parts: Collection[str] = EVERYWHERE) -> Iterator[str]:
        """For each of the *given* specs that none of the *parts* acts on: a text that names it and what is missing.
        Names that are free pass: they are somebody else's."""
        for name, value in sorted(given.items()):
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

    def ignored(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Yield a text for each of the *given* specs that Nova does not know and ignores."""
        for name, value in sorted(given.items()):
            row = self.find(name)
            if row is not None and row.ignored:
                yield "%s %s=%s is ignored: Nova knows no such %s" % (self.what, name, value, self.what)
