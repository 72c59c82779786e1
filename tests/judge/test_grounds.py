"""What takes the ground away from every other check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from localpolicy.judge.gate import Gate, GateRules
from localpolicy.judge.gate_checks import Check
from localpolicy.judge.gate_grounds import training_check
from localpolicy.measure.question import Question
from localpolicy.report.gate import gate_headline


def test_training_that_was_cut_short_gives_no_verdict_on_what_it_could_do():
    """Before: "the simple baseline 'popularity' does better. Deploy that one", of a model that was hardly trained."""
    fit = Check("reference fit", "cannot tell", "no better than popularity")
    liking, value = Question("liking", ""), Question("value", "")

    def run(*, late: bool) -> SimpleNamespace:
        config = SimpleNamespace(train=SimpleNamespace(epochs=9))
        return SimpleNamespace(folder=Path("mle"), manifest={"epochs": 6}, config=config, out_of_time=late)

    late, done = [run(late=False), run(late=True)], [run(late=False)]
    cut = training_check([fit], late, liking)
    assert cut is not None and cut.outcome == "cannot tell" and "mle stopped in epoch 7 of 9" in cut.reason
    verdict = Gate(
        [cut, Check("gain", "not asked", "")], SimpleNamespace(name="new", divergence=None), None, GateRules()
    )
    assert "the time was over" in verdict.sentence and gate_headline(verdict).next_step.startswith("Train for longer")
    assert training_check([fit], done, liking) is None, "trained to its end it is worse"
    assert training_check([replace(fit, outcome="yes")], late, liking) is None, "it has learned the log"
    assert training_check([fit], late, value) is None, "what a baseline earns needs no estimate of the log"
