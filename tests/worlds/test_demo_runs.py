"""What the demo leaves behind can be used: its runs find their data, though all was made under another name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localpolicy.measure.estimate import Interval, Measurement
from localpolicy.measure.load_candidates import open_data
from localpolicy.report.contents import PolicyInfo, Section
from localpolicy.runs.run import Run
from localpolicy.worlds import demo as module


def test_runs_of_the_demo_find_their_data(tmp_path, monkeypatch):
    # The logging policy, the reference, and an lpi run, which the verdict wants.
    settings = {"data": {"length": 4}, "model": {"width": 8}, "train": {"epochs": 1}}
    scenario = module.SCENARIOS["bandit"]
    few = replace(scenario, sequences=600, items=20, settings=settings, arms=(*scenario.arms[:2], scenario.arms[-1]))
    monkeypatch.setattr(module, "SCENARIOS", {"bandit": few})
    monkeypatch.setattr("localpolicy.runtime.processes.cores", lambda: 1)
    module.demo(out=tmp_path / "demo")
    for arm in few.arms:
        data = open_data(Run(tmp_path / "demo" / "bandit" / "runs" / arm.folder))
        assert data.path == tmp_path / "demo" / "bandit" / "data"


def played(**policies: tuple[float, float, float]) -> Section:
    """A section of policies by objective: true gain, its half interval and JS; J(μ) is 0.5."""
    names = [name.replace("_b", " β=0.") for name in policies]
    infos = [
        PolicyInfo(name, name.partition(" ")[0], float(beta) if (beta := name.partition("=")[2]) else None)
        for name in names
    ]
    rows = [
        Measurement.of(name, figure, Interval(mean, mean - reach, mean + reach))
        for name, (gain, around, js) in zip(names, policies.values(), strict=True)
        for figure, mean, reach in (("true gain", gain, around), ("true J", 0.5 + gain, around), ("JS", js, 0.0))
    ]
    corrected = {"true gain": len(names)}
    return Section("", "", infos, rows, corrected=corrected, logging_value=Interval(0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("policies", "holds"),
    [
        ({"mle": (0.0, 0.1, 0.01), "ips": (0.1, 0.0, 0.5), "lpi_b1": (0.2, 0.09, 0.3), "lpi_b3": (0.1, 0.2, 0.2)},
         [True, True, True, True]),
        ({"mle": (0.3, 0.1, 0.01), "ips": (0.1, 0.0, 0.1), "lpi_b1": (0.2, 0.2, 0.2), "lpi_b3": (0.1, 0.2, 0.3)},
         [False, False, False, False]),
    ],
)  # fmt: skip
def test_what_the_paper_claims_is_checked_on_the_figures(policies, holds):
    found = module.claims(played(**policies))
    assert [claim.holds for claim in found] == holds
    around = policies["lpi_b1"][1]
    gains = f"lpi β=0.1 +0.2000 ± {around:.4f}, lpi β=0.3 +0.1000 ± 0.2000"
    assert found[0].because == gains + ("" if holds[0] else ". The critic has learnt nothing that pays here: stay at μ̂")
    assert found[0].rule == "one 95 % interval is above 0, corrected for 4 comparisons (Holm)"
    assert found[1].because.startswith("β=0.3: JS 0."), "the largest β first"
    assert [claim.claim.partition(":")[0] for claim in found] == ["the paper's claim"] * 2 + ["our claim"] * 2
    assert found[3].because.startswith("lpi β=0.1: J 0.7" if holds[3] else "mle")


def test_the_verdict_of_the_demo_goes_by_the_interval_next_to_it():
    """It claimed that LPI earns more wherever the mean was above 0."""
    for reach, holds in ((0.19, True), (0.22, False)):
        policies = played(mle=(0.0, 0.1, 0.01), lpi_b1=(0.2, reach, 0.3), lpi_b3=(0.1, 0.2, 0.2))
        section = replace(policies, floor=Interval(0.1, 0.1, 0.1))
        assert module.claims(section)[0].holds is holds
        assert ("does not always earn significantly more" in module.headline({"bandit": section})[0]) is not holds
        table = module.demo_table(section)
        assert table.plain()[1][2].strip() == f"+0.2000 ± {reach:.4f}{'*' if holds else ''}"
        assert "corrected for 3 comparisons (Holm)" in table.note


def test_the_demo_asks_objectives_and_not_their_names():
    """Any objective with a β is LPI, and any that weighs by π/μ̂ is IPS, whatever they are called."""
    section = played(mle=(0.0, 0.1, 0.01), mine_b1=(0.2, 0.1, 0.3), ips_pg=(0.1, 0.1, 0.5))
    assert [claim.holds for claim in module.claims(section)] == [True, True, False, True]  # as good at its distance
    assert module.headline({"bandit": section})[1][0].name.startswith("true reward of mine β=0.1")


@pytest.mark.parametrize(
    ("lpi", "ips", "holds", "says"),
    [
        ((0.2, 0.05, 0.3), (0.1, 0.04, 0.3), True, "lpi β=0.1: +0.2000 ± 0.0500 at JS 0.300; ips: +0.1000 ± 0.0400 at"),
        ((0.2, 0.05, 0.3), (0.1, 0.06, 0.3), False, "IPS is as good a choice at its distance here"),
        ((0.2, 0.05, 0.31), (0.1, 0.04, 0.3), False, "Every LPI policy moves further: add a larger β"),
        ((0.2, 0.05, 0.3), None, None, "no policy here weighs by π/μ̂"),
    ],
)
def test_lpi_is_compared_with_ips_at_no_greater_distance(lpi, ips, holds, says):
    policies = {"mle": (0.0, 0.1, 0.01), "lpi_b1": lpi, **({} if ips is None else {"ips": ips})}
    claim = module.claims(played(**policies))[2]
    assert claim.holds is holds and says in claim.because


def test_the_terminal_shows_tables_and_claims_within_80_columns():
    section = played(mle=(0.0, 0.1, 0.01), ips=(0.1, 0.1, 0.5), lpi_b1=(0.2, 0.1, 0.3), lpi_b3=(0.1, 0.2, 0.2))
    section = replace(section, title="A store", floor=Interval(0.1, 0.1, 0.1), claims=module.claims(section))
    assert len(module.demo_table(section).fitting(80)) == 1
    assert max(map(len, module.claim_lines(section))) <= 80
    assert [line[2:5] for line in module.claim_lines(section) if line[2] != " "] == ["yes", "yes", "NO ", "yes"]


def test_the_demo_says_what_lpi_earns_over_the_log():
    best = played(mle=(0.0, 0.1, 0.01), lpi_b1=(0.2, 0.1, 0.3), lpi_b3=(0.1, 0.2, 0.2))
    other = played(ips=(0.15, 0.1, 0.6), lpi_b1=(-0.05, 0.1, 0.3))
    verdict, (one,) = module.headline({"bandit": best})
    assert verdict.endswith("earns significantly more than the policy that wrote the log: +40% in the bandit.")
    assert one.value == "+40%" and one.meaning.startswith("At JS 0.30") and "earns" not in one.meaning
    verdict, (_, two) = module.headline({"bandit": best, "store": other})
    assert "does not always earn significantly more" in verdict and verdict.endswith(
        "+40% in the bandit and -10% in the store."
    )
    assert two.value == "-10%" and two.meaning.endswith("ips earns +30%, but moves to JS 0.60.")
