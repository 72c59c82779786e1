"""`go`: from a log to a verdict in one command, made of the other verbs.

OUT/go.yaml       what was guessed and decided; OUT/commands.sh: the same as single commands, to grow out of it
OUT/config.yaml   the training settings, for `lpi train --config`
OUT/data          as `lpi prepare` makes it
OUT/runs          two estimates of the logging policy, and the improvement of the first, as `lpi train` makes them
OUT/baselines     the simple baselines, saved
OUT/verdict.json  as `lpi gate --json` writes it

Everything that is there already is taken as it is, so that the same command continues where it stopped.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from localpolicy.data.config import PrepareConfig, go_fields
from localpolicy.data.guess.guess import guess
from localpolicy.data.guess.log_columns import Titles, column_names, read_titles, title_column
from localpolicy.data.guess.plain_copy import COPY, plainly_written
from localpolicy.data.other_files import AS_UTF_8
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import opponents
from localpolicy.judge.judge import judge
from localpolicy.judge.rules import GateRules, rules_of
from localpolicy.judge.verdict import Gate
from localpolicy.measure.effects import GainPerDay, MostMoved, first_shares, gain_per_day, most_moved, taken_shares
from localpolicy.measure.estimate import as_json
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import question_of
from localpolicy.model.baselines import why_not
from localpolicy.model.list_policy import check_lists, read_list_policy
from localpolicy.results import Result
from localpolicy.runs.baselines import fit_baseline, load_baseline
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.devices import device_called
from localpolicy.runtime.files import write_json, write_text
from localpolicy.runtime.folders import new_folder, refuse_occupied, training_lock
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table
from localpolicy.study.go_commands import IMPROVED, Asked, tell, write_commands
from localpolicy.study.go_plan import Plan, known_first, plan, prepare_log
from localpolicy.training.jobs import Job, train_all

LOG = logging.getLogger(__name__)
NOTHING = "nothing to decide"
CHOSEN = {  # how β was found, in words
    "given": "as given",
    "spread": "set to the spread of the critic's advantages",
    "value by logged propensities": "chosen by the estimated reward, from logged propensities",
}
IN_REWARDS = ("value", "return", "reward per answer")  # checks whose numbers are in the unit of rewards
FEWEST_SEQUENCES = 20  # three each for validation and for the test, and some to learn from
OURS = ("go.yaml", "log.parquet", "own lists.parquet")  # one of them is in every folder that `go` began


@dataclass(frozen=True, repr=False)
class GoResult(Result):
    """Result of `go`: the verdict of the gate, the comparison behind it, and the policy that was judged."""

    asked: Asked
    data: Prepared
    plan: Plan
    chosen: Run  # the policy that was judged, or the one of the best likelihood if there is nothing to decide
    verdict: Gate | None  # None: all events have the same reward, so nothing is decided
    comparison: Comparison
    left_out: tuple[str, ...] = ()  # what the time did not allow
    titles: Titles | None = None  # what items are called

    @property
    def answer(self) -> str:
        """Answer of the gate, or "nothing to decide"."""
        return NOTHING if self.verdict is None else self.verdict.answer

    @property
    def sentence(self) -> str:
        """The answer with its reasons in one sentence."""
        if self.verdict is not None:
            return self.verdict.sentence
        return f"Nothing to decide: {self.comparison.question.why}. {self.known}"

    @property
    def known(self) -> str:
        """Text that ranks the models by what people took, for a log that decides nothing."""
        figure, till = self.comparison.ranked, self.comparison.question.amount
        listed = ", ".join(f"{each.name} {each.estimate(figure).mean:.4f}" for each in self.ranked)
        by = "What can be known is how high models rank what is bought next" if till else (
            "Models ranked by how high they place what people took")  # fmt: skip
        return f"{by} ({figure}): {listed}."

    @property
    def ranked(self) -> list[Evaluation]:
        """Evaluations of the models, best first by the deciding rank metric."""
        return [self.comparison[name] for name in self.comparison.order(self.comparison.ranked)]

    @property
    def said(self) -> str | None:
        """Note on how β was chosen, or why the policy stays at μ̂; None without an improvement."""
        improvement = self.chosen.manifest.get("improvement", {})
        if not improvement:
            return None
        by = improvement["chosen_by"]
        return str(improvement["said"] or f"β = {improvement['beta']:.3g}, {CHOSEN.get(by, f'chosen by {by}')}.")

    @cached_property
    def moved(self) -> MostMoved | None:
        """Items that the judged policy shows first most often more, or less, than the deployed one.

        None if no policy was judged. The log's own shares stand for a deployed policy that nobody gave.
        """
        if self.verdict is None:
            return None
        scores, deployed, n_items = self.verdict.evaluation.scores, self.verdict.deployed, self.data.n_items
        if deployed is None:
            before = taken_shares(scores, n_items=n_items)
        else:
            before = first_shares(deployed.scores, n_items=n_items)
        return most_moved(before, first_shares(scores, n_items=n_items), self.data.catalogue, titles=self.titles)

    @cached_property
    def gain(self) -> GainPerDay | None:
        """Gain in the reward's own unit, per 1,000 and per day; None if no gain was estimated."""
        gain = None if self.verdict is None else self.verdict.better
        if gain is None or gain.figure not in IN_REWARDS or gain.value is None or gain.low is None or gain.high is None:
            return None
        return gain_per_day(self.data, gain.value, gain.low, gain.high, counted=gain.unit)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the log was read and what was left out."""
        return (*self.asked.guessed.unsure, *self.left_out)

    def summary(self) -> str:
        """The answer in one sentence, without a full stop."""
        return self.sentence.removesuffix(".")

    def to_dict(self) -> dict[str, Any]:
        """Content of OUT/verdict.json."""
        verdict = {} if self.verdict is None else self.verdict.to_dict()
        deploy = self.verdict is not None and self.verdict.deploy
        content = {**verdict, "answer": self.answer, "deploy": deploy, "sentence": self.sentence}
        if self.verdict is None:
            content["ranked"] = [{"policy": each.name, **as_json(each.metrics["all"])} for each in self.ranked]
            content["notes"] = list(self.comparison.notes)
        if (moved := self.moved) is not None:
            shares = {name: [each._asdict() for each in getattr(moved, name)] for name in ("more", "less")}
            content["moved"] = {**shares, "share_of_contexts": moved.moved}
        if (gain := self.gain) is not None:
            content["worth"] = {**gain._asdict(), "daily": gain.daily}
        return {**content, "read": list(self.notes)}

    def to_arrow(self) -> pa.Table:
        """The comparison's numbers as a table, one row per policy."""
        return self.comparison.to_arrow()


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
    shown: Callable[[Asked], object] = str,
    page: Callable[[GoResult, Path], object] | None = None,
    confirm: Callable[[], object] | None = None,
    **preparing: Any,
) -> GoResult:
    """Turn a log (a frame, or a CSV or Parquet file) into a verdict: read, prepare, train, judge, write one `page`.

    What each column is taken for is `shown`; `columns`, `rewards` and `rename` correct it. `own` is the recommender
    that is deployed, as a frame or a file of its lists: the gate then asks whether to replace it. Results go into the
    folder `out` (default: a new one under the working directory): report.html, verdict.json, and commands.sh, which
    does the same step by step. The same call continues where it stopped. `settings` are assignments such as
    `"train.epochs=4"`. With `exclude_seen` items that a sequence held before are never ranked. The `minutes` are for
    all of it, on a machine that does nothing else; what does not fit is left out and reported. With
    `skip_bad_rows` rows that cannot be read are left out, and counted. `preparing` are other settings of `prepare`,
    such as `duplicates="exact"` or `session_gap="30m"`.
    """
    preparing = _preparing(preparing)
    dates = PrepareConfig.parse(
        {name: preparing[name] for name in ("dayfirst", "monthfirst") if name in preparing}
    ).dates
    if not 0 < minutes < math.inf:
        raise ConfigError(f"minutes: expected a number above 0, got {minutes}.")
    # All that was given is looked at now, not after an hour of training.
    rules = None if rules is None else rules_of(rules)
    Config.parse({"objective": {"name": "mle"}, "train": {"device": device_called(device)}}).with_changes(settings)
    if titles is not None and not Path(titles).is_file():
        raise DataError(f"{titles}, the titles of items, does not exist.")
    named = None if titles is None else read_titles(titles)
    if own is not None and not is_table(own):
        check_lists(own)
    folder = new_folder("go") if out is None else Path(out)
    ours = (
        *(folder / name for name in OURS),
        *folder.glob(f"*{COPY}"),
        *folder.glob(f"*{AS_UTF_8}"),
    )  # a refused guess leaves the copy alone behind
    refuse_occupied(folder, force=any(path.exists() for path in ours))
    path, lists = _written(log, folder, "log"), () if own is None else (_written(own, folder, "own lists"),)
    text = ",".join(f"{event}={value}" for event, value in rewards.items()) if isinstance(rewards, Mapping) else rewards
    path, rewritten = plainly_written(path, folder, skip_malformed=skip_bad_rows)
    guessed = guess(path, columns=columns, rewards=text, rename=rename, skip_bad_rows=skip_bad_rows, dates=dates)
    guessed = replace(guessed, unsure=(*rewritten, *guessed.unsure))
    called = Path(titles) if titles else (path if title_column(column_names(path)) else None)
    asked = Asked(path, guessed, folder, seed, rules, titles=called, own=lists, exclude_seen=exclude_seen)
    shown(asked)
    if 0 < guessed.sequences < FEWEST_SEQUENCES and "session_gap" not in preparing:  # 0: the reader knows
        who = guessed.columns.get("sequence_id", "sequence_id")
        raise DataError(
            f"{path} has {guessed.sequences} sequences (each {who} is one): too few to learn from and to judge by. "
            f"At least {FEWEST_SEQUENCES} are needed. If another column says whose row it is, name it: "
            "--columns sequence_id=NAME; a long history is cut into visits by --session-gap 30m."
        )
    if guessed.items == 1:
        what = guessed.columns.get("item_id", "item_id")
        raise DataError(
            f"{path} has one item: every row's {what} is the same, so there is nothing to choose. If another column "
            "names the items, say --columns item_id=NAME."
        )
    if guessed.full_lists:
        raise DataError(
            f"{path} has lists that hold nearly all of its {guessed.items} items, and states no propensities: what "
            "else could have been shown is not known, so there is nothing to choose. To rank items by what was chosen, "
            "write the rows of what was chosen into a file of their own."
        )
    if guessed.shares:
        who = guessed.columns.get("sequence_id", "sequence_id")
        raise DataError(
            f"{path} has one row for each {who}, and all rows are worth the same: nothing before a row tells people "
            f"apart, so what any model can know are the shares of the items: {guessed.shares}. If another column "
            "says whose row it is, or what it earned, name it: --columns sequence_id=NAME,reward=NAME."
        )
    if confirm is not None:
        confirm()
    asked = asked.held_out(minutes, preparing)
    with training_lock(folder):
        data = prepare_log(path, folder, asked.guessed, seed=seed)
        for given in lists:
            read_list_policy(given, data, "test")  # raises where they are of other items or other people
        if bad := data.manifest["bad_rows"]:
            asked = asked.noting(f"skipped: {', '.join(f'{count:,} rows ({why})' for why, count in bad.items())}")
        first = known_first(data, question_of(data))
        tell(*first)  # before the speed is measured
        planned = plan(data, folder, minutes=minutes, seed=seed, changes=settings, device=device)
        tell(*(note for note in planned.notes if note not in first))
        LOG.info("training %s", planned.summary)
        if named is None and called is not None:
            named = read_titles(called, item=guessed.columns.get("item_id") if called == path else None)
        result = carry_out(asked, data, planned, titles=named)
        if page is not None:
            page(result, folder / "report.html")
    return result


def carry_out(asked: Asked, data: Prepared, plan: Plan, *, titles: Titles | None = None) -> GoResult:
    """Train two estimates of the logging policy and the improvement of the first, fit the baselines, and judge.

    The improvement is made of the first estimate and a critic, and judged against that very estimate, or against the
    lists of the recommender that is deployed. No rule that keeps epochs stands between them. β is chosen on validation
    rows, the verdict is the test rows'. The plan alone says how long is trained and how much is judged.
    """
    config, out, device = plan.config, asked.out, plan.config.train.device
    write_text(out / "config.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False))
    estimates = asked.estimates(plan)
    jobs = [Job(run.name, data.path, run, config.trained_with(seed=seed)) for seed, run in estimates.items()]
    stages = [jobs] if plan.side_by_side else [[job] for job in jobs]
    if plan.improve is not None:
        objective = {"name": plan.improve, "logging": str(jobs[0].out)}
        improved = Config.parse({**config.model_dump(), "objective": objective})
        stages.append([Job(IMPROVED.name, data.path, out / IMPROVED, improved)])
    runs: list[Run] = []
    for stage in stages:
        runs += train_all(stage, processes=None if plan.side_by_side else 1).values()
    references = runs[: len(jobs)]
    chosen = runs[-1] if plan.improve else max(references, key=lambda run: run.manifest["selected"]["value"])
    fitted = {
        name: load_baseline(folder) if (folder / "manifest.json").exists()
        else fit_baseline(name, data, out=folder, force=True)
        for name, folder in asked.baselines.items() if why_not(name, data) is None
    }  # fmt: skip
    measure: dict[str, Any] = {"exclude_seen": True} if asked.exclude_seen else {}
    if plan.judged is not None:
        measure |= {"sequences": plan.judged, "min_history": config.train.min_history}
    question = question_of(data)
    write_commands(asked, plan, question, judged=plan.judged)
    judgement = judge(
        [*runs, *asked.own], estimates=references, policy=chosen if plan.improve else None,
        against=opponents(question, asked.own, references), rules=asked.rules, data=data, config=measure or None,
        device=device, fitted=fitted,
    )  # fmt: skip
    result = GoResult(asked, data, plan, chosen, judgement.verdict, judgement.comparison, plan.notes, titles)
    write_json(out / "verdict.json", result.to_dict())
    return result


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
    """Path of a log or lists; a frame is first written to a Parquet file in the folder."""
    if not is_table(table):
        return Path(table)
    path = folder / f"{name}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    index: Any = getattr(table, "index", None)
    if type(index).__name__ == "DatetimeIndex" and index.name is None and "timestamp" not in table.columns:
        table = table.rename_axis("timestamp")  # an index without a name is else no column
    pq.write_table(plain_table(arrow_stream(table)), path)
    return path
