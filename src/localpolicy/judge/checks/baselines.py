"""Does any simple baseline do better: by ranks, by value, or by the reward per answer?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import too_few, unmeasured, would_tell
from localpolicy.judge.checks.value import both_values, too_little, value_tests, valued
from localpolicy.judge.claims import LEFT_OUT, UNJUDGED, Claim, check, unjudged
from localpolicy.judge.rules import GateRules
from localpolicy.measure.answers import WORTH, Answers, together
from localpolicy.measure.estimators import skewed
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import question_of
from localpolicy.measure.returns import ReturnGain
from localpolicy.measure.significance import Paired, paired_family


def best_baseline(
    figure: str, mine: float, theirs: Mapping[str, float], tests: Mapping[str, Paired], *, n: str = ""
) -> tuple[str, str]:
    """Name of the strongest baseline (least difference), and a text with every baseline's metric."""
    best = min(tests, key=lambda name: tests[name].difference)
    means, test = ", ".join(f"{name} {mean:.4f}" for name, mean in theirs.items()), tests[best]
    gap = f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}{n})"
    return best, f"{figure} {mine:.4f} against {means}; against {best} {gap}"


def baselines_check(new: Evaluation, baselines: Sequence[Evaluation], name: str, rules: GateRules) -> Claim:
    """Claim that the policy is significantly better than every simple baseline by rank metric `name` (Holm)."""
    if not baselines:
        return LEFT_OUT
    mine, clusters = new.values(name)
    if not len(mine):
        plain = f"no held-out row can be judged by {name}"
        return check("baselines", "cannot tell", unmeasured(name), n=0, plain=plain)
    theirs = {baseline.name: baseline.values(name)[0] for baseline in baselines}
    tests = paired_family({each: (mine, theirs[each], clusters) for each in theirs}, confidence=rules.confidence)
    means = {each: float(values.mean()) for each, values in theirs.items()}
    best, reason = best_baseline(name, float(mine.mean()), means, tests, n=f", n {len(mine):,}")
    test, unsure = tests[best], f"it is not significantly better than the simple baseline {best}"
    if (few := too_few(clusters, rules)) is not None:
        return check("baselines", "cannot tell", reason + few[1], *test.numbers, few[0], plain=unsure)
    if test.sign < 0:
        plain = f"the simple baseline {best} ranks significantly higher"
        because = f"{reason}: {best} ranks significantly higher"
        return check("baselines", "no", because, *test.numbers, instead=best, plain=plain)
    if all(each.sign > 0 for each in tests.values()):
        return check("baselines", "yes", reason, *test.numbers, plain="it beats every simple baseline")
    needed, told = would_tell(test, max(abs(test.difference), rules.smallest(float(mine.mean()))), rules)
    reason = f"{reason}: not significantly better than {best}{told}"
    return check("baselines", "cannot tell", reason, *test.numbers, needed, plain=unsure)


def baselines_by_value(
    new: Evaluation, deployed: Evaluation | None, baselines: list[Evaluation], rules: GateRules
) -> Claim:
    """Claim that no simple baseline has a significantly higher estimated value, as the distribution it is served as.

    One whose value is refused neither blocks nor passes, and is named. One that does not differ
    significantly from the new policy does not block either: the question is whether to replace what is deployed.
    """
    if not baselines:
        return LEFT_OUT
    mine, base = (each.found for each in both_values(new, deployed, rules))
    values = {each.name: valued(each.off_policy, rules) for each in (new, *baselines)}
    known = {each.name: found for each in baselines if (found := values[each.name].found) is not None}
    refused = {name: each.refusal for name, each in values.items() if each.found is None}
    if mine is None or not known:
        unit = "decisions" if new.off_policy is None else new.off_policy.unit
        return check("baselines", "not judged", unjudged(too_little(refused)), plain=UNJUDGED, unit=unit)
    tests = value_tests({name: mine - theirs for name, theirs in known.items()}, rules.confidence)
    means = {name: found.mean for name, found in known.items()}
    best, reason = best_baseline("estimated J", mine.mean, means, tests)
    beside = f". Not judged: {too_little(refused)}" if refused else ""
    assert new.off_policy is not None
    numbers, unit = tests[best].numbers, new.off_policy.unit
    better = {name: test.difference for name, test in tests.items() if test.sign < 0}
    if better:
        name = min(better, key=lambda each: better[each])
        gains = base is not None and skewed(known[name] - base, confidence=rules.confidence).low > rules.min_gain
        because, plain = f"{reason}: {name} earns more{beside}", f"the simple baseline {name} earns more"
        return check("baselines", "no", because, *numbers, instead=name if gains else None, plain=plain, unit=unit)
    open_ones = [name for name, test in tests.items() if test.low <= 0]
    beaten = "it earns more than every simple baseline that can be judged"
    told = f": its reward is not significantly different from that of {', '.join(open_ones)}"
    plain = "no simple baseline earns significantly more" if open_ones else beaten
    because = reason + (told if open_ones else f": {beaten}") + beside
    return check("baselines", "yes", because, *numbers, plain=plain, unit=unit)


def baselines_by_answers(new: Answers, baselines: Sequence[Answers], rules: GateRules) -> Claim:
    """Claim that no simple baseline has a higher reward per answer, alone and with the number of answers.

    One that does keeps the new policy from being deployed, and is not put in its place: it is far from what was shown,
    and so are its weights. One whose answers the log says too little of neither blocks nor passes, and is named.
    """
    if not baselines:
        return LEFT_OUT
    distinct: dict[bytes, Answers] = {}
    for each in baselines:  # among items not met before the last item says what popularity says
        distinct.setdefault(each.choices.logp.tobytes(), each)
    known = {each.choices.name: each for each in distinct.values() if not each.refusal}
    refused = "; ".join(dict.fromkeys(each.refusal for each in (new, *distinct.values()) if each.refusal))
    if new.refusal or not known:
        return check("baselines", "not judged", unjudged(refused), plain=UNJUDGED, unit="answers")
    values = {name: (new.values, each.values, new.choices.sequence) for name, each in known.items()}
    tests = paired_family(values, confidence=rules.confidence)
    means = {name: float(each.values.mean()) for name, each in known.items()}
    best, reason = best_baseline(WORTH, float(new.values.mean()), means, tests)
    numbers, beside = tests[best].numbers, f". Not judged: {refused}" if refused else ""
    for name in sorted(tests, key=lambda name: tests[name].difference):
        if tests[name].sign < 0 and together(known[name], new, confidence=rules.confidence).sign > 0:
            plain = f"answers to the simple baseline {name} may be worth more: try both online"
            return check(
                "baselines", "cannot tell", f"{reason}: {plain}{beside}", *numbers, plain=plain, unit="answers"
            )
    plain = "no simple baseline's answers would significantly be worth more"
    return check("baselines", "yes", reason + beside, *numbers, plain=plain, unit="answers")


def by_ranks(case: Case) -> list[Claim]:
    """Baselines check by the deciding rank metric; for logged actions it names no baseline to deploy instead.

    Ranks of actions say what people did again, not what to show them.
    """
    found = baselines_check(case.evaluation, case.baselines, case.metric, case.rules)
    actions = case.question.kind == "metric" and question_of(case.data, case.split).kind == "rewards"
    return [replace(found, instead=None) if actions else found]


def baselines_by_return(gains: Mapping[str, ReturnGain], rules: GateRules) -> Claim:
    """Claim that no simple baseline has a higher return; `gains` are those of the new policy over each of them.

    One whose return is refused neither blocks nor passes, and is named. One deviation does not say which of two
    policies far from the log earns more, so nobody is put in the new policy's place.
    """
    if not gains:
        return LEFT_OUT
    known = {name: each.gain for name, each in gains.items() if each.refusal is None}
    refused = too_little({name: each.refusal for name, each in gains.items() if each.refusal is not None})
    if not known:
        return check("baselines", "not judged", unjudged(refused), plain=UNJUDGED)
    tests = value_tests(known, rules.confidence)
    worst = min(tests, key=lambda name: tests[name].difference)
    test, unit = tests[worst], gains[worst].unit
    reason = f"return, less that of {worst}: {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})"
    reason += f". Not judged: {refused}" if len(known) < len(gains) else ""
    if test.sign < 0:
        plain = f"a visit earns more with the simple baseline {worst}"
        return check("baselines", "no", reason, *test.numbers, plain=plain, unit=unit)
    plain = "with no simple baseline a visit earns significantly more"
    return check("baselines", "yes", reason, *test.numbers, plain=plain, unit=unit)


def by_value(case: Case) -> list[Claim]:
    """Baselines check by estimated value, or by return if what is shown now changes later rewards."""
    if case.returns is not None and case.returns.decides:
        found = {each.name: case.returns_over(each) for each in case.baselines}
        return [baselines_by_return({name: one.gain for name, one in found.items() if one is not None}, case.rules)]
    return [baselines_by_value(case.evaluation, case.deployed, case.baselines, case.rules)]


def by_answers(case: Case) -> list[Claim]:
    """Claim by the reward per answer."""
    return [baselines_by_answers(case.answers.kept, case.answers.baselines, case.rules)]
