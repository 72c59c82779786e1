"""`lpi evaluate`, `lpi compare` and `lpi gate`: one run measured, several side by side, and whether to deploy one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Against, Device, Fields, Setting, Why, takes
from localpolicy.cli.output import write_and_print

LOG = logging.getLogger(__name__)
EXIT = {"deploy": 0, "do not deploy": 3, "cannot tell": 4, "nothing to decide": 6, "test online": 7}
EVALUATE = "localpolicy.measure.metrics:EvaluateConfig"
MEASURED = ("split", "min_history", "exclude_seen", "sequences")  # of the gate
Data = Annotated[Path | None, typer.Option(help="the prepared data (default: where the run found it)")]
World = Annotated[
    Path | None, typer.Option(help="folder of the simulated world that knows the truth (default: inside the data)")
]
Json = Annotated[Path | None, typer.Option("--json", help="write the result as JSON (-: to stdout, without tables)")]
Markdown = Annotated[Path | None, typer.Option(help="write the tables as Markdown")]
Latex = Annotated[Path | None, typer.Option(help="write the tables as LaTeX")]
Imputation = Annotated[
    Path | None, typer.Option(help="for ratings: the folder of the model that imputes iAR@1 (fitted if missing)")
]


@takes(Fields(EVALUATE, only=("split", "min_history", "exclude_seen", "lists", "metrics")))
def evaluate(
    run: Annotated[Path, typer.Argument(help="the run to measure", show_default=False)],
    against: Against = None,
    beta: Annotated[
        float | None, typer.Option(help="measure π ∝ μ̂ exp(Q/β) at this β instead of the trained head")
    ] = None,
    data: Data = None,
    world: World = None,
    propensities: Annotated[
        str | None, typer.Option(help="use the probabilities of this reference (by name) as logged propensities")
    ] = None,
    imputation: Imputation = None,
    out: Annotated[Path | None, typer.Option(help="folder for values per position (default: RUN/evaluation)")] = None,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
    **given: Any,
) -> None:
    """Measure one run: ranking, reward, divergence, off-policy estimates, and the truth if the data is simulated."""
    from localpolicy.measure.evaluate import evaluate as measure
    from localpolicy.report.tables import evaluation_tables

    result = measure(
        run,
        against=against or (),
        data=data,
        world=world,
        config=measured(given),
        beta=beta,
        propensities=propensities,
        imputation=imputation,
        out=out,
        device=device,
    )
    write_and_print(evaluation_tables(result), result.to_dict(), json=json, markdown=markdown, latex=latex)
    for note in result.settings["notes"]:
        LOG.info("note: %s.", note)
    LOG.info("values per position and per sequence: %s", out or run / "evaluation")


@takes(Fields(EVALUATE, only=("split", "min_history", "exclude_seen")))
def compare(
    runs: Annotated[list[Path], typer.Argument(help="the runs to compare", show_default=False)],
    against: Against = None,
    metrics: Annotated[str, Setting(EVALUATE, "metrics")] = "HR@20,nDCG@20",
    columns: Annotated[str | None, typer.Option(help="the metrics to compare: purchase.nDCG@20,new.HR@5")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="also show gains over the policy of this name (a page always does: over the first mle run)"),
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="also compare simple baselines: popularity, item-kNN, ALS and others")
    ] = True,
    breakdown: Annotated[
        bool, typer.Option(help="also break the metrics down by number of events per sequence")
    ] = False,
    rules: Annotated[
        Path | None, typer.Option(help="a YAML file of the gate's rules: how values are estimated")
    ] = None,
    data: Data = None,
    world: World = None,
    imputation: Imputation = None,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
    html: Annotated[Path | None, typer.Option(help="write the whole report: one HTML file, no network needed")] = None,
    titles: Annotated[
        Path | None, typer.Option(help="titles of items for the page: CSV or Parquet with item_id and title")
    ] = None,
    **given: Any,
) -> None:
    """Compare runs on the same positions, with simple baselines, and say what differs between them.

    A saved baseline, or a CSV or Parquet file of lists, is compared like a run."""
    from localpolicy.data.guess.log_columns import read_titles
    from localpolicy.judge.compare import compare as measure
    from localpolicy.report.comparison import write_comparison
    from localpolicy.report.tables import comparison_tables

    names = None if titles is None else read_titles(titles)  # now, not after everything is measured
    result = measure(
        runs,
        against=against or (),
        rules=rules,
        data=data,
        world=world,
        config=measured({**given, "metrics": metrics}),
        columns=None if columns is None else [part.strip() for part in columns.split(",")],
        baseline=baseline,
        baselines=baselines,
        imputation=imputation,
        device=device,
    )
    tables = comparison_tables(result, gains=baseline is not None, by_count=breakdown)
    if html is not None:
        write_comparison(result, html, titles=names)
    write_and_print(tables, result.to_dict() if json is not None else {}, json=json, markdown=markdown, latex=latex)
    if html is not None:
        LOG.info("report: %s", html)


@takes(
    Fields(EVALUATE, only=MEASURED),
    Fields("localpolicy.judge.rules:GateRules", "Rules"),
)
def gate(
    run: Annotated[
        Path, typer.Argument(help="the candidate: a run, a baseline or a file of lists", show_default=False)
    ],
    against: Annotated[
        list[Path],
        typer.Option(
            help="first, what is deployed now: a run, a baseline, a CSV or Parquet file of its lists, or the word log "
            "(the policy of an impression log); then mle runs of other seeds, for the distance and its noise floor"
        ),
    ],
    rules: Annotated[
        Path | None, typer.Option(help="a YAML file of rules (default: the built-in ones); options below change them")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="judge π ∝ μ̂ exp(Q/β) at this β instead of the trained head")
    ] = None,
    data: Data = None,
    why: Why = False,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
    **given: Any,
) -> None:
    """Say whether a policy should replace the deployed one.

    Exit code 0: deploy; 7: test online; 3: do not deploy; 4: cannot tell; 6: nothing to decide.
    """
    from localpolicy.judge.gate import gate as judge
    from localpolicy.judge.rules import GateRules, rules_of
    from localpolicy.report.gate import gate_tables

    measure = {name: given.pop(name) for name in MEASURED if name in given}
    ruled = rules_of(rules).model_dump(exclude_unset=True)
    verdict = judge(
        run,
        against=against,
        rules=GateRules.parse({**ruled, **given}, prefix="rules: "),
        data=data,
        config=measure,
        beta=beta,
        device=device,
    )
    write_and_print(gate_tables(verdict, why=why), verdict.to_dict(), json=json, markdown=markdown, latex=latex)
    if not verdict.deploy:
        raise typer.Exit(EXIT[verdict.answer])


def measured(given: dict[str, Any]) -> dict[str, Any]:
    """Given evaluation settings, with `metrics` (HR@5,MRR) split into a tuple."""
    metrics = given.get("metrics")
    return given if metrics is None else {**given, "metrics": tuple(part.strip() for part in metrics.split(","))}
