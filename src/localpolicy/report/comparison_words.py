"""A comparison in words: is a new policy better, by how much, how risky is it, what to do now."""

from __future__ import annotations

import shlex

from localpolicy.judge.comparison import Comparison
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor, times_floor
from localpolicy.measure.significance import Paired
from localpolicy.measure.summary import LIKED
from localpolicy.model.baselines import BASELINES
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.table import decimals, fixed, interval_text, known, percent, short

TESTED = "paired t-test by sequence, Holm-corrected, p < .05"
BEYOND = "the 95 % intervals of JS and of the noise floor do not meet"
LARGEST = "the larger mean"
TITLE = "Policies compared"


def comparison_claims(comparison: Comparison, section: Section) -> list[Claim]:
    """The questions to ask before an online test, each with its answer."""
    best = section.best(section.policies)
    claims = [_is_better(comparison, section, best), _has_moved(section, best), *_beats_simple(section)]
    claims += [*_seen_by_js(section), *_features(comparison, section), *_alike(comparison)]
    claims += [_enough_weight(section)] if any(policy.weights for policy in section.policies) else []
    true = [policy for policy in section.policies if section.figure(policy.name, "true J")]
    return [*claims, _metric_picks_truth(section, best, true)] if len(true) > 1 else claims


def _is_better(comparison: Comparison, section: Section, best: PolicyInfo) -> Claim:
    lead = comparison.leads.get(comparison.main)
    claim = f"{best.name} is better than the second best in {section.said(section.main)}, beyond chance"
    if lead is None:
        return Claim(section.main, TESTED, None, claim, "there is no second policy")
    test, family = lead.test, f"{len(comparison.columns)} columns"
    if lead.second == comparison.baseline and comparison.main in comparison.gains.get(lead.best, {}):
        # The gain that the page begins with: one difference has one interval.
        test, family = comparison.gains[lead.best][comparison.main], "all gains shown"
    because = (
        f"{test.difference:+.4f} over {lead.second}, 95 % interval {test.low:+.4f} to {test.high:+.4f}; "
        f"p = {test.holm_p:.2g}, both corrected for {family}; {test.n:,} positions"
    )
    if test.alike:
        because = f"it equals {lead.second} at all {test.n:,} positions"
    return Claim(section.main, TESTED, test.sign > 0, claim, because)


def _has_moved(section: Section, best: PolicyInfo) -> Claim:
    js, floor = section.figure(best.name, "JS"), section.floor
    if js is None:
        because = "no reference was given"
    elif floor is None:
        because = f"JS {interval_text(js)}; the noise is unknown without a second mle seed"
    else:
        digits = decimals([js.mean, floor.mean])
        because = f"JS {interval_text(js, digits)}, noise {interval_text(floor, digits)}"
    claim = f"{best.name} differs from the log by more than seed noise"
    return Claim("JS", BEYOND, beyond_floor(js, floor), claim, because)


def _beats_simple(section: Section) -> list[Claim]:
    simple = [policy for policy in section.policies if policy.objective in BASELINES]
    trained = [policy for policy in section.policies if policy.objective not in BASELINES]
    if not simple or not trained:
        return []
    strongest = section.best(simple)
    level = section.decisive(strongest)
    below = [policy.name for policy in trained if section.decisive(policy) <= level]
    because = f"{strongest.name} has {section.said(section.main)} {short(level)}"
    because += f"; below or level with it: {', '.join(below)}" if below else "; every trained policy is above it"
    claim = "every trained policy ranks above the simple baselines"
    return [Claim(section.main, LARGEST, not below, claim, because)]


def _seen_by_js(section: Section) -> list[Claim]:
    """A finding only where JS misleads."""
    missed = [policy for policy in section.policies if policy.name in section.unseen_by_js]
    base = _baseline(section)
    if not missed or base is None:
        return []
    js = ", ".join(f"{policy.name} has JS {short(section.mean(policy.name, 'JS'), 2)}" for policy in missed)
    noise = "" if section.floor is None else f" (noise {short(section.floor.mean, 2)})"
    ranks = ", ".join(short(section.decisive(policy)) for policy in missed)
    because = (
        f"{js}{noise}, but a {section.said(section.main)} of {ranks} against {short(section.decisive(base))} of "
        f"{base.name}: JS hardly sees the order of the first few items"
    )
    return [Claim("JS", TESTED, False, "JS alone shows which policies resemble the log", because)]


def _features(comparison: Comparison, section: Section) -> list[Claim]:
    """Whether what is known of the items helps, where runs with and without it are there."""
    called = {each.name: policy.name for each, policy in zip(comparison.evaluations, section.policies, strict=True)}
    found = []
    for gain in comparison.feature_gains:
        name, other, (main, likelihood) = called[gain.policy], called[gain.against], gain.tests.values()
        signs = {main.sign, likelihood.sign}
        claim, holds = f"{name} gains by its item features ({', '.join(gain.features)})", 1 in signs and -1 not in signs
        if gain.shuffled:
            claim, holds = f"shuffled among the items, these features bring nothing ({name})", 1 not in signs
        words = {section.said(section.main): main, "log-likelihood": likelihood}
        said = (f"{word} {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})" for word, test in words.items())
        because = f"against {other}, without features: {'; '.join(said)}"
        found.append(Claim(f"{section.main}, logp", TESTED, holds, claim, because))
    return found


def _alike(comparison: Comparison) -> list[Claim]:
    """A finding only where the policies differ in more than what is compared."""
    if not comparison.notes:
        return []
    claim = "all runs have the same data and the same rule for choosing epochs, and no seed is on both sides"
    return [Claim("settings", "all are equal", False, claim, ". ".join(comparison.notes))]


def _enough_weight(section: Section) -> Claim:
    weights = {policy.name: policy.weights for policy in section.policies}
    shares = {name: each["effective_share"] for name, each in weights.items() if "effective_share" in each}
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < LEAST_EFFECTIVE]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    claim = f"every policy learned from at least {LEAST_EFFECTIVE:.0%} of the log"
    return Claim("effective share", f"at least {LEAST_EFFECTIVE:.0%}", not few, claim, because)


def _metric_picks_truth(section: Section, best: PolicyInfo, true: list[PolicyInfo]) -> Claim:
    top = max(true, key=lambda policy: section.mean(policy.name, "true J") or 0.0)
    claim = f"{section.said(section.main)} on the log picks the policy that earns most"
    values = {name: section.figure(name, "true J") for name in (top.name, best.name)}
    digits = decimals([value.mean for value in values.values() if value])
    because = "; ".join(f"{each.name}: J {interval_text(values[each.name], digits)}" for each in (top, best))
    return Claim("true J", LARGEST, top.name == best.name, claim, because)


# ---------------------------------------------------------------------- the answer


def comparison_headline(comparison: Comparison, section: Section) -> Contents:
    """In words for the person who decides, not for the one who trains."""
    base, policies = _baseline(section), section.policies
    simple = [policy for policy in policies if policy.objective in BASELINES]
    imitators = [candidate.estimates_logging for candidate in comparison.candidates]
    rivals = [
        policy
        for policy, imitates in zip(policies, imitators, strict=True)
        if not imitates and policy.objective not in BASELINES
    ]
    if base is None or not rivals:
        return _nothing_to_compare(section)
    best, strongest = section.best(rivals), section.best(simple) if simple else None
    gain = section.gains.get(best.name, {}).get(section.main)
    if strongest is not None and section.decisive(strongest) > section.decisive(best):
        levels = [short(section.decisive(each)) for each in (best, strongest)]
        sentence = (
            f"No trained policy ranks above {strongest.name}, a simple baseline: {section.said(section.main)} "
            f"{levels[0]} of {best.name} against {levels[1]}."
        )
        step = (
            f"Deploy none of the trained policies yet. Use {strongest.name}, or improve the training (more epochs, a "
            "wider or tied model), until a trained policy is above it."
        )
    elif gain is None:
        sentence = f"Whether {best.name} is better than {base.name}, which imitates the log, cannot be said."
        step = "The findings say why, and how to make the two comparable."
    elif gain.sign == 0:
        sentence = f"No new policy is better than {base.name}, which imitates the log, beyond chance."
        step = "Keep what is deployed. Train on more data, or with another objective or β, and compare again."
    elif gain.sign < 0:
        sentence = f"Every new policy is worse than {base.name}, which imitates the log: do not deploy one."
        step = "Check rewards and training (the curves below), or choose a larger β, which stays closer to the log."
    else:
        change = _change(section, best, base, gain)
        sentence = f"{best.name} is better than {base.name}, which imitates the log: {change}. {_risk(section, best)}"
        step = _after_gain(comparison, section, best, base)
    numbers = [_gain_number(section, best, base, gain), _js_number(section, best), _last_number(section, best, base)]
    return Contents(TITLE, sentence, numbers=numbers, next_step=step)


def _nothing_to_compare(section: Section) -> Contents:
    best = section.best(section.policies)
    level = short(section.decisive(best))
    sentence = f"{best.name} ranks highest, with a {section.said(section.main)} of {level}."
    step = "Add a run to compare: lpi train trains one, and an mle run stands for the policy that wrote the log."
    if section.baseline:
        step = "Train a policy that should be better than the log (lpi_rl, lpi_cb), and compare it with these."
    return Contents(TITLE, sentence, numbers=[_js_number(section, best)], next_step=step)


def _change(section: Section, best: PolicyInfo, base: PolicyInfo, gain: Paired) -> str:
    new, old, metric = section.decisive(best), section.decisive(base), section.said(section.main)
    if abs(new - old - gain.difference) > 1e-9:  # the gain is another pair of weights', which one figure kept
        return f"{metric} {gain.difference:+.4f} with epochs chosen alike, more than chance explains"
    digits = decimals([new])
    share = f" ({(new - old) / old:+.0%})" if old > 0 and known(old) else ""
    return f"{metric} {fixed(old, digits)} → {fixed(new, digits)}{share}, more than chance explains"


def _risk(section: Section, best: PolicyInfo) -> str:
    js = section.figure(best.name, "JS")
    further = beyond_floor(js, section.floor)
    if js is None or further is None:
        return "How far it moves from the log is not known yet."
    if not further:
        return "It stays as close to the log as a retrained copy would."
    times = times_floor(js, section.floor)
    if times is None:
        return "It moves away from the log."
    return f"It moves {short(times, 2)} times as far from the log as a retrained copy would."


def _after_gain(comparison: Comparison, section: Section, best: PolicyInfo, base: PolicyInfo) -> str:
    command = _gate_command(comparison, section, best, base)
    step = f"Ask the gate{command and f' ({command})'}, then test it online on a small share of users."
    if section.floor is None:
        step += " Train a second mle seed first, and give it with --against: without it the noise is unknown."
    if best.weights.get("effective_share", 1.0) < LEAST_EFFECTIVE:
        step += f" Its weights rest on less than {LEAST_EFFECTIVE:.0%} of the log: try a larger β."
    return step


def _gate_command(comparison: Comparison, section: Section, best: PolicyInfo, base: PolicyInfo) -> str:
    """What can be pasted; empty where one of the two lies in no folder."""
    policies = (policy.name for policy in section.policies)
    candidates = dict(zip(policies, comparison.candidates, strict=True))
    new, against = candidates[best.name], [candidates[base.name], *comparison.references]
    folders = list(dict.fromkeys(str(each.run.folder) for each in against if each.run is not None))
    if new.run is None or candidates[base.name].run is None:
        return ""
    words = ["lpi", "gate", str(new.run.folder), *(word for folder in folders for word in ("--against", folder))]
    words += [] if new.beta is None else ["--beta", f"{new.beta:g}"]
    if new.run.manifest["data"]["digest"] not in comparison.data.digests:
        words += ["--data", str(comparison.data.path)]
    return shlex.join(words)


def _gain_number(section: Section, best: PolicyInfo, base: PolicyInfo, gain: Paired | None) -> KeyNumber:
    name = f"{section.said(section.main)}: {best.name} minus {base.name}"
    if gain is None:
        return KeyNumber("?", name, "No gain is shown: the two cannot be compared. The findings say why.")
    verdict = "beyond chance" if gain.sign else "may be chance"
    what = "How high the item that people took stands in the list; 1 is always first"
    if section.main == LIKED:
        what = "How well people liked, of what they rated, the item that is ranked first"
    meaning = (
        f"{what}. The two are equal at all {gain.n:,} positions."
        if gain.alike
        else f"{what}. The difference is {gain.low:+.4f} to {gain.high:+.4f} with 95 % confidence: {verdict}."
    )
    return KeyNumber(f"{gain.difference:+.4f}", name, meaning)


def _js_number(section: Section, best: PolicyInfo) -> KeyNumber:
    name = f"distance of {best.name} from the log (JS)"
    js = section.mean(best.name, "JS")
    if js is None:
        return KeyNumber("?", name, "It is not known: compare it with an mle run.")
    noise = (
        "Only a second mle seed would tell how much of it is noise."
        if section.floor is None
        else f"Two mle runs of different seeds differ by {short(section.floor.mean, 2)}: that much is noise."
    )
    return KeyNumber(short(js, 2), name, f"0: it shows the same as before; 0.69: nothing in common. {noise}")


def _last_number(section: Section, best: PolicyInfo, base: PolicyInfo) -> KeyNumber:
    """The true reward, if a simulated world knows it; else how much of the catalogue it shows."""
    gains = {each.name: gain for each in section.policies if (gain := section.figure(each.name, "true gain"))}
    if best.name in gains and section.logging_value is not None and section.logging_value.mean:
        logged = section.logging_value.mean
        top = max(gains, key=lambda name: gains[name].mean)
        most = "the most of all." if top == best.name else f"{top} earns most: {gains[top].mean / logged:+.0%}."
        caution = "" if gains[best.name].sign else " (its interval holds 0)"
        name = f"true reward of {best.name} over the log's policy"
        meaning = f"The simulated world knows it{caution}; {most}"
        return KeyNumber(f"{gains[best.name].mean / logged:+.0%}", name, meaning)
    coverage = f"coverage@{section.lists}"
    meaning = (
        f"{base.name} reaches {percent(section.mean(base.name, coverage))}. Far less means that everybody is shown the "
        "same few items."
    )
    name = f"of the catalogue is in some list of {section.lists} of {best.name}"
    return KeyNumber(percent(section.mean(best.name, coverage)), name, meaning)


def _baseline(section: Section) -> PolicyInfo | None:
    return next((policy for policy in section.policies if policy.name == section.baseline), None)
