# SPDX-License-Identifier: GPL-3.0-or-later
"""Regular expressions of filters: as Python's in what both know, as PostgreSQL's in all, in little time."""

import random
import re
import time

import psycopg
import pytest
from sqlalchemy import Text, cast, select

from magnetar_control.store.engine.conditions import match_pattern
from magnetar_control.store.engine.regex import (
    LONGEST,
    Pattern,
    PatternRefused,
    compile_search,
    outline_wildcards,
    parse_wildcards,
    sqlite_regexp,
)
from tools import postgres as server

TEXTS = ("", "a", "b", "ab", "ba", "aab", "web1", "my-web", "a.b", "aXb", "10.0.0.7", "x_y", "é", "a]b", "a-b", "{1}",
         "a{1}", "aaaa", "bbb", "^", "a^", "(a)", "a|b", " a ", "\\", "abcabc", "[a", "7", "a\nb")
GOOD = ("", "a", "web", "^web", "web$", "^$", "^a|b$", ".*", "a.b", r"a\.b", "[0-9]+", "[^a-z]", "[]a]",
        "[^]a]", "[a-]", "[-a]", r"[\]]", r"[\w-]", "a*", "a+?b", "(a|b)+$", "(?:ab){2}", "a{2}",
        "a{2,}", "a{1,2}b", "(a|)b", "()", "(|a)", r"\d+", r"\D", r"\w\W\w", r"\s", r"\S", r"\^", r"\{1\}",
        "a}", "a]b", "((a))", "(a*)*b", "(a+)+$", "x{0}a",
        "(^a|b$)", "a$|^b", "b^a", "a$b", "[a-cx-z]", "é", "(abc){2}", r"[\[]a", "a??", "(a{1,2}){2}$", r"\\",
        "(a?b?){3}$")
BAD = ("(", ")", "a)", "[", "[a", "[]", "*", "+a", "?", "a**", "a+*", "a*+", "a{1}{2}", "^*", "$+", "(?P<x>a)", "(?i)a",
       "(?=a)", "(?!a)", "(?<a)", r"\b", r"\1", r"(a)\1", r"\A", r"\Z", r"\x41", r"\n", "\\", "a{1,256}", "a{300}",
       "a{2,1}", r"[\D]", "a{,2}", "{", "a{", "a{x}", "{1}", "[z-a]", "[a-\\d]", "[[:alpha:]]", "[[.a.]]", "[a-c-e]",
       "[--a]", "***=a",
       "a|*", "(*a)", "((a{250}){250}){250}", "((((){255}){255}){255}){255}", "(" * 40 + ")" * 40, "a" * 256)


@pytest.mark.parametrize("pattern", GOOD)
def test_it_finds_what_python_finds(pattern):
    found = {text: sqlite_regexp(pattern, text) for text in TEXTS}
    assert found == {text: re.search(pattern, text, re.DOTALL) is not None for text in TEXTS}


def test_expressions_at_random():
    drawn = random.Random(7)
    words = ("a", "b", "ab", ".", "[ab]", "[^a]", "(a|b)", "(a|ab)", "(b*a)", "^", "$", "|", r"\w")
    for _at in range(3000):
        pattern = "".join(word + drawn.choice(("", "", "*", "+", "?", "{2}", "{1,3}")) * (word not in ("^", "$", "|"))
                          for word in drawn.choices(words, k=drawn.randint(1, 5)))
        for text in ("", "a", "b", "ab", "ba", "abba", "bbab", "aaaaab"):
            assert Pattern(pattern).search(text) is (re.search(pattern, text) is not None), (pattern, text)


@pytest.mark.parametrize("pattern", BAD)
def test_what_is_refused(pattern):
    with pytest.raises(PatternRefused):
        compile_search(pattern)
        Pattern(pattern)


def test_postgresql_finds_the_same(cluster):
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        for pattern in GOOD:
            for text in TEXTS:
                (there,) = connection.execute("SELECT %s::text ~ %s::text", (text, pattern)).fetchone()
                assert sqlite_regexp(pattern, text) is there, (pattern, text)


@pytest.mark.parametrize("pattern", [
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}", "a*a*a*a*a*a*b", "(a?){120}a{100}$", "((a*)*)*b",
    "(a|b)*a(a|b){110}$"])
def test_none_takes_long(pattern):
    began = time.process_time()
    compile_search.__wrapped__(pattern)("a" * LONGEST + "!")
    assert time.process_time() - began < 2


def test_nothing_is_nothing():
    assert sqlite_regexp("a", None) is None


OUTLINES = {"server-0+[0-9]23$": ("any text", *"server-0", "any text", "any character", *"23"),
            "^(web|db)-1": ("any text", *"-1", "any text"), "^a{2}b?c$": (*"aa", "any text", "c"),
            r"^\d\.x": ("any character", ".", "x", "any text"), "(ab){2}": ("any text", *"abab", "any text"),
            "(^a|b$)": None, ".*": None, "": None, "[0-9]+": None, "(((a{200}){2}))": None}


def test_the_outline_of_an_expression_has_the_text_that_must_be_there():
    assert {pattern: outline_wildcards(pattern) for pattern in OUTLINES} == OUTLINES


@pytest.mark.parametrize("database_kind", ["sqlite", "postgres"], indirect=True)
def test_an_expression_accepts_the_same_texts_with_its_outline(database):
    patterns = [pattern for pattern in GOOD if parse_wildcards(pattern) is None]
    assert sum(outline_wildcards(pattern) is not None for pattern in patterns) > 10
    with database.read() as connection:
        for pattern in patterns:
            conditions = [match_pattern(database.kind, cast(text, Text), pattern) for text in TEXTS]
            accepted = connection.execute(select(*conditions)).one()
            assert [*map(bool, accepted)] == [*map(compile_search(pattern), TEXTS)], pattern


WILD = ("", "a", "^web", "web$", "^$", "a.b", r"a\.b", "^a.*", "10.0.0.7", "x_y", "é", "a]b", "{1}x", "a}", r"\[a",
        r"a\*", "*", "?", "%", "_", r"\\", r"\$", "a$b", "b^a", "^^a", "$", "^", ".", "^.$", r"\%", r"\?")


@pytest.mark.parametrize("database_kind", ["sqlite", "postgres"], indirect=True)
def test_a_wildcard_pattern_accepts_the_texts_of_its_expression(database):
    texts = (*TEXTS, "10a0b0c7", "web", "*", "?", "%", "_", "a*", "$", "[", "a%b", "a_b")
    patterns = [pattern for pattern in WILD if parse_wildcards(pattern) is not None]
    assert {"a.b", "^web", r"\[a", r"\$"} <= set(patterns) and not {"^a.*", "a$b", "b^a"} & set(patterns)
    with database.read() as connection:
        for pattern in patterns:
            accepted = [text for text in texts if connection.execute(
                select(match_pattern(database.kind, cast(text, Text), pattern))).scalar()]
            assert accepted == [text for text in texts if compile_search(pattern)(text)], pattern
