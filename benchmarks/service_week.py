"""A week of the service over HTTP, kept in a ledger that shares no code with it: every rotated row is compared.

    python benchmarks/service_week.py [--seed S] [--requests N] [--days 7]

A tiny policy is trained, exported and served on 127.0.0.1 under a clock that this script moves. Every day N lists are
requested (some with filters, some deferred, some of persons who return) and reported as seen up to a place. Answers
arrive doubled and shuffled, before their list is shown, for places that nobody saw, after the window, after the
rotation, with rewards of their own, with an event that has no reward, and from a client whose clock is three days slow.
On the second and fifth day the server is killed (SIGKILL) under load; on the third another process holds a lock on its
log for 12 seconds, and the answers of that time are sent again. Every night `lpi rotate` and `lpi audit` run.

Compared with the ledger's own join of what was acknowledged: each row (person, item, event, reward, propensity, mode,
floor, the request's history, when the list was seen), the fate of each answer, the lists (none lost, none twice, none
that no request explains), exit codes, and the audit's number of late answers. A list or an answer whose reply never
came may be stored or not. Printed: a line of JSON for each day, and one of totals; exit code 1 if anything differs.
A week of 40 requests a day takes three minutes of two busy cores.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from service_ledger import HOUR, LAG, REWARDS, Exchange, Ledger, Rotated, differences

FIRST_DAY = 1_771_200_000_000  # a midnight
AGGREGATIONS = ("max", "sum", "last", "first")  # by turns
KILLED, BLOCKED, DAYS = (1, 4), 2, 7
CLIENTS, LOAD, UNTIL_KILL, BLOCK = 6, 1_000, 0.8, 12.0  # at once, requests, seconds, seconds
CLOCKED = """
import os, sys, time
real = time.time_ns
time.time_ns = lambda: real() + int(open(os.environ["CLOCK"]).read())
from localpolicy.cli.main import main
sys.argv[0] = "lpi"
main()
"""
Call = tuple[str, dict[str, Any]]  # the last word of the route, and the body


class Service:
    """`lpi serve` as a process, and other commands, under a clock that this script moves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.output = folder, folder / "log.db", folder / "server.txt"
        self.ahead = -time.time_ns()  # nanoseconds: the moved clock begins at 0
        self.environment = {**os.environ, "CLOCK": str(folder / "clock"), "LPI_TOKEN": "", "OMP_NUM_THREADS": "1"}

    def set_clock(self, day: int, hour: float) -> None:
        """Move the clock forward; it never steps back."""
        self.ahead = max(self.ahead, (FIRST_DAY + int((24 * day + hour) * HOUR)) * 1_000_000 - time.time_ns())
        (self.folder / "clock.new").write_text(str(self.ahead))
        (self.folder / "clock.new").replace(self.folder / "clock")

    @property
    def now(self) -> int:
        return (time.time_ns() + self.ahead) // 1_000_000

    def lpi(self, *words: object) -> tuple[int, str]:
        """Run a command; return its exit code, and what it printed on one line."""
        command = [sys.executable, "-c", CLOCKED, *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=500)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def start(self) -> None:
        """Serve at a free port of this machine; return once the service is ready."""
        words = ["serve", str(self.folder / "served"), "--log", str(self.log), "--host", "127.0.0.1", "--port", "0"]
        with self.output.open("a") as file:
            self.process = subprocess.Popen([sys.executable, "-c", CLOCKED, *words, "--floor", "0.1"],
                                            stdout=file, stderr=file, env=self.environment)  # fmt: skip
        for _ in range(1200):
            ports = re.findall(r"http://127\.0\.0\.1:(\d+)", self.output.read_text())
            self.port = int(ports[-1]) if ports else 0
            if ports and self._ask("GET", "/readyz")[0] == 200:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"the service did not start:\n{self.output.read_text()}")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if the process is still there after 20 seconds."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def send(self, calls: Sequence[Call], clients: int = CLIENTS) -> list[Exchange]:
        """Send the calls from several clients at once."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(self._post, calls))

    def _post(self, call: Call) -> Exchange:
        return Exchange(*call, self.now, *self._ask("POST", f"/v1/{call[0]}", json.dumps(call[1])))

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LAG / 1000)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        return 0, {}


class Week:
    """Persons, what they send, and the nights: drawn from the seed, except how many lists a kill leaves."""

    def __init__(self, folder: Path, *, seed: int, requests: int) -> None:
        self.rng, self.requests, self.ledger, self.service = random.Random(seed), requests, Ledger(), Service(folder)
        self.tomorrow: list[str] = []  # lists that are answered after their rotation
        self.differences: list[tuple[Any, ...]] = []
        self.slow = 0  # answers by the clock that is three days slow

    def play(self, days: int) -> Iterator[dict[str, Any]]:
        """Yield a line for each day; the service ends with the week."""
        self.service.set_clock(0, 8)
        try:
            self.service.start()
            for day in range(days):
                began = time.perf_counter()
                for part in (self.morning, self.trouble, self.reports, self.answers, self.late_answers):
                    part(day)
                yield {**self.night(day), "seconds": round(time.perf_counter() - began, 1)}
        finally:
            self.service.stop()

    def send(self, day: int, calls: Sequence[Call], *, shuffled: bool = False) -> None:
        """Send the calls and enter them in the ledger."""
        for exchange in self.service.send(self.rng.sample(calls, len(calls)) if shuffled else calls):
            self.ledger.enter(day, exchange)

    def request(self, person: str, **options: Any) -> Call:
        past = [(self.rng.randrange(100), self.rng.choice(["click", "none"])) for _ in range(self.rng.randrange(5))]
        history = [{"item": item, "event": event} for item, event in past]
        return "recommend", {"person": person, "history": history, "k": self.rng.choice([1, 3, 5]), **options}

    def answer(self, request: str, name: object, event: str, place: int = 0, **options: Any) -> Call:
        item = self.ledger.lists[request].given.reply["items"][place]
        return "feedback", {"id": f"{request}-{name}", "request": request, "item": item, "event": event, **options}

    def morning(self, day: int) -> None:
        """Request the day's lists at eight."""
        self.service.set_clock(day, 8)
        calls = []
        for number in range(self.requests):
            options: dict[str, Any] = {"defer": True} if number % 4 == 0 else {}
            options |= {"exclude_seen": True} if number % 5 == 0 else {}
            options |= {"candidates": list(range(number % 20, 90))} if number % 11 == 0 else {}
            calls.append(self.request(f"d{day}n{number}" if number % 7 else f"regular{number}", **options))
        self.send(day, calls)

    def trouble(self, day: int) -> None:
        """Kill the service under load, or lock its log while lists and answers are sent; send the answers again."""
        if day in KILLED:
            killing = threading.Timer(UNTIL_KILL, self.service.kill)
            killing.start()
            self.send(day, [self.request(f"d{day}load{number}") for number in range(LOAD)])
            killing.join()
            self.service.start()
        if day == BLOCKED:
            lists = [self.request(f"d{day}blocked{number}") for number in range(15)]
            answers = [self.answer(request, "blocked", "click") for request in list(self.ledger.of(day))[:CLIENTS]]
            with contextlib.closing(sqlite3.connect(self.service.log, timeout=30, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                with ThreadPoolExecutor(1) as aside:
                    waiting = aside.submit(self.service.send, [*lists, *answers], len(lists) + len(answers))
                    time.sleep(BLOCK)
                    other.execute("COMMIT")
            for exchange in waiting.result():
                self.ledger.enter(day, exchange)
            self.send(day, answers)

    def reports(self, day: int) -> None:
        """Report what was seen; some answers come before the report of their deferred list."""
        self.service.set_clock(day, 8.2)
        calls: list[Call] = []
        for request, one in self.ledger.of(day).items():
            count, chance = len(one.given.reply["items"]), self.rng.random()
            if one.given.body.get("defer"):
                places = self.rng.choice([{}, {"places": 1}, {"places": count}])
                calls += [self.answer(request, "before", "click")] * (chance < 0.2)
                calls += [("shown", {"request": request, **places})] * (chance < 0.8)
                calls += [("shown", {"request": request, "places": 1})] * (chance < 0.1)
            elif chance < 0.2:
                calls.append(("shown", {"request": request, "places": self.rng.randrange(count + 1)}))
        self.send(day, calls, shuffled=True)

    def answers(self, day: int) -> None:
        """Answer places, seen or not: doubled, with rewards, without, and by a clock that is three days slow."""
        self.service.set_clock(day, 8.4)
        calls, now = list[Call](), self.service.now
        for request, one in self.ledger.of(day).items():
            for place in range(len(one.given.reply["items"])):
                if self.rng.random() < 0.3:
                    at, doubled, other, odd = self.rng.randrange(-20, 20) * 1000 + place, *self.rng.choices((1, 2), k=3)
                    event = self.rng.choice(["click", "purchase"])
                    calls += [self.answer(request, place, event, place, time=now + at)] * doubled
                    stated = {"reward": round(self.rng.uniform(0.3, 0.9), 6), "time": now - at + 500}
                    calls += [self.answer(request, f"{place}x", "click", place, **stated)] * (other - 1)
                    calls += [self.answer(request, f"{place}odd", "looked", place)] * (odd - 1)
            if self.rng.random() < 0.1:
                calls.append(self.answer(request, "slow", "purchase", time=now - 72 * HOUR))
                self.slow += 1
        self.send(day, calls, shuffled=True)

    def late_answers(self, day: int) -> None:
        """Answer at noon: lists of today after their window, and lists of yesterday again."""
        self.service.set_clock(day, 12)
        today = [request for request in self.ledger.of(day) if self.rng.random() < 0.15]
        late = [self.answer(request, "late", "purchase") for request in today[::2]]
        next_day = [self.answer(request, name, "click") for request in self.tomorrow for name in ("next", 0)]
        self.send(day, [*late, *next_day], shuffled=True)
        self.tomorrow = today[1::2]

    def night(self, day: int) -> dict[str, Any]:
        """Rotate the day, compare it with the ledger, and audit it."""
        self.service.set_clock(day, 23)
        how, out = AGGREGATIONS[day % 4], self.service.folder / "events" / f"day-{day}"
        rewards = ",".join(f"{event}={reward}" for event, reward in REWARDS.items())
        rotate = self.service.lpi("rotate", self.service.log, "--out", out, "--rewards", rewards, "--aggregation", how)
        audit = self.service.lpi("audit", out, "--run", self.service.folder / "served")
        files, (rows, fates), before = Rotated.read(out), self.ledger.join(day, how), len(self.differences)
        self.differences += differences(self.ledger, day, how, files)
        counts = Counter(fates.values())
        if rotate[0] or audit[0] not in (0, 4) or f" {counts['late']:,} answers came late" not in audit[1]:
            self.differences.append(("commands", day, rotate, audit, counts["late"]))
        return {"day": day, "aggregation": how, "lists": len(self.ledger.of(day)), "rows": len(rows),
                "rotated": len(files.rows), "answers": dict(counts), "exit codes": [rotate[0], audit[0]],
                "unanswered, rotated": len(set(files.persons) - set(self.ledger.lists)),
                "differences": len(self.differences) - before}  # fmt: skip


def export(folder: Path) -> None:
    """Train for seconds on a simulated bandit of 100 items, and export."""
    import localpolicy as lp

    lp.simulate("bandit", out=folder / "world", sequences=3000)
    data = lp.prepare(folder / "world" / "events.parquet", out=folder / "data")
    settings: dict[str, Any] = {"width": 16, "epochs": 2, "batch_size": 512, "learning_rate": 0.005, "device": "cpu"}
    lp.export(lp.train(data, "lpi_cb", out=folder / "run", **settings).folder, out=folder / "served")


def main() -> None:
    """Play the week; exit with 1 if a row, an answer or a list differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=120, help="each day; those under load are extra")
    parser.add_argument("--days", type=int, default=DAYS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lpi-week-") as scratch:
        with contextlib.redirect_stdout(sys.stderr):
            export(Path(scratch))
        week, totals = Week(Path(scratch), seed=given.seed, requests=given.requests), Counter[str]()
        for line in week.play(given.days):
            print(json.dumps(line), flush=True)
            totals.update({name: line[name] for name in ("lists", "rows", "unanswered, rotated")}, **line["answers"])
        if week.slow != week.ledger.replies["feedback 422"]:
            week.differences.append(("refused", week.slow, week.ledger.replies["feedback 422"]))
        if "Traceback" in week.service.output.read_text():
            week.differences.append(("traceback", week.service.output.read_text()[-2000:]))
    print(json.dumps({"seed": given.seed, **totals, "replies": week.ledger.replies,
                      "differences": len(week.differences), "first": week.differences[:20]}))  # fmt: skip
    if week.differences:
        sys.exit(1)


if __name__ == "__main__":
    main()
