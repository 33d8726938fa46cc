# SPDX-License-Identifier: GPL-3.0-or-later
"""Regular expressions of filters: the subset that PostgreSQL and this matcher understand in the same way.

SQLite has no regular expressions of its own. Python's ``re`` backtracks, so that a short expression can keep it busy
for years, and PostgreSQL does not understand all of its syntax. This matcher simulates all states together (an NFA):
its time is linear in the length of the text.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

#: Limits of an expression: characters, nested parentheses, and states after repeats are expanded.
LONGEST, DEEPEST, PARTS = 255, 32, 500
#: Highest count of a repeat: PostgreSQL's limit.
COUNTS = 255
#: Number of transitions that are cached for an expression.
CACHE_SIZE = 4096
SPECIAL = frozenset(r"\^$.|?*+()[{")
KNOWN = r"letters and signs, . [a-z] [^a-z] (a|b) ^ $ * + ? {m,n} and \d \w \s"
#: Parts of a wildcard pattern: any text, also an empty one, and any character.
ANY_TEXT, ANY_CHAR = "any text", "any character"
Fits = Callable[[str], bool]
Tree = tuple[Any, ...]
CLASSES: dict[str, Fits] = {"d": str.isdecimal, "s": str.isspace, "w": lambda char: char.isalnum() or char == "_"}


class PatternRefused(ValueError):
    """The error for a regular expression that is invalid, too large, or has a different meaning for SQLite and
    PostgreSQL; the message says why."""


class _Parser:
    """A parser that turns a regular expression into a syntax tree. The nodes of the tree are tuples: ``all``
    (concatenation) or ``any`` (alternatives) of several trees, ``repeat`` of one tree, ``start``, ``end``, and ``char``
    with a function that tests a character, and the character itself if only one matches."""

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
        branches = [self._all()]
        while self._here() == "|":
            self.at += 1
            branches.append(self._all())
        return branches[0] if len(branches) == 1 else ("any", branches)

    def _all(self) -> Tree:
        parts: list[Tree] = []
        while self._here() and self._here() not in "|)":
            parts.append(self._repeated(self._one()))
        return parts[0] if len(parts) == 1 else ("all", parts)

    def _one(self) -> Tree:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return ("char", self._bracket(), "")
        if char in "*+?{":
            raise PatternRefused(f"a {char} repeats nothing; write \\{char} for the sign itself")
        if char == "\\":
            sign = self._here()
            return ("char", self._escaped(), "" if sign.isalnum() else sign)
        if char in "^$":
            return ("start" if char == "^" else "end",)
        return ("char", _any_char, "") if char == "." else ("char", char.__eq__, char)

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
            return fits if char.islower() else lambda candidate: not fits(candidate)
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
                if self._here() in ("D", "S", "W"):  # not every version of PostgreSQL accepts them there
                    raise PatternRefused(f"\\{self._here()} is not known within []")
                fits.append(self._escaped())
            elif self._here() == "-" and self._here(2) != "-]":
                fits.append(self._range(char))
            else:
                chars.add(char)
        self.at += 1
        return lambda candidate: (candidate in chars or any(fit(candidate) for fit in fits)) is not negated

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
        if self._here() == "?":  # non-greedy: whether the text matches stays the same
            self.at += 1
        if self._here() and self._here() in "*+?{":
            raise PatternRefused(f"a {self._here()} repeats a repeat; use parentheses")
        return ("repeat", tree, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        inner, closed, remainder = self.text[self.at:].partition("}")
        low, comma, high = inner.partition(",")
        if not (closed and _count(low) and (_count(high) or not high)):
            raise PatternRefused("a { begins {m}, {m,} or {m,n}; write \\{ for the sign itself")
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > COUNTS or (most is not None and most < least):
            raise PatternRefused(f"a repeat counts from a number to one that is as large, and {COUNTS} at most")
        self.at = len(self.text) - len(remainder)
        return least, most


def _count(text: str) -> bool:
    return 0 < len(text) < 4 and all(char in string.digits for char in text)


def _any_char(_char: str) -> bool:
    return True


CHAR, FORK, START, END, FOUND = range(5)
State = frozenset[int]


class Pattern:
    """A regular expression *text*, compiled to an automaton. Raises ``PatternRefused``."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise PatternRefused(f"it has more than {LONGEST} characters")
        #: States: kind, the matching characters (for CHAR), and the next states.
        self._parts: list[tuple[int, Fits, list[int]]] = [(FOUND, _any_char, [])]
        self._size = 0
        self._entry = self._built(_Parser(text).parsed(), 0)
        self._steps: dict[tuple[State, str], State] = {}
        self._anew = self._reached([self._entry])
        self._first = self._reached([self._entry], start=True)

    def search(self, text: str) -> bool:
        """Return whether the expression matches somewhere in *text*."""
        state, steps = self._first, self._steps
        for char in text:
            if 0 in state:
                return True
            next_state = steps.get((state, char))
            state = self._step(state, char) if next_state is None else next_state
        return 0 in self._reached(state, start=not text, end=True)

    def _step(self, state: State, char: str) -> State:
        next_state = self._anew | self._reached(to for kind, fits, successors in map(self._parts.__getitem__, state)
                                                if kind == CHAR and fits(char) for to in successors)
        if len(self._steps) >= CACHE_SIZE:
            self._steps.clear()
        self._steps[state, char] = next_state
        return next_state

    def _reached(self, numbers: Iterable[int], start: bool = False, end: bool = False) -> State:
        """Return the states of the automaton that can be reached from the states *numbers* without consuming a
        character. *start*, *end*: whether the position is the start or the end of the text, where ``^`` or ``$``
        matches."""
        pending, reached = list(numbers), set()
        while pending:
            number = pending.pop()
            if number in reached:
                continue
            reached.add(number)
            kind, _fits, successors = self._parts[number]
            if kind == FORK or (kind == START and start) or (kind == END and end):
                pending += successors
        return frozenset(number for number in reached if self._parts[number][0] in (CHAR, END, FOUND))

    def _part(self, kind: int, successors: list[int], fits: Fits = _any_char) -> int:
        self._parts.append((kind, fits, successors))
        return len(self._parts) - 1

    def _built(self, tree: Tree, then: int) -> int:
        """Add states for the syntax tree *tree* to the automaton; after a match of the tree, the automaton is in the
        state *then*. Return the number of the first added state."""
        self._size += 1
        if self._size > PARTS:
            raise PatternRefused(f"it has more than {PARTS} parts when its repeats are written out")
        kind = tree[0]
        if kind == "char":
            return self._part(CHAR, [then], tree[1])
        if kind == "all":
            for subtree in reversed(tree[1]):
                then = self._built(subtree, then)
            return then
        if kind == "any":
            return self._part(FORK, [self._built(subtree, then) for subtree in tree[1]])
        if kind == "repeat":
            return self._repeat(tree[1], tree[2], tree[3], then)
        return self._part(START if kind == "start" else END, [then])

    def _repeat(self, tree: Tree, least: int, most: int | None, then: int) -> int:
        if most is None:
            successors = [then]
            then = self._part(FORK, successors)
            successors.append(self._built(tree, then))
        else:
            out = then
            for _more in range(most - least):
                then = self._part(FORK, [out, self._built(tree, then)])
        for _once in range(least):
            then = self._built(tree, then)
        return then


def parse_wildcards(text: str) -> list[str] | None:
    """Return the regular expression *text* as a wildcard pattern that must match a whole string: a list of
    ``ANY_TEXT``, ``ANY_CHAR`` and literal characters. Return ``None`` for an expression with other operators than dots,
    ^ at its start and $ at its end."""
    anchored, inner = text.startswith("^"), text.removeprefix("^")
    parts, at, ended = [] if anchored else [ANY_TEXT], 0, False
    while at < len(inner):
        char = inner[at]
        if char == "\\" and inner[at + 1:at + 2] and not inner[at + 1].isalnum():
            at, char = at + 1, inner[at + 1]
        elif char == "$" and at == len(inner) - 1:
            ended, char = True, ""
        elif char == ".":
            char = ANY_CHAR
        elif char in SPECIAL:
            return None
        parts += [char] if char else []
        at += 1
    return parts if ended else [*parts, ANY_TEXT]


@lru_cache(maxsize=100)
def outline_wildcards(text: str) -> tuple[str, ...] | None:
    """Return a wildcard pattern (see ``parse_wildcards``) that accepts all strings that the regular expression *text*
    matches, and perhaps others. Return ``None`` if it would accept nearly every string. Raises ``PatternRefused``.

    A database tests this pattern before the expression, because this test is much faster, or can use an index.
    """
    tree = _Parser(text).parsed()
    trees = tree[1] if tree[0] == "all" else [tree]
    begins, ends = trees[0] == ("start",) if trees else False, trees[-1] == ("end",) if trees else False
    parts = [] if begins else [ANY_TEXT]
    for part in (part for subtree in trees for part in _outline(subtree)):
        if part != ANY_TEXT or parts[-1:] != [ANY_TEXT]:
            parts.append(part)
    if not ends and parts[-1:] != [ANY_TEXT]:
        parts.append(ANY_TEXT)
    return tuple(parts) if any(part not in (ANY_TEXT, ANY_CHAR) for part in parts) and len(parts) <= LONGEST else None


def _outline(tree: Tree) -> list[str]:
    """Return the wildcard pattern for a syntax tree, with ``ANY_TEXT`` for parts that wildcards cannot express."""
    kind = tree[0]
    if kind == "char":
        return [tree[2] or ANY_CHAR]
    if kind == "all":
        return [part for subtree in tree[1] for part in _outline(subtree)]
    if kind == "repeat":
        _kind, subtree, least, most = tree
        once = _outline(subtree)
        return once * least + ([] if most == least else [ANY_TEXT]) if len(once) * least <= LONGEST else [ANY_TEXT]
    return [ANY_TEXT] if kind == "any" else []


@lru_cache(maxsize=100)
def compile_search(text: str) -> Callable[[str], bool]:
    """Return a function that tests whether the regular expression *text* matches somewhere in a string. Raises
    ``PatternRefused``."""
    if SPECIAL.isdisjoint(text) and len(text) <= LONGEST:
        return lambda where: text in where
    return Pattern(text).search


def sqlite_regexp(pattern: str, value: Any) -> bool | None:
    """Implement SQLite's operator REGEXP: return whether *pattern* matches somewhere in *value*; ``None`` for null."""
    return None if value is None else compile_search(pattern)(str(value))
