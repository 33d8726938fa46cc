# SPDX-License-Identifier: GPL-3.0-or-later
"""Regular expressions of filters: what PostgreSQL and this matcher understand alike.

SQLite has none of its own. Python's ``re`` backtracks, so a short expression can keep it busy for years, and PostgreSQL
does not understand all of it. This matcher simulates all states at once (an NFA): its time is linear in the text.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

#: Limits of an expression: characters, nested parentheses, and states when its repeats are expanded.
LONGEST, DEEPEST, PARTS = 255, 32, 500
#: Most that a repeat may count to: PostgreSQL's limit.
COUNTS = 255
#: Transitions that are cached for an expression.
KEPT = 4096
SPECIAL = frozenset(r"\^$.|?*+()[{")
KNOWN = r"letters and signs, . [a-z] [^a-z] (a|b) ^ $ * + ? {m,n} and \d \w \s"
Fits = Callable[[str], bool]
Tree = tuple[Any, ...]
CLASSES: dict[str, Fits] = {"d": str.isdecimal, "s": str.isspace, "w": lambda char: char.isalnum() or char == "_"}


class PatternRefused(ValueError):
    """An expression that is wrong, too large, or not understood alike by both engines; the text says why."""


class _Parser:
    """Parses an expression to a tree: ``all`` or ``any`` of trees, ``repeat`` of one, ``char``, ``start``, ``end``."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def parsed(self) -> Tree:
        tree = self._any()
        if self.at < len(self.text):
            raise PatternRefused("a ) has no (")
        return tree

    def _here(self, count: int = 1) -> str:
        return self.text[self.at:self.at + count]

    def _next(self) -> str:
        char = self._here()
        self.at += 1
        return char

    def _any(self) -> Tree:
        found = [self._all()]
        while self._here() == "|":
            self.at += 1
            found.append(self._all())
        return found[0] if len(found) == 1 else ("any", found)

    def _all(self) -> Tree:
        found: list[Tree] = []
        while self._here() and self._here() not in "|)":
            found.append(self._repeated(self._one()))
        return found[0] if len(found) == 1 else ("all", found)

    def _one(self) -> Tree:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return ("char", self._bracket())
        if char in "*+?{":
            raise PatternRefused(f"a {char} repeats nothing; write \\{char} for the sign itself")
        if char == "\\":
            return ("char", self._escaped())
        if char in "^$":
            return ("start" if char == "^" else "end",)
        return ("char", _any_char if char == "." else char.__eq__)

    def _group(self) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise PatternRefused(f"there are more than {DEEPEST} parentheses within each other")
        if self._here() == "?":
            if self._here(2) != "?:":
                raise PatternRefused("of what begins with (? only (?: is known")
            self.at += 2
        tree = self._any()
        if self._next() != ")":
            raise PatternRefused("a ( is not closed")
        self.depth -= 1
        return tree

    def _escaped(self) -> Fits:
        char = self._next()
        if char.lower() in CLASSES:
            fits = CLASSES[char.lower()]
            return fits if char.islower() else lambda one: not fits(one)
        if not char or char.isalnum():
            raise PatternRefused(f"\\{char} is not known")
        return char.__eq__

    def _bracket(self) -> Fits:
        negated, first = self._here() == "^", True
        self.at += negated
        chars: set[str] = set()
        fits: list[Fits] = []
        while first or self._here() != "]":
            char = self._next()
            if not char or not self._here():
                raise PatternRefused("a [ is not closed")
            if char == "[" and self._here() in ":.=":
                raise PatternRefused("[: [. and [= are not known")
            if char == "-" and not first and self._here() != "]":
                raise PatternRefused("a - within [] stands first, last, or between two characters")
            first = False
            if char == "\\":
                if self._here() in ("D", "S", "W"):  # not every PostgreSQL knows them there
                    raise PatternRefused(f"\\{self._here()} is not known within []")
                fits.append(self._escaped())
            elif self._here() == "-" and self._here(2) != "-]":
                fits.append(self._range(char))
            else:
                chars.add(char)
        self.at += 1
        return lambda one: (one in chars or any(fit(one) for fit in fits)) is not negated

    def _range(self, low: str) -> Fits:
        self.at += 1
        high = self._next()
        if low in "-[\\" or high in ("", "-", "[", "\\") or high < low:
            raise PatternRefused(f"{low}-{high} is no range of characters")
        return lambda char: low <= char <= high

    def _repeated(self, tree: Tree) -> Tree:
        char = self._here()
        if not char or char not in "*+?{":
            return tree
        if tree[0] in ("start", "end") and self.text[self.at - 1] in "^$":
            raise PatternRefused(f"a {char} repeats ^ or $")
        self.at += 1
        least, most = self._bounds() if char == "{" else {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if self._here() == "?":  # the shortest: the same question
            self.at += 1
        if self._here() and self._here() in "*+?{":
            raise PatternRefused(f"a {self._here()} repeats a repeat; use parentheses")
        return ("repeat", tree, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        inner, closed, rest = self.text[self.at:].partition("}")
        low, comma, high = inner.partition(",")
        if not (closed and _count(low) and (_count(high) or not high)):
            raise PatternRefused("a { begins {m}, {m,} or {m,n}; write \\{ for the sign itself")
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > COUNTS or (most is not None and most < least):
            raise PatternRefused(f"a repeat counts from a number to one that is as large, and {COUNTS} at most")
        self.at = len(self.text) - len(rest)
        return least, most


def _count(text: str) -> bool:
    return 0 < len(text) < 4 and all(char in string.digits for char in text)


def _any_char(_char: str) -> bool:
    return True


CHAR, FORK, START, END, FOUND = range(5)
State = frozenset[int]


class Pattern:
    """A regular expression; ``search`` says whether it matches somewhere in a text. Raises ``PatternRefused``."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise PatternRefused(f"it has more than {LONGEST} characters")
        #: States: kind, which characters match (of CHAR), and the next states.
        self._parts: list[tuple[int, Fits, list[int]]] = [(FOUND, _any_char, [])]
        self._size = 0
        self._entry = self._built(_Parser(text).parsed(), 0)
        self._steps: dict[tuple[State, str], State] = {}
        self._anew = self._reached([self._entry])
        self._first = self._reached([self._entry], start=True)

    def search(self, text: str) -> bool:
        """Whether it matches somewhere in *text*."""
        state, steps = self._first, self._steps
        for char in text:
            if 0 in state:
                return True
            found = steps.get((state, char))
            state = self._step(state, char) if found is None else found
        return 0 in self._reached(state, start=not text, end=True)

    def _step(self, state: State, char: str) -> State:
        found = self._anew | self._reached(to for kind, fits, after in map(self._parts.__getitem__, state)
                                           if kind == CHAR and fits(char) for to in after)
        if len(self._steps) >= KEPT:
            self._steps.clear()
        self._steps[state, char] = found
        return found

    def _reached(self, numbers: Iterable[int], start: bool = False, end: bool = False) -> State:
        """The states that are reached from these without a character."""
        left, seen = list(numbers), set()
        while left:
            number = left.pop()
            if number in seen:
                continue
            seen.add(number)
            kind, _fits, after = self._parts[number]
            if kind == FORK or (kind == START and start) or (kind == END and end):
                left += after
        return frozenset(number for number in seen if self._parts[number][0] in (CHAR, END, FOUND))

    def _part(self, kind: int, after: list[int], fits: Fits = _any_char) -> int:
        self._parts.append((kind, fits, after))
        return len(self._parts) - 1

    def _built(self, tree: Tree, then: int) -> int:
        """The state that *tree* begins with, when *then* follows."""
        self._size += 1
        if self._size > PARTS:
            raise PatternRefused(f"it has more than {PARTS} parts when its repeats are written out")
        kind = tree[0]
        if kind == "char":
            return self._part(CHAR, [then], tree[1])
        if kind == "all":
            for one in reversed(tree[1]):
                then = self._built(one, then)
            return then
        if kind == "any":
            return self._part(FORK, [self._built(one, then) for one in tree[1]])
        if kind == "repeat":
            return self._repeat(tree[1], tree[2], tree[3], then)
        return self._part(START if kind == "start" else END, [then])

    def _repeat(self, tree: Tree, least: int, most: int | None, then: int) -> int:
        if most is None:
            after = [then]
            then = self._part(FORK, after)
            after.append(self._built(tree, then))
        else:
            out = then
            for _more in range(most - least):
                then = self._part(FORK, [out, self._built(tree, then)])
        for _once in range(least):
            then = self._built(tree, then)
        return then


@lru_cache(maxsize=100)
def search(text: str) -> Callable[[str], bool]:
    """A function that says whether the expression *text* matches somewhere. Raises ``PatternRefused``."""
    if SPECIAL.isdisjoint(text) and len(text) <= LONGEST:
        return lambda where: text in where
    return Pattern(text).search


def regexp(pattern: str, value: Any) -> bool | None:
    """SQLite's operator REGEXP."""
    return None if value is None else search(pattern)(str(value))
