"""`go`: from a log to a verdict and a page. How the log is read comes first, the answer last; the page has both."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from localpolicy import __version__
from localpolicy.data.config import PrepareConfig, go_fields
from localpolicy.data.guess.guess import Guess, guess
from localpolicy.data.guess.log import COPY, Titles, column_names, plainly_written, read_titles, title_column
from localpolicy.data.guess.reading import Use
from localpolicy.errors import ConfigError, DataError, nearest, to_caller
from localpolicy.judge.claims import GateRules, rules_of
from localpolicy.measure.metrics import AT_K
from localpolicy.model.recorded import check_lists, read_recorded
from localpolicy.report.comparison import comparison_section
from localpolicy.report.comparison_words import TESTED
from localpolicy.report.contents import Contents, KeyNumber, Section
from localpolicy.report.gate import gate_claims, gate_headline, gate_table
from localpolicy.report.page import write_report
from localpolicy.report.table import Table
from localpolicy.runs.config import Config
from localpolicy.runtime.devices import device_called
from localpolicy.runtime.folders import new_folder, refuse_occupied, training_lock
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table
from localpolicy.study.go import Asked, GoResult, carry_out
from localpolicy.study.go_plan import FEW, Clock, counted_epochs, held_out, plan, prepare_log

LOG = logging.getLogger(__name__)
REWARD = "estimated reward per decision"
FEWEST_SEQUENCES = 20  # three each for validation and for the test, and some to learn from
OURS = ("go.yaml", "log.parquet", "own lists.parquet")  # one of them is in every folder that `go` began


def go(
    log: Any,
    *,
    out: Path | str | None = None,
    columns: Mapping[str, str] | None = None,
    rewards: Mapping[str, float] | str | None = None,
    rename: Mapping[str, str] | None = None,
    own: Any = None,
    titles: Path | str | None = None,
    skip_bad_rows: bool = False,
    minutes: float = 15.0,
    exclude_seen: bool = False,
    rules: GateRules | Mapping[str, Any] | Path | str | None = None,
    seed: int = 0,
    device: str = "auto",
    settings: tuple[str, ...] = (),
    shown: Callable[[Table], object] = print,
    confirm: Callable[[], object] | None = None,
    started: float | None = None,
    **preparing: Any,
) -> GoResult:
    """From a log (a frame, or a CSV or Parquet file) to a verdict: read, prepare, train, judge, and write one page.

    What each column is taken for is shown first; `columns`, `rewards` and `rename` correct it. `own` is the recommender
    that is deployed, as a frame or a file of its lists: the gate then asks whether to replace it. Results go into the
    folder `out` (default: a new one under the working directory): report.html, verdict.json, and commands.sh, which
    does the same step by step. The same call goes on where it stopped. `settings` are assignments such as
    `"train.epochs=4"`. With `exclude_seen` items that a sequence held before are never ranked. The `minutes` are for
    all of it, from `started` (a time.monotonic(), default: now); what does not fit is left out and reported. With
    `skip_bad_rows` rows that cannot be read are left out, and counted. `preparing` are settings of `prepare` beside
    these, such as `duplicates="exact"` or `session_gap="30m"`.
    """
    preparing = _preparing(preparing)
    if not 0 < minutes < math.inf:
        raise ConfigError(f"minutes: expected a number above 0, got {minutes}.")
    # All that was given is looked at now, not after an hour of training.
    rules = None if rules is None else rules_of(rules)
    Config.parse({"objective": {"name": "mle"}, "train": {"device": device_called(device)}}).with_changes(settings)
    if titles is not None and not Path(titles).is_file():
        raise DataError(f"{titles}, the titles of items, does not exist.")
    names = None if titles is None else read_titles(titles)
    if own is not None and not is_table(own):
        check_lists(own)
    clock = Clock(time.monotonic() if started is None else started, minutes)
    folder = new_folder("go") if out is None else Path(out)
    ours = (*(folder / name for name in OURS), *folder.glob(f"*{COPY}"))  # a refused guess leaves the copy alone behind
    refuse_occupied(folder, force=any(path.exists() for path in ours))
    path, lists = _written(log, folder, "log"), None if own is None else _written(own, folder, "own lists")
    text = ",".join(f"{event}={value}" for event, value in rewards.items()) if isinstance(rewards, Mapping) else rewards
    path, rewritten = plainly_written(path, folder, skip_malformed=skip_bad_rows)
    guessed = guess(path, columns=columns, rewards=text, rename=rename, skip_bad_rows=skip_bad_rows)
    guessed = replace(guessed, unsure=(*rewritten, *guessed.unsure))
    called = Path(titles) if titles else (path if title_column(column_names(path)) else None)
    shown(guess_table(guessed, path, called))
    _noted(*guessed.unsure)
    if 0 < guessed.sequences < FEWEST_SEQUENCES and "session_gap" not in preparing:  # 0: the reader knows
        who = guessed.columns.get("sequence_id", "sequence_id")
        raise DataError(
            f"{path} has {guessed.sequences} sequences (each {who} is one): too few to learn from and to judge by. "
            f"At least {FEWEST_SEQUENCES} are needed. If another column says whose row it is, name it: "
            "--columns sequence_id=NAME; a long history is cut into visits by --session-gap 30m."
        )
    if confirm is not None:
        confirm()
        clock = Clock(time.monotonic(), minutes)
    counted = {"validation", "test", "split", "session_gap"} & preparing.keys()  # what is held out is the user's choice
    most = None if counted else held_out(guessed.sequences, minutes)
    guessed = replace(guessed, held_out=most, preparing=preparing)
    if guessed.held_out is not None and guessed.sequences > FEW:
        note = (
            f"of {guessed.sequences:,} sequences {guessed.held_out:,} are held out for validation and as many for the "
            "test, not a tenth, to stay within the time"
        )
        guessed = replace(guessed, unsure=(*guessed.unsure, note))
        _noted(note)
    item = guessed.columns.get("item_id") if called == path else None
    with training_lock(folder):
        data = prepare_log(path, folder, guessed, seed=seed)
        if lists is not None:
            read_recorded(lists, data, "test")  # raises where they are of other items or other people
        if bad := data.manifest["bad_rows"]:
            skipped = f"skipped: {', '.join(f'{count:,} rows ({problem})' for problem, count in bad.items())}"
            guessed = replace(guessed, unsure=(*guessed.unsure, skipped))
            _noted(skipped)
        planned = plan(data, folder, clock=clock, seed=seed, changes=settings, device=device)
        _noted(*planned.notes)
        LOG.info(
            f"training {planned.runs} runs of at most {counted_epochs(planned.config.train.epochs)}: about "
            f"{_minutes(planned.seconds)} at most ({planned.epoch_seconds:.1f} s an epoch)"
        )
        asked = Asked(path, guessed, folder, seed, rules, titles=called, own=lists, exclude_seen=exclude_seen)
        result = carry_out(asked, data, planned, clock=clock)
        _noted(*result.left_out)
        if names is None and called is not None:
            names = read_titles(called, item=item)
        write_go(result, folder / "report.html", titles=names)
    return result


def _noted(*notes: str) -> None:
    for note in notes:
        LOG.info("note: %s.", to_caller(note))


def _preparing(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `prepare` that were given; an unknown one is refused now, not after the log was read."""
    fields, keywords = go_fields(), inspect.signature(go).parameters.keys() - {"preparing"}
    for name in given:
        if name not in fields:
            raise ConfigError(f"{name}: no such key{nearest(name, [*keywords, *fields])}")
    parsed = PrepareConfig.parse({name: value for name, value in given.items() if name in PrepareConfig.model_fields})
    values = {name: getattr(parsed, name, None if value is None else str(value)) for name, value in given.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}  # as in YAML


def _written(table: Any, folder: Path, name: str) -> Path:
    """A log or lists as a file: a frame is written into the folder."""
    if not is_table(table):
        return Path(table)
    path = folder / f"{name}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    index: Any = getattr(table, "index", None)
    if type(index).__name__ == "DatetimeIndex" and index.name is None and "timestamp" not in table.columns:
        table = table.rename_axis("timestamp")  # an index without a name is else no column
    pq.write_table(plain_table(arrow_stream(table)), path)
    return path


def guess_table(guessed: Guess, path: Path, titles: Path | None) -> Table:
    """One line per column of the log: used as what, or ignored and why."""
    rows = []
    for first, *more in _alike(guessed.uses):
        name = f"{first.column} to {more[-1].column} ({1 + len(more)} columns)" if more else first.column
        rows.append([name, first.role or "-", to_caller(first.why)])
    said = [
        *([f"Every row is the event '{guessed.event}'."] if guessed.event else []),
        *([f"Rewards: {guessed.rewards}."] if guessed.rewards else []),
        *([f"Renamed: {', '.join(f'{a} is {b}' for a, b in guessed.rename.items())}."] if guessed.rename else []),
        *([f"Titles of items: {titles}."] if titles else []),
        *(f"Note: {to_caller(note)}." for note in guessed.unsure),
    ]
    return Table(f"How {path} is read", ("column", "used as", "why"), rows, " ".join(said))


def _alike(uses: Sequence[Use]) -> list[list[Use]]:
    """Columns side by side that are numbered alone (f0, f1, …) and ignored for the same reason share a line."""

    def kind(use: Use) -> tuple[str, ...]:
        stem = use.column.rstrip("0123456789")
        return (stem, use.why) if stem and not use.role else (use.column,)

    return [list(alike) for _, alike in groupby(uses, kind)]


def go_tables(result: GoResult) -> list[Table]:
    """How the log was read, and the answer."""
    read = guess_table(result.guessed, result.data.path, None)
    if result.verdict is not None:
        return [read, gate_table(result.verdict)]
    rows = [[each.name, *(f"{each.estimate(f'all.{name}').mean:.4f}" for name in AT_K)] for each in result.ranked]
    return [read, Table("NOTHING TO DECIDE: models ranked", ("policy", *AT_K), rows, result.sentence)]


def write_go(result: GoResult, path: Path, *, titles: Titles | None = None) -> Contents:
    """One HTML file; `titles` say what items are called."""
    section = comparison_section(result.comparison, base=path.parent, titles=titles)
    verdict = result.verdict
    figure = "nothing"
    if verdict is not None:
        # The figure that is drawn is the one that decides.
        by_value = verdict.deployed is None or verdict.question.kind == "value"
        figure = REWARD if by_value else verdict.metric
        drawn = verdict.rules.estimator.upper() if by_value else figure
        # Whether it is better is the gate's to say: with an interval of its own the page would have two of one gain.
        # And that the improvement is made of the estimate is no fault, but how it is made: a note says so.
        others = [
            claim
            for claim in section.claims
            if (claim.figure, claim.rule) != (section.main, TESTED) and claim.figure != "settings"
        ]
        section = _by(section, drawn, section.columns.get(drawn, figure))
        section = replace(section, claims=[*gate_claims(verdict), *others])
    notes = [*result.notes, *(() if verdict is None else verdict.notes)]
    settings = {
        "localpolicy": __version__,
        **{f"column {use.column}": f"{use.role or 'not used'}: {use.why}" for use in result.guessed.uses},
        "judged": str(result.chosen.folder),
        **({"the improvement says": result.said} if result.said else {}),
        "against": "nothing" if verdict is None else verdict.against,
        "the figure that decides": figure,
        **{f"note {number}": note for number, note in enumerate(notes, start=1)},
    }
    contents = replace(_headline(result), title="From the log to a verdict", sections=[section], settings=settings)
    write_report(contents, path)
    return contents


def _headline(result: GoResult) -> Contents:
    """The gate's answer, and how much of the critic's opinion is in the policy that was judged."""
    if result.verdict is None:
        step = "Serve the model that ranks highest if ranks are what you want; log rewards, and ask again."
        return Contents("", result.sentence, next_step=step)
    headline = gate_headline(result.verdict)
    improvement = result.chosen.manifest.get("improvement")
    if improvement is None:
        return headline
    trust = float(improvement["slope"])
    meaning = (
        "How much of what the critic says holds on data it has not seen: 1 is all of it. At 0 the log does not tell "
        "good items from bad, and the policy only imitates the log."
    )
    return replace(headline, numbers=[*headline.numbers, KeyNumber(f"{trust:.2f}", "trust in the critic", meaning)])


def _by(section: Section, figure: str, said: str) -> Section:
    """The same with this figure as the one that is drawn; unchanged where a policy has none: it would be missed."""
    if any(section.figure(policy.name, figure) is None for policy in section.policies):
        return section
    return replace(section, columns={figure: said, **section.columns}, main=figure)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
