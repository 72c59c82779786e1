"""Preconditions: checks without which no other check decides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from localpolicy.judge import gate as judging
from localpolicy.judge.checks.distance import training_check
from localpolicy.judge.claims import Claim, check
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate
from localpolicy.report.gate import gate_headline

RULES = GateRules()


def test_training_that_was_cut_short_gives_no_verdict_on_what_it_could_do(monkeypatch):
    """Before: "the simple baseline 'popularity' does better. Deploy that one", of a model that was hardly trained."""
    popularity, noise = np.full(50, -3.0), 0.1 * np.cos(np.arange(50))

    def asked(gain: float, *, late: bool) -> Claim | None:
        logp = {"mle": popularity + gain + noise, "another": popularity - 1}
        scores = SimpleNamespace(logp_reference=logp, sequence=np.arange(50), events=["click"])
        config = SimpleNamespace(train=SimpleNamespace(epochs=9))
        run = SimpleNamespace(manifest={"epochs": 6}, config=config, out_of_time=late)
        return training_check(SimpleNamespace(scores=scores), popularity, {"mle": run}, RULES)

    cut = asked(-0.5, late=True)
    assert cut is not None and cut.outcome == "cannot tell" and "mle stopped after epoch 6 of 9" in cut.because
    assert asked(0.0, late=True) is not None, "what it has learned is not significantly more"
    assert asked(0.5, late=True) is None, "it has learned the log"
    assert asked(-0.5, late=False) is None, "trained to its end it is worse"
    gain = check("gain", "no", "")
    monkeypatch.setattr(judging, "order_check", lambda data: None)
    monkeypatch.setattr(judging, "out_of_time", lambda case: cut)
    for kind, outcomes in (("liking", ["cannot tell", "not asked"]), ("value", ["no"]), ("nothing", ["no"])):
        found = judging._apply_preconditions([gain], SimpleNamespace(data=None), kind)
        assert [each.outcome for each in found] == outcomes, kind
    verdict = Gate([cut, gain.as_fact("")], SimpleNamespace(name="new", divergence=None), None, RULES)
    assert "the time was over" in verdict.sentence and gate_headline(verdict).next_step.startswith("Train for longer")
