"""The answer of a comparison: is a new policy better, by how much, how risky is it; to deploy is the gate's to say."""

from __future__ import annotations

import math
import shlex

from localpolicy.judge.checks.gains import gain_words
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.findings import around
from localpolicy.judge.gate import opponents
from localpolicy.judge.verdict import would_decide
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor, times_floor
from localpolicy.measure.number_text import corrected, decimals, fixed, known, percent, sentences, short
from localpolicy.measure.position_metrics import LIKED
from localpolicy.measure.significance import Paired
from localpolicy.report.contents import JS_SCALE, Contents, KeyNumber, Section

TITLE = "Policies compared"
ASKS = "Ranks ask in part what was shown before: whether to deploy it is for the gate to say."


def level_of(section: Section, policy: str) -> str:
    """Text of a policy's mean of the deciding metric."""
    return short(section.mean(policy, section.main))


def comparison_headline(comparison: Comparison, section: Section) -> Contents:
    """First screen of a comparison's report, for readers who decide: sentence, key numbers, next step."""
    base, best = section.baseline, comparison.best_new
    if comparison.question.kind == "nothing":
        return _nothing_to_decide(comparison, section)
    if base not in section.names or not comparison.rivals:
        return _nothing_to_compare(comparison, section)
    gain = section.gains.get(best, {}).get(section.main)
    strongest = comparison.strongest
    lost = None if strongest is None else comparison.test(best, strongest, comparison.main)
    if (few := comparison.too_few) is not None:
        sentence = f"Whether {best} is better than {_base(comparison, section, ',')} is not known: {few}."
    elif gain is not None and gain.alike:
        sentence = f"{best} and {base} have the same {section.metric} at all {gain.n:,} {comparison.unit}s."
    elif strongest is not None and lost is not None and lost.sign < 0:
        sentence = _simple_wins(comparison, section, best, strongest)
    elif gain is None:
        sentence = _unknown(comparison, section, best)
    elif comparison.question.kind == "rewards":
        sentence = f"{_by_ranks(section, best, gain)} {ASKS}"
    else:
        sentence = _found(comparison, section, best, gain)
    numbers = [
        _gain_number(comparison, section, best, gain),
        *_js_number(comparison, section, best),
        _last_number(section, best),
    ]
    step = _next_step(
        comparison, section, best, _gate_command(comparison, comparison.candidate(best), comparison.candidate(base))
    )
    return Contents(TITLE, sentence, numbers=numbers, next_step=step)


def _found(comparison: Comparison, section: Section, best: str, gain: Paired) -> str:
    """Sentence on whether the best new policy is significantly better than the baseline."""
    over = f"{_base(comparison, section)}: {_change(section, best, gain)}"
    several = corrected(comparison.comparisons(comparison.main))
    if gain.sign > 0:
        return f"{best} is significantly better than {over}. {_risk(section, best)}"
    if gain.sign < 0:
        return f"{best}{_of_several(comparison)} is significantly worse than {over}."
    return f"{best}{_of_several(comparison)} is not significantly better than {over}{several}."


def _base(comparison: Comparison, section: Section, end: str = "") -> str:
    """Name of the baseline, with a note if it imitates the log."""
    imitates = comparison.candidate(section.baseline).estimates_logging
    return f"{section.baseline}, which imitates the log{end}" if imitates else section.baseline


def _of_several(comparison: Comparison) -> str:
    return ", the best of the new policies," if len(comparison.rivals) > 1 else ""


def _by_ranks(section: Section, best: str, gain: Paired) -> str:
    """Sentence on the difference in ranks, for logs in which ranks do not decide."""
    said = gain_words(section.main)["yes" if gain.sign > 0 else "lower" if gain.sign < 0 else "cannot tell"]
    sure = ", significantly" if gain.sign else ""
    over = f"than {section.baseline} ({_change(section, best, gain)}{sure})"
    return f"{best} {said.removeprefix('it ')} {over}."


def _simple_wins(comparison: Comparison, section: Section, best: str, strongest: str) -> str:
    levels = f"{section.metric} {level_of(section, strongest)} against {level_of(section, best)}"
    several = "the best of the new policies" if len(comparison.rivals) > 1 else "the new policy"
    if comparison.question.kind == "rewards":
        said = gain_words(section.main)["yes"].removeprefix("it ")
        return f"{strongest}, a simple baseline, {said} than {best}, {several} ({levels}, significantly). {ASKS}"
    return f"{strongest}, a simple baseline, is significantly better than {best}, {several}: {levels}."


def _unknown(comparison: Comparison, section: Section, best: str) -> str:
    """Sentence on why the gain could not be measured."""
    if comparison.main == comparison.value:
        for policy in (section.baseline, best):
            if refusal := comparison.values[policy].refusal:
                return f"What {policy} would earn cannot be estimated from this log, so nothing is decided: {refusal}."
    return f"Whether {best} is better than {_base(comparison, section, ',')} is not known: the findings say why."


def _nothing_to_decide(comparison: Comparison, section: Section) -> Contents:
    main = comparison.main
    ranked = ", ".join(f"{name} {comparison.level(name, main):.4f}" for name in comparison.order(main))
    sentence = (
        f"Nothing to decide: {comparison.question.why}. Policies ranked by "
        f"how high they place what people took ({section.metric}): {ranked}."
    )
    return Contents(
        TITLE,
        sentence,
        numbers=_js_number(comparison, section, comparison.best_new),
        next_step=would_decide(comparison.question),
    )


def _nothing_to_compare(comparison: Comparison, section: Section) -> Contents:
    best = section.best(section.names)
    sentence = f"{best} is highest, with a {section.metric} of {level_of(section, best)}."
    if not math.isfinite(section.decisive(best)):
        sentence = f"No policy has the {section.metric}: the log says too little of them."
    step = "Add a run to compare: lpi train trains one, and an mle run stands for the policy that wrote the log."
    if section.baseline:
        step = "Train a policy that should be better than the log (lpi_rl, lpi_cb), and compare it with these."
    return Contents(TITLE, sentence, numbers=_js_number(comparison, section, best), next_step=step)


def _change(section: Section, best: str, gain: Paired) -> str:
    new, old = section.decisive(best), section.decisive(section.baseline)
    if abs(new - old - gain.difference) > 1e-9:  # the gain is another pair of weights', which one figure kept
        return f"{section.metric} {gain.difference:+.4f} with epochs chosen by one metric"
    digits = decimals([new])
    share = f" ({(new - old) / old:+.0%})" if old > 0 and known(old) else ""
    return f"{section.metric} {fixed(old, digits)} → {fixed(new, digits)}{share}"


def _risk(section: Section, best: str) -> str:
    js = section.figure(best, "JS")
    further, times = beyond_floor(js, section.floor), times_floor(js, section.floor)
    if further is None:
        return "How far it moves from the log is not known yet."
    if not further:
        return "It stays as close to the log as a retrained copy would."
    if times is None:
        return "It moves away from the log."
    return f"It moves {short(times, 2)} times as far from the log as a retrained copy would."


def _next_step(comparison: Comparison, section: Section, best: str, command: str) -> str:
    """Sentences on the next step: the gate's command, and hints on noise and on β."""
    weights = next(policy.weights for policy in section.policies if policy.name == best)
    several = comparison.comparisons(comparison.main) > 1 and section.main in section.gains.get(best, {})
    return sentences({
        f"Ask the gate whether to deploy {best}{command and f' ({command})'}.": True,
        "It tests this one pair, so its interval is narrower than one that is corrected for several.": several,
        "Train a second mle seed first, and give it with --against: without it the noise is unknown.":
            section.floor is None,
        f"Its weights come from less than {LEAST_EFFECTIVE:.0%} of the log: try a larger β.":
            weights.get("effective_share", 1.0) < LEAST_EFFECTIVE,
    })  # fmt: skip


def _gate_command(comparison: Comparison, new: Candidate, base: Candidate) -> str:
    """Command line of `lpi gate` for these two policies; empty if one of them is not in a folder."""
    if new.run is None or base.run is None:
        return ""
    deployed = [] if base.estimates_logging else [base.run.folder]
    estimates = [each.run.folder for each in (base, *comparison.references) if each.run is not None]
    words = ["lpi", "gate", str(new.run.folder)]
    against = dict.fromkeys(map(str, opponents(comparison.question, deployed, estimates)))
    words += [word for each in against for word in ("--against", each)]
    words += [] if new.beta is None else ["--beta", f"{new.beta:g}"]
    words += ["--metric", comparison.main] if comparison.question.kind == "metric" else []
    words += ["--exclude-seen"] if comparison.evaluations[0].settings["exclude_seen"] else []
    if new.run.manifest["data"]["digest"] not in comparison.data.digests:
        words += ["--data", str(comparison.data.path)]
    return shlex.join(words)


def _gain_number(comparison: Comparison, section: Section, best: str, gain: Paired | None) -> KeyNumber:
    name = f"{section.metric}: {best} minus {section.baseline}"
    if gain is None:
        known = section.main != comparison.value
        why = "the findings say why" if known else "the value of one of the two is not known"
        return KeyNumber("?", name, f"The two cannot be compared: {why}.")
    what = "How high the item that people took stands in the list; 1 is always first"
    if section.main == LIKED:
        what = "How well people liked, of what they rated, the item that is ranked first"
    elif section.main == comparison.value:
        what = "What it would earn beyond the other, estimated from the log's propensities"
    verdict = "significant" if gain.sign else "not significant"
    found = f"The difference is {around(gain, comparison.comparisons(section.main))}: {verdict}."
    if gain.alike:
        found = f"The two are equal at all {gain.n:,} {comparison.unit}s."
    return KeyNumber(f"{gain.difference:+.4f}", name, f"{what}. {found}")


def _js_number(comparison: Comparison, section: Section, best: str) -> list[KeyNumber]:
    """Key number: distance (JS) of a policy from the log; none for an estimate of the log."""
    if comparison.candidate(best).estimates_logging:
        return []
    name, js = f"distance of {best} from the log (JS)", section.mean(best, "JS")
    if js is None:
        return [KeyNumber("?", name, "It is not known: compare it with an mle run.")]
    noise = "Only a second mle seed would tell how much of it is noise."
    if section.floor is not None:
        noise = f"Two mle runs of different seeds differ by {short(section.floor.mean, 2)}: that much is noise."
    return [KeyNumber(short(js, 2), name, f"{JS_SCALE} {noise}")]


def _last_number(section: Section, best: str) -> KeyNumber:
    """Key number: true reward if a simulated world knows it, else the catalogue coverage."""
    gains = {name: gain for name in section.names if (gain := section.figure(name, "true gain"))}
    shares = {name: f"{share:+.0%}" for name in gains if (share := section.true_share(name)) is not None}
    if best in shares:
        top = max(gains, key=lambda name: gains[name].mean)
        most = "the most of all." if top == best else f"{top} earns most: {shares[top]}."
        caution = "" if gains[best].sign else " (its interval holds 0)"
        meaning = f"The simulated world knows it{caution}; {most}"
        return KeyNumber(shares[best], f"true reward of {best} over the log's policy", meaning)
    new, old = (percent(section.mean(name, f"coverage@{section.lists}")) for name in (best, section.baseline))
    meaning = f"{section.baseline} reaches {old}. Far less means that everybody is shown the same few items."
    return KeyNumber(new, f"of the catalogue is in some list of {section.lists} of {best}", meaning)
