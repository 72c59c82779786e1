"""Runs the commands of page templates and writes the pages with their real output: `make docs`.

    python tools/run_pages.py                 run tools/pages/*.md, write docs/*.md of the same names
    python tools/run_pages.py --check         run them, and say where the pages on disk differ in more than figures

A template is a page whose ```console blocks hold commands alone: `$ ` begins one, the lines after it belong to it. Each
is run by bash, on one thread, in a folder that all pages share (the first finds it empty, a later one finds what
an earlier one made), and its output takes its place in the page. Only stdout is shown: progress, on stderr, has times
in it. A command may fail only where the next one is `echo $?`; its stderr is shown then, since the message is what a
reader would see. A digest of template and page stands in the page's first line, so that a test can find a page that was
edited by hand, or not made again, without running anything.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "tools" / "pages"
ORDER = ("tutorial.md", "beta.md", "faq.md", "daily.md", "lists.md")
PAGES = ROOT / "docs"
SCRATCH = ROOT / "scratch" / "pages"
BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
SEAL = re.compile(r"<!-- Made by `make docs` from (\S+), digest (\w+): edit that file instead. -->\n\n")
ASK = "echo $?"
WIDTH = 120


def commands(block: str) -> list[str]:
    """The commands of a block, each with its further lines."""
    found = re.split(r"^\$ ", block, flags=re.MULTILINE)
    if found[0].strip():
        raise ValueError(f"a console block must begin with '$ ', got {found[0]!r}")
    return [command.rstrip("\n") for command in found[1:]]


def body(template: str, shell: Shell) -> str:
    """The template with the output of its commands."""
    return BLOCK.sub(lambda block: f"```console\n{shell.show(commands(block[1]))}```", template)


class Shell:
    """Runs commands one after another in an empty folder, and remembers the exit code of the last as a shell does."""

    def __init__(self, folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        self.folder, self.code = (folder / "here").resolve(), 0
        programs = (folder / "programs").resolve()
        self.folder.mkdir(parents=True)
        programs.mkdir()
        for name, module in {"lpi": "-m localpolicy", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "COLUMNS": str(WIDTH),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }

    def show(self, asked: list[str]) -> str:
        """The commands of a block, each followed by what it printed."""
        shown = ""
        for place, command in enumerate(asked):
            excused = asked[place + 1 : place + 2] == [ASK]
            shown += f"$ {command}\n{self.run(command, may_fail=excused)}"
        return shown

    def run(self, command: str, *, may_fail: bool) -> str:
        """What a command printed, without blanks at the ends of lines."""
        print(f"$ {command}", file=sys.stderr, flush=True)
        whole = ["bash", "-c", f"(exit {self.code})\n{command}"]
        done = subprocess.run(whole, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        self.code = done.returncode
        if self.code and not may_fail:
            raise SystemExit(f"exit code {self.code}, and no `{ASK}` after it:\n$ {command}\n{done.stderr}")
        text = done.stdout + (done.stderr if self.code else "")
        if str(ROOT) in text or str(self.folder) in text:
            raise SystemExit(f"a path of this machine is in the output of:\n$ {command}\n{text}")
        lines = "\n".join(wrapped(line.rstrip()) for line in text.splitlines()).strip("\n")
        return f"{lines}\n" if lines else ""


def wrapped(line: str) -> str:
    """Sentences are broken where a page ends; tables, whose lines are indented, are not."""
    return line if line.startswith(" ") else textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def digest(template: str, body: str) -> str:
    """Digest of a page's template and output."""
    return hashlib.sha256(f"{template}\0{body}".encode()).hexdigest()[:16]


def sealed(name: str, template: str, body: str) -> str:
    """The page under a comment that names its template and digest."""
    made_from = f"tools/pages/{name}, digest {digest(template, body)}"
    return f"<!-- Made by `make docs` from {made_from}: edit that file instead. -->\n\n{body}"


def is_current(page: str, template: str) -> bool:
    """The page was made from this template, and nobody has touched it since."""
    seal = SEAL.match(page)
    return seal is not None and seal[2] == digest(template, page[seal.end() :])


def words(page: str) -> list[str]:
    """A page without what another machine's arithmetic may change: figures, digests, and the room they take."""
    plain = re.sub(r"\b[0-9a-f]{64}\b|[+-]?\d[\d.,]*", "#", SEAL.sub("", page))
    return [re.sub(r"\s+", " ", re.sub(r"─+", "─", line)).strip() for line in plain.splitlines()]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--check", action="store_true", help="compare with the pages on disk instead of writing them")
    check = asked.parse_args().check
    differing, shell = 0, Shell(SCRATCH)
    for name in ORDER:
        page, template = PAGES / name, (TEMPLATES / name).read_text()
        made = sealed(name, template, body(template, shell))
        if not check:
            page.write_text(made)
            continue
        before, now = words(page.read_text()), words(made)
        changes = list(difflib.unified_diff(before, now, f"docs/{name}", "as run now", lineterm=""))
        print("\n".join(changes) or f"{name}: as on disk, figures aside")
        differing += bool(changes)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
