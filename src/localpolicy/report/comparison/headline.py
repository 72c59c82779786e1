"""A comparison's answer: is a new policy better, by how much, how risky is it, and what to do now."""

from __future__ import annotations

from localpolicy.judge.comparison import Comparison
from localpolicy.measure.divergence import beyond_floor, times_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.measure.significance import Paired
from localpolicy.report.comparison.findings import is_simple, main_value
from localpolicy.report.contents import Headline, KeyNumber, PolicyRow, Section
from localpolicy.report.numbers import decimals, fixed, known, percent, short


def comparison_headline(comparison: Comparison, section: Section) -> Headline:
    """In words for the person who decides, not for the one who trains."""
    base = next((row for row in section.rows if row.name == section.baseline), None)
    imitators = [candidate.estimates_logging for candidate in comparison.candidates]
    rivals = [row for row, imitates in zip(section.rows, imitators, strict=True) if not (imitates or is_simple(row))]
    baselines = [row for row in section.rows if is_simple(row)]
    simple = max(baselines, key=lambda row: main_value(row, section), default=None)
    if base is None or not rivals:
        return _nothing_to_compare(section)
    best = max(rivals, key=lambda row: main_value(row, section))
    gain = best.differences.get(section.main_metric)
    numbers = [_gain_number(section, best, base, gain), _js_number(section, best), _last_number(section, best, base)]
    if simple is not None and main_value(simple, section) > main_value(best, section):
        return Headline(_simple_wins(section, simple, best), numbers, _after_simple(simple))
    if gain is None:
        sentence = f"Whether {best.name} is better than {base.name}, which imitates the log, cannot be said."
        return Headline(sentence, numbers, "The findings say why, and how to make the two comparable.")
    if gain.sign == 0:
        sentence = f"No new policy is better than {base.name}, which imitates the log, beyond chance."
        step = "Keep what is deployed. Train on more data, or with another objective or β, and compare again."
        return Headline(sentence, numbers, step)
    if gain.sign < 0:
        sentence = f"Every new policy is worse than {base.name}, which imitates the log: do not deploy one."
        step = "Check rewards and training (the curves below), or choose a larger β, which stays closer to the log."
        return Headline(sentence, numbers, step)
    sentence = f"{best.name} is better than {base.name}, which imitates the log: {_change(section, best, base, gain)}."
    return Headline(f"{sentence} {_risk(section, best)}", numbers, _after_gain(section, best, base))


def _nothing_to_compare(section: Section) -> Headline:
    best = max(section.rows, key=lambda row: main_value(row, section))
    sentence = f"{best.name} ranks highest, with a {section.main_metric} of {short(main_value(best, section))}."
    step = "Add a run to compare: lpi train trains one, and an mle run stands for the policy that wrote the log."
    if section.baseline:
        step = "Train a policy that should be better than the log (lpi_rl, lpi_cb), and compare it with these."
    return Headline(sentence, [_js_number(section, best)], step)


def _change(section: Section, best: PolicyRow, base: PolicyRow, gain: Paired) -> str:
    new, old = main_value(best, section), main_value(base, section)
    if abs(new - old - gain.difference) > 1e-9:  # the gain is another pair of weights', which one figure kept
        return f"{section.main_metric} {gain.difference:+.4f} with epochs chosen alike, more than chance explains"
    digits = decimals([new])
    share = f" ({(new - old) / old:+.0%})" if old > 0 and known(old) else ""
    return f"{section.main_metric} {fixed(old, digits)} → {fixed(new, digits)}{share}, more than chance explains"


def _risk(section: Section, best: PolicyRow) -> str:
    further = beyond_floor(best.js, section.floor)
    if best.js is None or further is None:
        return "How far it moves from the log is not known yet."
    if not further:
        return "It stays as close to the log as a retrained copy would."
    times = times_floor(best.js, section.floor)
    if times is None:
        return "It moves away from the log."
    return f"It moves {short(times, 2)} times as far from the log as a retrained copy would."


def _simple_wins(section: Section, simple: PolicyRow, best: PolicyRow) -> str:
    return (
        f"No trained policy ranks above {simple.name}, a simple baseline: {section.main_metric} "
        f"{short(main_value(best, section))} of {best.name} against {short(main_value(simple, section))}."
    )


def _after_simple(simple: PolicyRow) -> str:
    return (
        f"Deploy none of the trained policies yet. Use {simple.name}, or mend the training (more epochs, a wider or "
        "tied model), until a trained policy is above it."
    )


def _after_gain(section: Section, best: PolicyRow, base: PolicyRow) -> str:
    step = f"Ask the gate (lpi gate {best.name} --against {base.name}), then test it online on a small share of users."
    if section.floor is None:
        step += " Train a second mle seed first, and give it with --against: without it the noise is unknown."
    if best.weights.get("effective_share", 1.0) < LEAST_EFFECTIVE:
        step += f" Its weights rest on less than {LEAST_EFFECTIVE:.0%} of the log: try a larger β."
    return step


def _gain_number(section: Section, best: PolicyRow, base: PolicyRow, gain: Paired | None) -> KeyNumber:
    name = f"{section.main_metric}: {best.name} minus {base.name}"
    if gain is None:
        return KeyNumber("?", name, "No gain is shown: the two were not made alike.")
    sure = "beyond chance" if gain.sign else "may be chance"
    meaning = (
        "How high the item that people took stands in the list; 1 is always first. The difference is "
        f"{gain.low:+.4f} to {gain.high:+.4f} with 95 % confidence: {sure}."
    )
    return KeyNumber(f"{gain.difference:+.4f}", name, meaning)


def _js_number(section: Section, best: PolicyRow) -> KeyNumber:
    name = f"distance of {best.name} from the log (JS)"
    if best.js is None:
        return KeyNumber("?", name, "It is not known: compare it with an mle run.")
    noise = (
        "Only a second mle seed would tell how much of it is noise."
        if section.floor is None
        else f"Two mle runs of different seeds differ by {short(section.floor.mean, 2)}: that much is noise."
    )
    return KeyNumber(short(best.js.mean, 2), name, f"0: it shows the same as before; 0.69: nothing in common. {noise}")


def _last_number(section: Section, best: PolicyRow, base: PolicyRow) -> KeyNumber:
    """The true reward, if a simulated world knows it; else how much of the catalogue it shows."""
    if best.gain is not None and section.logging_value is not None and section.logging_value.mean:
        share = best.gain.mean / section.logging_value.mean
        top = max((row for row in section.rows if row.gain), key=lambda row: row.gain.mean if row.gain else 0.0)
        most = "the most of all." if top is best or top.gain is None else (
            f"{top.name} earns most: {top.gain.mean / section.logging_value.mean:+.0%}."
        )  # fmt: skip
        return KeyNumber(f"{share:+.0%}", f"true reward of {best.name} over the log's policy", _truth(best.gain, most))
    meaning = (
        f"{base.name} reaches {percent(base.coverage)}. Far less means that everybody is shown the same few items."
    )
    name = f"of the catalogue is in some list of {section.lists} of {best.name}"
    return KeyNumber(percent(best.coverage), name, meaning)


def _truth(gain: Interval, most: str) -> str:
    sure = "" if gain.low > 0 or gain.high < 0 else " (its interval holds 0)"
    return f"The simulated world knows it{sure}; {most}"
