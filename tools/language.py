# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the language of the tree: names of functions and variables, prose of docstrings, pages, fragments and help.

`python -m tools.language` prints each figure with its budget; `--worst 40` adds the files and names that cost most.
Source code is everything in `SOURCE`. A figure says where to look, not what is good: a name must say what it names.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools import help_texts

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("agent", "control", "plugins", "tools")
#: Variables of these names say nothing about the value that they hold.
EMPTY_WORDS = frozenset((
    "one", "others", "here", "there", "thing", "things", "rest", "such", "else",
    "that", "those", "what", "whom", "whose",
    "found", "given", "known", "held", "word", "told", "seen", "own", "kept", "asked", "said", "left", "wanted",
    "was", "were", "gone", "came", "let", "before", "after"))
_PREPOSITIONS = ("after", "at", "before", "behind", "below", "beside", "by", "for", "from", "in", "of", "on", "over",
                 "through", "to", "under", "with")
_VERBS = ("be", "come", "do", "get", "give", "go", "have", "make", "run", "say", "take", "wait")
_DATED = ("anew", "at once", "beside", "besides", r"comes? into being", "came into being", "by now", "in vain",
          "lately", "leave for", "lest", "likewise", r"mend(?:ed)?", "nobody", "otherwise than", "somebody", "thereby",
          "thereof", "wherever", "whichever", "whosoever")
_HEADLESS = ("that of", "those of", "those that", "those who", "one that", "ones that", "what it has", "what is there",
             "what there is")
_TRAILING = ("by it", "by that", "by this", "for it", "of it all", "whose it is")


def _any_of(words: Iterable[str], before: str = "", after: str = "") -> str:
    return rf"\b{before}(?:{'|'.join(words)}){after}\b"


#: Patterns that make a reader stop, by kind. Texts are searched with single spaces for all white space.
PATTERNS: Mapping[str, re.Pattern[str]] = {kind: re.compile(pattern) for kind, pattern in {
    "subject who": r"(?:^|(?<=[.:;,(] ))[Ww]ho(?:ever)? (?!(?:is|are|was) \w+\?)\w+\b(?!.*\?)",
    "subject what": r"(?:^|(?<=[.:;] ))What (?!is the|are the)\w+",
    "preposition with which or whom": _any_of(("which", "whom"), before=rf"(?:{'|'.join(_PREPOSITIONS)}) "),
    "is to with a verb": _any_of(_VERBS, before="(?:is|are|was|were) (?:not )?to "),
    "pronoun as head": _any_of(_HEADLESS),
    "dated word": _any_of(_DATED),
    "dated phrase": r"\b(?:but for|be so|none of which)\b|\bno more\b(?! than)",
    "trailing else": r"[,:;] else\b",
    "trailing pronoun": _any_of(_TRAILING),
}.items()}
#: The largest value of each figure: per cent of functions and of variables, patterns per 1,000 words of prose.
BUDGETS: Mapping[str, float] = {
    "shared names": 10, "one-word names": 30, "empty variables": 0.5, "patterns in docstrings": 2,
    "patterns in pages": 1.5, "patterns in fragments": 2, "patterns in help": 2}


class SourceFile(NamedTuple):
    """The names and the prose of a Python module: its public functions at module level, all its variables and
    parameters, and its docstrings.
    """

    name: str
    functions: Sequence[str]
    variables: Counter[str]
    docstrings: Sequence[str]


def read_source_file(path: Path, name: str) -> SourceFile:
    """Return the names and docstrings of the module *path*."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body
                 if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")]
    variables: Counter[str] = Counter()
    docstrings = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            variables[node.arg] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            variables[node.id] += 1
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstrings.append(ast.get_docstring(node) or "")
    return SourceFile(name, functions, variables, list(filter(None, docstrings)))


def read_source(root: Path = ROOT) -> list[SourceFile]:
    """Return the modules of ``SOURCE``, without tests and virtual environments."""
    paths = (path for folder in SOURCE for path in sorted((root / folder).rglob("*.py")))
    return [read_source_file(path, str(path.relative_to(root))) for path in paths
            if not {".venv", "tests"}.intersection(path.relative_to(root).parts)]


def files_of_functions(source: Iterable[SourceFile]) -> dict[str, list[str]]:
    """Return the files in which each public function name is defined, by name."""
    files: dict[str, list[str]] = defaultdict(list)
    for module in source:
        for name in dict.fromkeys(module.functions):
            files[name].append(module.name)
    return files


def read_pages(root: Path = ROOT) -> dict[str, str]:
    """Return README and the pages of docs, by name, without blocks of code."""
    paths = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return {str(path.relative_to(root)): re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            for path in paths if path.exists()}


def read_fragments(root: Path = ROOT) -> dict[str, str]:
    """Return the changelog fragments by name."""
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8")
            for path in sorted((root / "changelogs").rglob("*.y*ml"))}


def read_help(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the texts that ``ansible-doc`` and ``--help`` print, by file, fragment or command. For a *root* other than
    this tree, computed options and commands are left out.
    """
    texts = help_texts.read_documentation(root)
    return texts | help_texts.computed_options(root) | help_texts.all_command_texts() if root == ROOT else texts


def count_patterns(text: str) -> Counter[str]:
    """Return how often each kind of ``PATTERNS`` occurs in *text*."""
    flat = " ".join(text.split())
    return Counter({kind: len(pattern.findall(flat)) for kind, pattern in PATTERNS.items()})


def pattern_density(texts: Iterable[str]) -> float:
    """Return the number of patterns per 1,000 words of *texts*."""
    words = patterns = 0
    for text in texts:
        words += len(re.findall(r"[A-Za-z']+", text))
        patterns += count_patterns(text).total()
    return 1000 * patterns / max(1, words)


def _total(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _percent(count: int, total: int) -> float:
    return 100 * count / max(1, total)


def measure_language(source: Sequence[SourceFile], root: Path = ROOT) -> dict[str, float]:
    """Return the value of each figure in ``BUDGETS``, by name."""
    names = [name for module in source for name in module.functions]
    shared = sum(len(files) for files in files_of_functions(source).values() if len(files) > 1)
    variables = _total(module.variables for module in source)
    return {
        "shared names": _percent(shared, len(names)),
        "one-word names": _percent(sum("_" not in name for name in names), len(names)),
        "empty variables": _percent(sum(variables[name] for name in EMPTY_WORDS), variables.total()),
        "patterns in docstrings": pattern_density(text for module in source for text in module.docstrings),
        "patterns in pages": pattern_density(read_pages(root).values()),
        "patterns in fragments": pattern_density(read_fragments(root).values()),
        "patterns in help": pattern_density(text for texts in read_help(root).values() for text in texts)}


def worst_lines(source: Sequence[SourceFile], most: int, root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each figure, with at most *most* of the names or files that contribute most to it."""
    variables = _total(module.variables for module in source)
    in_docstrings = {module.name: _total(map(count_patterns, module.docstrings)).total()
                     for module in source}
    rankings: Mapping[str, Mapping[str, float]] = {
        "shared names": {name: len(files) for name, files in files_of_functions(source).items() if len(files) > 1},
        "empty variables": {name: variables[name] for name in EMPTY_WORDS},
        "patterns in docstrings": in_docstrings,
        "patterns in pages": {name: pattern_density([text]) for name, text in read_pages(root).items()},
        "patterns in fragments": {name: pattern_density([text]) for name, text in read_fragments(root).items()},
        "patterns in help": {name: pattern_density(texts) for name, texts in read_help(root).items()}}
    for figure, ranking in rankings.items():
        worst = sorted(((value, name) for name, value in ranking.items() if value), reverse=True)[:most]
        yield f"{figure}: " + ", ".join(f"{name} {value:.4g}" for value, name in worst)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.language", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the tree to measure (default: this one)")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also the N worst names or files of each")
    options = parser.parse_args()
    source = read_source(options.root)
    print("figure                    now  budget")
    for figure, value in measure_language(source, options.root).items():
        print(f"{figure:<24}{value:5.1f}  {BUDGETS[figure]:6.1f}")
    if options.worst:
        print("", *worst_lines(source, options.worst, options.root), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
