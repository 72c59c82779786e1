"""Find words that a reader has to guess at: unclear docstrings, private words and names, test names without a claim.

python tools/check_words.py              fails if a package holds more of them than its maximum in words.toml
python tools/check_words.py PATH ...     lists them in these files or folders
python tools/check_words.py --lower      sets the maxima to the present counts where these are lower
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SETTINGS = Path(__file__).with_name("words.toml")
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")

FORMULA = re.compile(r"[=<>≤≥≈∝Σ∫±√π·→∈\[\]{}|^\d]|\blog |\w\(\w(?:[,|]\w)*\)|^\(")
CODE = re.compile(r"`[^`]*`")
PREPOSITION = re.compile(
    r"(?:as|at|before|beside|between|by|for|from|in|of|on|over|out|under|with|within|without)\b", re.IGNORECASE
)
PRONOUN = re.compile(r"(?:it|nobody|that|them|they|what|which|who|whom|whose)\b", re.IGNORECASE)
THE_SAME = re.compile(
    r"the same(?:[.,:;]| (?:as|at|by|for|in|of|on|over|relative|to|under|where|with|without)\b)", re.IGNORECASE
)
DETERMINER = r"(?:an?|all|each|every|its|no|one|per|some|that|the|these|this|those)\b"
BARE_DETERMINER = re.compile(  # with its noun left out: "All of them", "Those that …", "One by one"
    DETERMINER
    + r"(?: (?:are|as|at|by|for|from|in|is|of|once|over|that|there|to|under|where|which|with|without)\b|[.,:;])",
    re.IGNORECASE,
)
RELATIVES = ("that", "what", "which", "who", "whoever", "whose")


class Finding(NamedTuple):
    """One place with an unclear text, and what is unclear there."""

    path: Path
    line: int
    fault: str
    text: str

    @property
    def package(self) -> str:
        """Folder that the maximum is for: `src/localpolicy/data`, `tests/data`, `tools`."""
        folders = self.path.parts[:-1]
        return "/".join(folders[: {"src": 3, "tests": 2}.get(folders[0], 1)])

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.fault}: {self.text}"


class Settings(NamedTuple):
    """Content of words.toml: a pattern of all private words, the usual ones, verbs of test names, maxima by package."""

    private: re.Pattern[str]
    usual: list[str]  # by the number of the group in `private` that matched
    verbs: frozenset[str]
    maxima: dict[str, int]


@cache
def settings() -> Settings:
    """Read words.toml."""
    content = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    private = "|".join(f"({pattern})" for pattern in content["words"])
    usual, verbs = ["", *content["words"].values()], frozenset(content["tests"]["verbs"].split())
    return Settings(re.compile(rf"\b(?:{private})\b", re.IGNORECASE), usual, verbs, content["maxima"])


def docstring_fault(first_line: str) -> str | None:
    """Why a docstring's first line has no clear subject; None for a formula, a sentence or a noun phrase."""
    plain = CODE.sub("code", first_line)
    if FORMULA.search(first_line) or plain.startswith(("At least ", "At most ")) or "?" in plain:
        return None
    if (PREPOSITION.match(plain) or PRONOUN.match(plain)) and not re.search(r"[,:;] +\w+ +\w+", plain):
        return "docstring without a subject"
    if THE_SAME.match(plain) or BARE_DETERMINER.match(plain):
        return "docstring that names no thing"
    words = re.sub(DETERMINER, "", plain.lower()).replace("code", "code code").split()
    return "docstring too short" if len(words) < 2 else None


def makes_claim(test: str) -> bool:
    """Whether a test's name has a verb other than those of its relative clauses, or names an oracle (`_by_hand`)."""
    words = test.split("_")[1:]
    is_verb = [word in settings().verbs for word in words]
    clauses = [place for place, word in enumerate(words) if word in RELATIVES and (place or word != "that")]
    of_clauses = sum(any(is_verb[place + 1 : place + 3]) for place in clauses)
    return sum(is_verb) > of_clauses or "not" in words or "by_hand" in test or "against" in words


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of functions, classes, arguments and annotated fields with a private word as a part."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
            case ast.arg():
                name = node.arg
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Attribute(attr=name)):
                pass
            case _:
                continue
        if not name.startswith("test_"):
            yield node.lineno, name


def texts(path: Path) -> Iterator[tuple[str, int, str]]:
    """(kind, line, text) of every docstring, comment, message and name in the file; tests have no messages."""
    source = (ROOT / path).read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield "test", node.lineno, node.name
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield "docstring", node.body[0].lineno, text
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and path.parts[0] != "tests":
                if text.count(" ") > 2 and "SELECT" not in text:
                    yield "message", node.lineno, text
    yield from (("name", line, name) for line, name in private_names(tree))
    if any(settings().private.search(line, line.find("#")) for line in source.splitlines() if "#" in line):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield "comment", token.start[0], token.string


def findings(path: Path) -> Iterator[Finding]:
    """Every unclear text of a Python file; `path` is relative to the project."""
    for kind, line, text in texts(path):
        if kind == "docstring" and (fault := docstring_fault(text.strip().partition("\n")[0])):
            yield Finding(path, line, fault, text.strip().partition("\n")[0])
        if kind == "test" and not makes_claim(text):
            yield Finding(path, line, "test name without a claim", text)
        plain = text.replace("_", " ") if kind in ("name", "test") else CODE.sub("", text)
        for match in settings().private.finditer(plain):
            place = line + plain.count("\n", 0, match.start())
            around = " ".join(plain[max(0, match.start() - 30) : match.end() + 30].split())
            yield Finding(path, place, f"{kind}: '{match[0]}' for '{settings().usual[match.lastindex or 0]}'", around)


def python_files(paths: list[Path]) -> list[Path]:
    """The Python files of these files and folders, relative to the project."""
    files = (file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
    return sorted(file.resolve().relative_to(ROOT) for file in files)


def lowered(text: str, counts: Counter[str]) -> str:
    """words.toml with each maximum no higher than the present count; a new package begins with its count."""
    head, heading, _ = text.partition("[maxima]\n")
    maxima = tomllib.loads(text)["maxima"]
    rows = {package: min(count, maxima.get(package, count)) for package, count in counts.items()}
    return head + heading + "".join(f'"{package}" = {rows[package]}\n' for package in sorted(rows) if rows[package])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="list what these files or folders hold")
    parser.add_argument("--lower", action="store_true", help="lower the maxima in words.toml to the present counts")
    options = parser.parse_args()
    found = [
        each
        for file in python_files(options.paths or [ROOT / name for name in FOLDERS if (ROOT / name).exists()])
        for each in findings(file)
    ]
    counts = Counter(each.package for each in found)
    if options.paths:
        print(*found, f"{len(found)} found", sep="\n")
        return
    if options.lower:
        SETTINGS.write_text(lowered(SETTINGS.read_text(encoding="utf-8"), counts), encoding="utf-8")
        settings.cache_clear()
    maxima = settings().maxima
    over = {package: count for package, count in counts.items() if count > maxima.get(package, 0)}
    for package, count in sorted(over.items()):
        print(*(each for each in found if each.package == package), sep="\n")
        print(f"{package}: {count} unclear texts, at most {maxima.get(package, 0)} allowed (tools/words.toml)\n")
    print(f"{len(found)} unclear texts, {sum(maxima.values())} allowed")
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
