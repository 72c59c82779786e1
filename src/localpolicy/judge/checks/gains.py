"""Does it gain by ranks?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from localpolicy.judge.case import CHOSEN_OTHERWISE, Case
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.estimate import ENOUGH, more_needed, sequences_of
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.number_text import apart
from localpolicy.measure.position_metrics import AGREEMENT, LIKED, WEIGHTED
from localpolicy.measure.significance import Paired, paired

ALIKE = "the two rank everything alike"


def too_few(clusters: np.ndarray, rules: GateRules) -> tuple[int, str] | None:
    """Number of positions needed for `min_sequences` sequences, and a sentence on it; None if there are enough."""
    sequences = sequences_of(clusters)
    if sequences >= rules.min_sequences:
        return None
    needed = math.ceil(len(clusters) * rules.min_sequences / max(sequences, 1))
    return needed, f". {sequences} sequences are too few for a verdict (least: {rules.min_sequences})"


def would_tell(found: Paired, gain: float, rules: GateRules, *, unit: str = "positions") -> tuple[int | None, str]:
    """Sample size to detect `gain`, and a sentence on it; None and "" if the present sample was large enough."""
    needed = more_needed(found, gain, confidence=rules.confidence)
    if needed is None or needed <= found.n:
        return None, ""
    return needed, f". About {needed:,} {unit} would tell"


def gain_claim(
    name: str, test: Paired, old: float, reason: str, words: Mapping[str, str], rules: GateRules, *,
    few: tuple[int, str] | None = None, unit: str = "positions", unknown: float = 0.0,
) -> Claim:  # fmt: skip
    """Claim that a gain over the `old` metric is large enough to deploy; `words` are its texts by outcome.

    No where all of its interval lies below `smallest_gain` of the old figure, however significant it is; yes where it
    lies above `min_gain` and the gain itself is worth having; else it cannot tell. So a wider interval around the same
    gain never says more. A `min_gain` below 0 accepts losses, and so any gain. `unknown` is how far
    the gain may be off, however large the sample.
    """
    worth = max(rules.min_gain, rules.smallest(old))
    smallest = rules.min_gain if rules.min_gain < 0 else worth
    too_little = test.high < max(smallest, rules.min_gain + 1e-12)
    outcome: Outcome = "cannot tell"
    needed, told, plain = None, "", words["cannot tell"]
    if few is not None:
        needed, told = few
    elif test.low > rules.min_gain and test.difference >= smallest:
        outcome, plain = "yes", words["yes"]
    elif too_little:
        high, asked = apart(test.high, smallest)
        outcome, told = "no", f". The whole interval, up to {high}, is below {asked}, the smallest gain worth having"
        plain = words["lower" if test.high < 0 else "no"]
        plain += " by as much as is worth having" if test.low > rules.min_gain else ""
    else:
        needed, told = would_tell(test, max(test.difference, worth) - rules.min_gain - unknown, rules, unit=unit)
    least = smallest if outcome == "no" else None
    return check(name, outcome, reason + told, *test.numbers, needed, plain=plain, unit=unit, least=least)


def gain_check(new: Evaluation, deployed: Evaluation, name: str, rules: GateRules, *, note: str | None = None) -> Claim:
    """Claim that the lower end of the paired gain's interval is above `min_gain`; `note` is a caveat on the pair."""
    mine, old, clusters = new.values(name)[0], *deployed.values(name)
    if not len(mine):
        return check("gain", "cannot tell", unmeasured(name), n=0, plain=f"no row can be judged by {name}")
    test, sequences = paired(mine, old, clusters, confidence=rules.confidence), sequences_of(clusters)
    over, caveat = f"over {test.n:,} positions of {sequences:,} sequences", f". Note: {note}" if note else ""
    if np.array_equal(new.scores.rank, deployed.scores.rank) and rules.min_gain >= 0:
        reason = f"{name} {old.mean():.4f} of both, {over}. The two rank everything alike: nothing would change{caveat}"
        return check("gain", "no", reason, 0.0, n=test.n, plain=ALIKE)
    reason = (
        f"{name} {old.mean():.4f} -> {mine.mean():.4f}: gain {test.difference:+.4f}, {rules.confidence:.0%} interval "
        f"{test.low:+.4f} to {test.high:+.4f} {over}; its lower end must be above {rules.min_gain:g}{caveat}"
    )
    if rules.min_sequences <= sequences < ENOUGH:
        reason += f". Below {ENOUGH} sequences a small gain is missed, and one that is found looks larger than it is"
    words, few = gain_words(name), too_few(clusters, rules)
    return gain_claim("gain", test, float(old.mean()), reason, words, rules, few=few)


def unmeasured(name: str) -> str:
    """Sentence for a metric without positions: the reason and the remedy."""
    if name not in (LIKED, AGREEMENT):
        return f"{name}: no held-out position has it. Hold out more sequences"
    return (
        f"{name} compares items that one person rated after one another, and no held-out sequence has two (a split by "
        "last events leaves one). Prepare the data with --split random or time"
    )


def gain_words(name: str) -> dict[str, str]:
    """Short texts of a rank metric's gain by outcome: yes, no, lower, cannot tell."""
    if name == LIKED:
        first = "what it ranks first was liked"
        return {
            "yes": f"{first} better", "no": f"{first} no better", "lower": f"{first} less",
            "cannot tell": f"{first} not significantly better",
        }  # fmt: skip
    group = name.rpartition(".")[0]
    named = {"all": "what people took", "repeat": "repeats", "new": "new items", WEIGHTED: "what is worth most"}
    what = named.get(group, f"{group} events")
    return {
        "yes": f"it ranks {what} higher", "no": f"it ranks {what} no higher", "lower": f"it ranks {what} lower",
        "cannot tell": f"it does not significantly rank {what} higher",
    }  # fmt: skip


def gain(case: Case) -> list[Claim]:
    """Claims on the gain in the deciding rank metric, between weights that the same metric selected."""
    if case.deployed is None:
        return []
    pair = case.pair
    found = gain_check(pair.new, pair.old, case.metric, case.rules, note=pair.note or pair.refusal)
    return [found if pair.refusal is None else replace(found, holds=None, plain=CHOSEN_OTHERWISE, needed=None)]
