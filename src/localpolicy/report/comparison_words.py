"""A comparison in words: is a new policy better, by how much, how risky is it, what to do now."""

from __future__ import annotations

import shlex

from localpolicy.judge.comparison import Comparison
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor, times_floor
from localpolicy.measure.significance import SIGNIFICANT, Paired
from localpolicy.measure.summary import LIKED
from localpolicy.model.baselines import BASELINES
from localpolicy.report.contents import JS_SCALE, Claim, Contents, KeyNumber, Section
from localpolicy.report.table import decimals, fixed, interval_text, known, percent, sentences, short

TESTED = f"paired t-test by sequence, Holm-corrected, {SIGNIFICANT}"
BEYOND = "the 95 % intervals of JS and of the noise floor do not meet"
LARGEST = "the larger mean"
TITLE = "Policies compared"


def comparison_claims(comparison: Comparison, section: Section) -> list[Claim]:
    """The questions to ask before an online test, each with its answer."""
    best = section.best(section.names)
    claims = [_is_better(comparison, section, best), _has_moved(section, best), *_beats_simple(section)]
    claims += [*_seen_by_js(section), *_features(comparison, section), *_alike(comparison), *_enough_weight(section)]
    return [*claims, *_metric_picks_truth(section, best)]


def _is_better(comparison: Comparison, section: Section, best: str) -> Claim:
    lead = comparison.leads.get(comparison.main)
    claim = f"{best} is better than the second best in {section.metric}, beyond chance"
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


def _has_moved(section: Section, best: str) -> Claim:
    js, floor = section.figure(best, "JS"), section.floor
    if js is None:
        because = "no reference was given"
    elif floor is None:
        because = f"JS {interval_text(js)}; the noise is unknown without a second mle seed"
    else:
        digits = decimals([js.mean, floor.mean])
        because = f"JS {interval_text(js, digits)}, noise {interval_text(floor, digits)}"
    return Claim("JS", BEYOND, beyond_floor(js, floor), f"{best} differs from the log by more than seed noise", because)


def _kinds(section: Section) -> tuple[list[str], list[str]]:
    """The simple baselines, and the policies that were trained."""
    simple = [policy.name for policy in section.policies if policy.objective in BASELINES]
    return simple, [name for name in section.names if name not in simple]


def _beats_simple(section: Section) -> list[Claim]:
    simple, trained = _kinds(section)
    if not simple or not trained:
        return []
    strongest = section.best(simple)
    below = [name for name in trained if section.decisive(name) <= section.decisive(strongest)]
    because = f"{strongest} has {section.metric} {_level(section, strongest)}"
    because += f"; below or level with it: {', '.join(below)}" if below else "; every trained policy is above it"
    claim = "every trained policy ranks above the simple baselines"
    return [Claim(section.main, LARGEST, not below, claim, because)]


def _level(section: Section, policy: str) -> str:
    return short(section.decisive(policy))


def _seen_by_js(section: Section) -> list[Claim]:
    """A finding only where JS misleads."""
    missed = [name for name in section.names if name in section.unseen_by_js]
    if not missed or section.baseline not in section.names:
        return []
    js = ", ".join(f"{name} has JS {short(section.mean(name, 'JS'), 2)}" for name in missed)
    noise = "" if section.floor is None else f" (noise {short(section.floor.mean, 2)})"
    ranks = ", ".join(_level(section, name) for name in missed)
    because = (
        f"{js}{noise}, but a {section.metric} of {ranks} against {_level(section, section.baseline)} of "
        f"{section.baseline}: JS hardly sees the order of the first few items"
    )
    return [Claim("JS", TESTED, False, "JS alone shows which policies resemble the log", because)]


def _features(comparison: Comparison, section: Section) -> list[Claim]:
    """Whether what is known of the items helps, where runs with and without it are there."""
    called = dict(zip((each.name for each in comparison.evaluations), section.names, strict=True))
    found = []
    for gain in comparison.feature_gains:
        name, other, (main, likelihood) = called[gain.policy], called[gain.against], gain.tests.values()
        signs = {main.sign, likelihood.sign}
        claim, holds = f"{name} gains by its item features ({', '.join(gain.features)})", 1 in signs and -1 not in signs
        if gain.shuffled:
            claim, holds = f"shuffled among the items, these features bring nothing ({name})", 1 not in signs
        words = {section.metric: main, "log-likelihood": likelihood}
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


def _enough_weight(section: Section) -> list[Claim]:
    weights = {policy.name: policy.weights for policy in section.policies}
    shares = {name: each["effective_share"] for name, each in weights.items() if "effective_share" in each}
    if not shares:
        return []
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < LEAST_EFFECTIVE]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    claim = f"every policy learned from at least {LEAST_EFFECTIVE:.0%} of the log"
    return [Claim("effective share", f"at least {LEAST_EFFECTIVE:.0%}", not few, claim, because)]


def _metric_picks_truth(section: Section, best: str) -> list[Claim]:
    true = [name for name in section.names if section.figure(name, "true J")]
    if len(true) < 2:
        return []
    top = max(true, key=lambda name: section.mean(name, "true J") or 0.0)
    values = {name: section.figure(name, "true J") for name in (top, best)}
    digits = decimals([value.mean for value in values.values() if value])
    because = "; ".join(f"{name}: J {interval_text(values[name], digits)}" for name in (top, best))
    claim = f"{section.metric} on the log picks the policy that earns most"
    return [Claim("true J", LARGEST, top == best, claim, because)]


# ---------------------------------------------------------------------- the answer


def comparison_headline(comparison: Comparison, section: Section) -> Contents:
    """In words for the person who decides, not for the one who trains."""
    base, (simple, trained) = section.baseline, _kinds(section)
    candidates = dict(zip(section.names, comparison.candidates, strict=True))
    rivals = [name for name in trained if not candidates[name].estimates_logging]
    if base not in section.names or not rivals:
        return _nothing_to_compare(section)
    best, strongest = section.best(rivals), section.best(simple) if simple else None
    gain = section.gains.get(best, {}).get(section.main)
    if strongest is not None and section.decisive(strongest) > section.decisive(best):
        sentence = (
            f"No trained policy ranks above {strongest}, a simple baseline: {section.metric} {_level(section, best)} "
            f"of {best} against {_level(section, strongest)}."
        )
        step = (
            f"Deploy none of the trained policies yet. Use {strongest}, or improve the training (more epochs, a wider "
            "or tied model), until a trained policy is above it."
        )
    elif gain is None:
        sentence = f"Whether {best} is better than {base}, which imitates the log, cannot be said."
        step = "The findings say why, and how to make the two comparable."
    elif gain.sign == 0:
        sentence = f"No new policy is better than {base}, which imitates the log, beyond chance."
        step = "Keep what is deployed. Train on more data, or with another objective or β, and compare again."
    elif gain.sign < 0:
        sentence = f"Every new policy is worse than {base}, which imitates the log: do not deploy one."
        step = "Check rewards and training (the curves below), or choose a larger β, which stays closer to the log."
    else:
        change = _change(section, best, gain)
        sentence = f"{best} is better than {base}, which imitates the log: {change}. {_risk(section, best)}"
        step = _after_gain(section, best, _gate_command(comparison, candidates[best], candidates[base]))
    numbers = [_gain_number(section, best, gain), _js_number(section, best), _last_number(section, best)]
    return Contents(TITLE, sentence, numbers=numbers, next_step=step)


def _nothing_to_compare(section: Section) -> Contents:
    best = section.best(section.names)
    sentence = f"{best} ranks highest, with a {section.metric} of {_level(section, best)}."
    step = "Add a run to compare: lpi train trains one, and an mle run stands for the policy that wrote the log."
    if section.baseline:
        step = "Train a policy that should be better than the log (lpi_rl, lpi_cb), and compare it with these."
    return Contents(TITLE, sentence, numbers=[_js_number(section, best)], next_step=step)


def _change(section: Section, best: str, gain: Paired) -> str:
    new, old = section.decisive(best), section.decisive(section.baseline)
    if abs(new - old - gain.difference) > 1e-9:  # the gain is another pair of weights', which one figure kept
        return f"{section.metric} {gain.difference:+.4f} with epochs chosen alike, more than chance explains"
    digits = decimals([new])
    share = f" ({(new - old) / old:+.0%})" if old > 0 and known(old) else ""
    return f"{section.metric} {fixed(old, digits)} → {fixed(new, digits)}{share}, more than chance explains"


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


def _after_gain(section: Section, best: str, command: str) -> str:
    weights = next(policy.weights for policy in section.policies if policy.name == best)
    return sentences({
        f"Ask the gate{command and f' ({command})'}, then test it online on a small share of users.": True,
        "Train a second mle seed first, and give it with --against: without it the noise is unknown.":
            section.floor is None,
        f"Its weights rest on less than {LEAST_EFFECTIVE:.0%} of the log: try a larger β.":
            weights.get("effective_share", 1.0) < LEAST_EFFECTIVE,
    })  # fmt: skip


def _gate_command(comparison: Comparison, new: Candidate, base: Candidate) -> str:
    """What can be pasted; empty where one of the two lies in no folder."""
    if new.run is None or base.run is None:
        return ""
    against = (str(each.run.folder) for each in (base, *comparison.references) if each.run is not None)
    words = ["lpi", "gate", str(new.run.folder)]
    words += [word for folder in dict.fromkeys(against) for word in ("--against", folder)]
    words += [] if new.beta is None else ["--beta", f"{new.beta:g}"]
    if new.run.manifest["data"]["digest"] not in comparison.data.digests:
        words += ["--data", str(comparison.data.path)]
    return shlex.join(words)


def _gain_number(section: Section, best: str, gain: Paired | None) -> KeyNumber:
    name = f"{section.metric}: {best} minus {section.baseline}"
    if gain is None:
        return KeyNumber("?", name, "No gain is shown: the two cannot be compared. The findings say why.")
    what = "How high the item that people took stands in the list; 1 is always first"
    if section.main == LIKED:
        what = "How well people liked, of what they rated, the item that is ranked first"
    verdict = "beyond chance" if gain.sign else "may be chance"
    found = f"The difference is {gain.low:+.4f} to {gain.high:+.4f} with 95 % confidence: {verdict}."
    if gain.alike:
        found = f"The two are equal at all {gain.n:,} positions."
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
