"""A comparison in words: is a new policy better, by how much, how risky is it; what to deploy is the gate's to say."""

from __future__ import annotations

import math
import shlex

from localpolicy.judge.claims import unjudged
from localpolicy.judge.comparison import VALUE, Comparison
from localpolicy.judge.gate import opponents
from localpolicy.judge.gate_ranks import gain_words, unmeasured
from localpolicy.judge.gate_value import too_little
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor, times_floor
from localpolicy.measure.significance import SIGNIFICANT, Paired
from localpolicy.measure.summary import LIKED
from localpolicy.report.contents import JS_SCALE, Claim, Contents, KeyNumber, Section
from localpolicy.report.gate import WORTH
from localpolicy.report.table import (
    corrected,
    counted,
    decimals,
    fixed,
    interval_text,
    known,
    percent,
    sentences,
    short,
)

TESTED = f"paired t-test by sequence, Holm-corrected, {SIGNIFICANT}"
BY_VALUE = "paired difference in value by sequence, its 95 % interval by Holm's steps excludes 0"
BEYOND = "the 95 % intervals of JS and of the noise floor do not meet"
LARGEST = "the larger mean"
TITLE = "Policies compared"
ASKS = "Ranks ask in part what was shown before: whether to deploy it is for the gate to say."


def comparison_claims(comparison: Comparison, section: Section, of: str | None = None) -> list[Claim]:
    """The questions to ask before an online test, each with its answer; those about one policy are about `of`."""
    best = of if of in section.names else _judged(comparison, section)
    moved = [] if _who(comparison, section)[best].estimates_logging else [_has_moved(section, best)]
    claims = [_is_better(comparison, section), *moved, *_beats_simple(comparison, section)]
    claims += [*_seen_by_js(section), *_features(comparison, section), *_alike(comparison), *_enough_weight(section)]
    return [*claims, *_metric_picks_truth(section)]


def _called(comparison: Comparison, section: Section) -> dict[str, str]:
    """What the section calls each policy."""
    return dict(zip((each.name for each in comparison.evaluations), section.names, strict=True))


def _who(comparison: Comparison, section: Section) -> dict[str, Candidate]:
    """The policies by what the section calls them."""
    return dict(zip(section.names, comparison.candidates, strict=True))


def _judged(comparison: Comparison, section: Section) -> str:
    """The best of the policies that are meant to be better than the log; without any, the best of all."""
    called, order = _called(comparison, section), comparison.order(comparison.main)
    rivals = [name for name in (*order, *comparison.rivals) if name in comparison.rivals]
    return called[(rivals or order or list(called))[0]]


def _rule(comparison: Comparison) -> str:
    return BY_VALUE if comparison.main == VALUE else TESTED


def _interval(test: Paired, count: int) -> str:
    """Where the difference lies, and for how many comparisons that is corrected."""
    return f"{test.low:+.4f} to {test.high:+.4f} (95 %{corrected(count)})"


def _is_better(comparison: Comparison, section: Section) -> Claim:
    called, main, rule = _called(comparison, section), comparison.main, _rule(comparison)
    best, second, *_ = (*(called[name] for name in comparison.order(main)), "", "")
    claim = f"{best or 'the best'} is significantly better than the second best in {section.metric}"
    lead = comparison.leads.get(main)
    if lead is None:
        why = f"it cannot be compared with {second}: the notes say why"
        if not second:
            why = "there is no second policy" if len(called) < 2 else "the log says too little of the others"
        return Claim(main, rule, None, claim, why)
    test, count = lead.test, comparison.comparisons(main)
    p = "" if math.isnan(test.holm_p) else f"; p = {test.holm_p:.2g}, corrected alike"
    because = f"{test.difference:+.4f} over {second}, {_interval(test, count)}{p}; {counted(test.n, _unit(comparison))}"
    if test.alike:
        because = f"it equals {second} at all {test.n:,} {_unit(comparison)}s"
    return _claim(main, rule, test.sign > 0, claim, because, test, _unit(comparison))


def _unit(comparison: Comparison) -> str:
    """What the figure that decides is counted in."""
    value = comparison.evaluations[0].off_policy if comparison.main == VALUE else None
    return "position" if value is None else value.unit.removesuffix("s")


def _claim(
    figure: str, rule: str, holds: bool | None, claim: str, because: str, test: Paired, unit: str = "position"
) -> Claim:
    """With the numbers of its test."""
    return Claim(figure, rule, holds, claim, because, *test.numbers, unit=f"{unit}s")


def _has_moved(section: Section, best: str) -> Claim:
    js, floor = section.figure(best, "JS"), section.floor
    claim = f"{best} differs from the log by more than seed noise"
    if js is None:
        return Claim("JS", BEYOND, None, claim, "no reference was given")
    if floor is None:
        because = f"JS {interval_text(js)}; the noise is unknown without a second mle seed"
    else:
        digits = decimals([js.mean, floor.mean])
        because = f"JS {interval_text(js, digits)}, noise {interval_text(floor, digits)}"
    n = next((row.n for row in section.measurements if (row.policy, row.figure) == (best, "JS")), None)
    return Claim("JS", BEYOND, beyond_floor(js, floor), claim, because, js.mean, js.low, js.high, n)


def _beats_simple(comparison: Comparison, section: Section) -> list[Claim]:
    """Asked of the policies that are meant to be better than the log, against the strongest of the simple ones."""
    strongest, main, called = comparison.strongest, comparison.main, _called(comparison, section)
    rivals, simple, claim = comparison.rivals, comparison.simple, "every new policy is better than the simple baselines"
    if not rivals or not simple:
        return []
    refusals = {name: comparison.values[name].refusal for name in (*rivals, *simple)} if main == VALUE else {}
    unknown = {called[name]: refusal for name, refusal in refusals.items() if refusal}
    tests = {name: test for name in rivals if (test := comparison.test(name, strongest, main)) is not None}
    if strongest is None or not tests:
        why = too_little(unknown) if unknown else unmeasured(main) if strongest is None else "the notes say why"
        return [Claim(main, _rule(comparison), None, claim, unjudged(why), asked=False, judged=False)]
    signs, least = {test.sign for test in tests.values()}, min(tests.values(), key=lambda test: test.difference)
    said = ", ".join(
        f"{called[name]} {test.difference:+.4f}, {_interval(test, comparison.comparisons(main))}"
        for name, test in tests.items()
    )
    because = f"over {called[strongest]}, whose {section.metric} is {_level(section, called[strongest])}: {said}"
    if unknown:
        because, claim = f"{because}. Not judged: {too_little(unknown)}", f"{claim}, of those that can be judged"
    holds = False if -1 in signs else True if signs == {1} else None
    return [_claim(main, _rule(comparison), holds, claim, because, least, _unit(comparison))]


def _level(section: Section, policy: str, figure: str = "") -> str:
    return short(section.mean(policy, figure or section.main))


def _seen_by_js(section: Section) -> list[Claim]:
    """A finding only where JS misleads."""
    missed = [name for name in section.names if name in section.unseen_by_js]
    if not missed or section.baseline not in section.names:
        return []
    js = ", ".join(f"{name} has JS {short(section.mean(name, 'JS'), 2)}" for name in missed)
    noise = "" if section.floor is None else f" (noise {short(section.floor.mean, 2)})"
    figure = section.ranked or section.main
    ranks = ", ".join(_level(section, name, figure) for name in missed)
    because = (
        f"{js}{noise}, but a {section.said(figure)} of {ranks} against {_level(section, section.baseline, figure)} of "
        f"{section.baseline}: JS hardly sees the order of the first few items"
    )
    return [Claim("JS", TESTED, False, "JS alone shows which policies resemble the log", because)]


def _features(comparison: Comparison, section: Section) -> list[Claim]:
    """Whether what is known of the items helps, where runs with and without it are there."""
    called, ranked, found = _called(comparison, section), section.ranked or section.main, []
    for gain in comparison.feature_gains:
        name, other, (main, likelihood) = called[gain.policy], called[gain.against], gain.tests.values()
        signs = {main.sign, likelihood.sign}
        claim, holds = f"{name} gains by its item features ({', '.join(gain.features)})", 1 in signs and -1 not in signs
        if gain.shuffled:
            claim, holds = f"shuffled among the items, these features bring nothing ({name})", 1 not in signs
        words = {section.said(ranked): main, "log-likelihood": likelihood}
        said = (f"{word} {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})" for word, test in words.items())
        because = f"against {other}, without features: {'; '.join(said)}"
        found.append(_claim(f"{ranked}, logp", TESTED, holds, claim, because, main))
    return found


def _alike(comparison: Comparison) -> list[Claim]:
    """A finding only where the policies differ in more than what is compared."""
    if not comparison.differences:
        return []
    claim = "all runs have the same data and the same rule for choosing epochs, and no seed is on both sides"
    return [Claim("settings", "all are equal", False, claim, ". ".join(comparison.differences))]


def _enough_weight(section: Section) -> list[Claim]:
    weights = {policy.name: policy.weights for policy in section.policies}
    shares = {name: each["effective_share"] for name, each in weights.items() if "effective_share" in each}
    if not shares:
        return []
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < LEAST_EFFECTIVE]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    claim = f"every policy learned from at least {LEAST_EFFECTIVE:.0%} of the log"
    least = min(shares.values())
    return [Claim("effective share", f"at least {LEAST_EFFECTIVE:.0%}", not few, claim, because, least)]


def _metric_picks_truth(section: Section) -> list[Claim]:
    true = [name for name in section.names if section.figure(name, "true J")]
    best = section.best(section.names)
    if len(true) < 2 or not math.isfinite(section.decisive(best)):
        return []
    top = max(true, key=lambda name: section.mean(name, "true J") or 0.0)
    values = {name: section.figure(name, "true J") for name in (top, best)}
    digits = decimals([value.mean for value in values.values() if value])
    because = "; ".join(f"{name}: J {interval_text(values[name], digits)}" for name in dict.fromkeys((top, best)))
    claim = f"{section.metric} on the log picks the policy that earns most"
    numbers = () if (found := values[best]) is None else (found.mean, found.low, found.high)
    return [Claim("true J", LARGEST, top == best, claim, because, *numbers)]


# ---------------------------------------------------------------------- the answer


def comparison_headline(comparison: Comparison, section: Section) -> Contents:
    """In words for the person who decides, not for the one who trains: what was found. The gate says what to deploy."""
    called, base, best = _called(comparison, section), section.baseline, _judged(comparison, section)
    if comparison.question.kind == "nothing":
        return _nothing_to_decide(comparison, section)
    if base not in section.names or not comparison.rivals:
        return _nothing_to_compare(comparison, section)
    candidates = _who(comparison, section)
    name, gain = candidates[best].name, section.gains.get(best, {}).get(section.main)
    strongest = comparison.strongest
    lost = None if strongest is None else comparison.test(name, strongest, comparison.main)
    if (few := comparison.too_few) is not None:
        sentence = f"Whether {best} is better than {_base(comparison, section, ',')} cannot be said: {few}."
    elif gain is not None and gain.alike:
        sentence = f"{best} and {base} have the same {section.metric} at all {gain.n:,} {_unit(comparison)}s."
    elif strongest is not None and lost is not None and lost.sign < 0:
        sentence = _simple_wins(comparison, section, best, called[strongest])
    elif gain is None:
        sentence = _unknown(comparison, section, best)
    elif comparison.question.kind == "rewards":
        sentence = f"{_by_ranks(section, best, gain)} {ASKS}"
    else:
        sentence = _found(comparison, section, best, gain)
    numbers = [_gain_number(comparison, section, best, gain), _js_number(section, best), _last_number(section, best)]
    step = _next_step(comparison, section, best, _gate_command(comparison, candidates[best], candidates[base]))
    return Contents(TITLE, sentence, numbers=numbers, next_step=step)


def _found(comparison: Comparison, section: Section, best: str, gain: Paired) -> str:
    """Whether the best new policy is better than what imitates the log."""
    over = f"{_base(comparison, section)}: {_change(section, best, gain)}"
    several = corrected(comparison.comparisons(comparison.main))
    if gain.sign > 0:
        return f"{best} is significantly better than {over}. {_risk(section, best)}"
    if gain.sign < 0:
        return f"{best}{_of_several(comparison)} is significantly worse than {over}."
    return f"{best}{_of_several(comparison)} is not significantly better than {over}{several}."


def _base(comparison: Comparison, section: Section, end: str = "") -> str:
    """What gains are taken over, and that it imitates the log where it does."""
    imitates = _who(comparison, section)[section.baseline].estimates_logging
    return f"{section.baseline}, which imitates the log{end}" if imitates else section.baseline


def _of_several(comparison: Comparison) -> str:
    return ", the best of the new policies," if len(comparison.rivals) > 1 else ""


def _by_ranks(section: Section, best: str, gain: Paired) -> str:
    """What ranks say, where they do not decide."""
    said = gain_words(section.main)["yes" if gain.sign > 0 else "lower" if gain.sign < 0 else "cannot tell"]
    sure = ", significantly" if gain.sign else ""
    over = f"than {section.baseline} ({_change(section, best, gain)}{sure})"
    return f"{best} {said.removeprefix('it ')} {over}."


def _simple_wins(comparison: Comparison, section: Section, best: str, strongest: str) -> str:
    levels = f"{section.metric} {_level(section, strongest)} against {_level(section, best)}"
    several = "the best of the new policies" if len(comparison.rivals) > 1 else "the new policy"
    if comparison.question.kind == "rewards":
        said = gain_words(section.main)["yes"].removeprefix("it ")
        return f"{strongest}, a simple baseline, {said} than {best}, {several} ({levels}, significantly). {ASKS}"
    return f"{strongest}, a simple baseline, is significantly better than {best}, {several}: {levels}."


def _unknown(comparison: Comparison, section: Section, best: str) -> str:
    """Why there is no gain."""
    named = {called: name for name, called in _called(comparison, section).items()}
    if comparison.main == VALUE:
        for policy in (section.baseline, best):
            if refusal := comparison.values[named[policy]].refusal:
                return f"What {policy} would earn cannot be estimated from this log, so nothing is decided: {refusal}."
    return f"Whether {best} is better than {_base(comparison, section, ',')} cannot be said: the findings say why."


def _nothing_to_decide(comparison: Comparison, section: Section) -> Contents:
    called, main = _called(comparison, section), comparison.main
    ranked = ", ".join(f"{called[name]} {comparison.level(name, main):.4f}" for name in comparison.order(main))
    sentence = (
        "Nothing to decide: all events are worth the same, so no policy can earn more than another. Policies ranked by "
        f"how high they place what people took ({section.metric}): {ranked}."
    )
    return Contents(
        TITLE, sentence, numbers=_distance(comparison, section, _judged(comparison, section)), next_step=WORTH
    )


def _distance(comparison: Comparison, section: Section, best: str) -> list[KeyNumber]:
    """How far from the log a policy is that is no estimate of it."""
    return [] if _who(comparison, section)[best].estimates_logging else [_js_number(section, best)]


def _nothing_to_compare(comparison: Comparison, section: Section) -> Contents:
    best = section.best(section.names)
    sentence = f"{best} is highest, with a {section.metric} of {_level(section, best)}."
    if not math.isfinite(section.decisive(best)):
        sentence = f"No policy has the {section.metric}: the log says too little of them."
    step = "Add a run to compare: lpi train trains one, and an mle run stands for the policy that wrote the log."
    if section.baseline:
        step = "Train a policy that should be better than the log (lpi_rl, lpi_cb), and compare it with these."
    return Contents(TITLE, sentence, numbers=_distance(comparison, section, best), next_step=step)


def _change(section: Section, best: str, gain: Paired) -> str:
    new, old = section.decisive(best), section.decisive(section.baseline)
    if abs(new - old - gain.difference) > 1e-9:  # the gain is another pair of weights', which one figure kept
        return f"{section.metric} {gain.difference:+.4f} with epochs chosen alike"
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
    """The gate's command, always: it asks what the log can answer, of this one pair."""
    weights = next(policy.weights for policy in section.policies if policy.name == best)
    several = comparison.comparisons(comparison.main) > 1 and section.main in section.gains.get(best, {})
    return sentences({
        f"Ask the gate whether to deploy {best}{command and f' ({command})'}.": True,
        "It tests this one pair, so its interval is narrower than one that is corrected for several.": several,
        "Train a second mle seed first, and give it with --against: without it the noise is unknown.":
            section.floor is None,
        f"Its weights rest on less than {LEAST_EFFECTIVE:.0%} of the log: try a larger β.":
            weights.get("effective_share", 1.0) < LEAST_EFFECTIVE,
    })  # fmt: skip


def _gate_command(comparison: Comparison, new: Candidate, base: Candidate) -> str:
    """What can be pasted; empty where one of the two lies in no folder."""
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
        why = "the value of one of the two is not known" if section.main == VALUE else "the findings say why"
        return KeyNumber("?", name, f"The two cannot be compared: {why}.")
    what = "How high the item that people took stands in the list; 1 is always first"
    if section.main == LIKED:
        what = "How well people liked, of what they rated, the item that is ranked first"
    elif section.main == VALUE:
        what = "What it would earn beyond the other, estimated from the log's propensities"
    verdict = "significant" if gain.sign else "not significant"
    found = f"The difference is {_interval(gain, comparison.comparisons(section.main))}: {verdict}."
    if gain.alike:
        found = f"The two are equal at all {gain.n:,} {_unit(comparison)}s."
    return KeyNumber(f"{gain.difference:+.4f}", name, f"{what}. {found}")


def _js_number(section: Section, best: str) -> KeyNumber:
    name, js = f"distance of {best} from the log (JS)", section.mean(best, "JS")
    if js is None:
        return KeyNumber("?", name, "It is not known: compare it with an mle run.")
    noise = "Only a second mle seed would tell how much of it is noise."
    if section.floor is not None:
        noise = f"Two mle runs of different seeds differ by {short(section.floor.mean, 2)}: that much is noise."
    return KeyNumber(short(js, 2), name, f"{JS_SCALE} {noise}")


def _last_number(section: Section, best: str) -> KeyNumber:
    """The true reward, if a simulated world knows it; else how much of the catalogue it shows."""
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
