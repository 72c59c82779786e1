"""One pass over a split gives what looking at each position alone would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from measured import evaluate_policy, log, policy, random_sequences, scores

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.errors import DataError
from localpolicy.measure.decisions import decisions
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.position_metrics import ranking
from localpolicy.measure.score import score
from localpolicy.types import START, Batch

ITEMS = 9


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return log(tmp_path_factory.mktemp("scores") / "data", random_sequences(30, ITEMS), items=ITEMS)


def row_of(made, tokens: list[int]) -> torch.Tensor:
    """Logits where the window holds these tokens: items, after START where the sequence begins in it."""
    count = len(tokens)
    nothing = torch.zeros(count, dtype=torch.long)
    batch = Batch(
        sequences=torch.zeros(1, dtype=torch.long), row=nothing, column=torch.arange(count),
        previous_item=torch.tensor(tokens), previous_event=nothing, item=nothing, event=nothing,
        reward=torch.zeros(count), history=torch.arange(count), scored=torch.tensor([count - 1]),
    )  # fmt: skip
    return made.logits(batch).chunk(0, ITEMS)[0].detach()


def log_probabilities(made, tokens: list[int]) -> torch.Tensor:
    """log π(·|x)."""
    return torch.log_softmax(row_of(made, tokens), dim=0)


def one_by_one(made, sequences, length, *, last=None, min_history=1, exclude=False):
    """(sequence, history, rank, log π, repeat) of every position, each from its own history."""
    found = []
    for number, sequence in enumerate(sequences):
        begins = max(0, len(sequence) - length)
        scored = range(max(begins, len(sequence) - (last or len(sequence))), len(sequence))
        for step in (step for step in scored if step >= min_history):
            tokens = [START, *sequence][begins : step + 1]
            logp = log_probabilities(made, tokens)
            item, values = sequence[step], logp.tolist()
            if exclude:
                values = [-1e30 if other in sequence[:step] else value for other, value in enumerate(values)]
            above = sum(value > values[item] for value in values)
            same = sum(value == values[item] for value in values) - 1
            found.append((number, step, 1 + above + same / 2, logp[item].item(), item in sequence[:step]))
    return found


@pytest.mark.parametrize(("length", "last", "min_history"), [(20, None, 1), (3, None, 1), (3, None, 0), (2, 4, 1)])
def test_positions_before_the_window_are_counted(data, length, last, min_history):
    made, sequences = policy(data, length=length), [[int(item) for item in each["item"]] for each in data["test"]]
    windows = Windows(data, "test", WindowConfig(length=length, last=last))
    scored = len(score(made, windows, events=data.events, min_history=min_history))
    wanted = [
        step
        for sequence in sequences
        for step in range(max(0, len(sequence) - (last or len(sequence))), len(sequence))
        if step >= min_history
    ]
    assert windows.beyond(min_history) == len(wanted) - scored
    assert (windows.beyond(min_history) > 0) == (length < 20)
    some = windows.only(np.arange(3))
    assert some.beyond(min_history) + len(score(made, some, events=data.events, min_history=min_history)) == sum(
        max(0, min(len(sequence) - min_history, last or len(sequence))) for sequence in sequences[:3]
    )


def test_rows_that_are_history_alone_are_no_positions_before_the_window(tmp_path):
    sequences = random_sequences(30, ITEMS)
    events = [[step % 2 for step in range(len(sequence))] for sequence in sequences]
    names = ["context", "click"]
    data = log(tmp_path / "data", sequences, events=events, items=ITEMS, names=names)
    windows = Windows(data, "test", WindowConfig(length=3))
    scored = len(score(policy(data, length=3), windows, events=names))
    assert scored > 0 and windows.beyond(1) == sum(map(sum, events)) - scored


@pytest.mark.parametrize(
    ("length", "last", "min_history", "exclude"),
    [(20, None, 1, False), (20, None, 0, False), (4, None, 1, False), (20, 2, 1, False), (20, None, 1, True)],
)
def test_scores_equal_position_by_position(data, length, last, min_history, exclude):
    made = policy(data, length=length)
    windows = Windows(data, "test", WindowConfig(length=length, last=last))
    found = score(made, windows, events=data.events, min_history=min_history, exclude_seen=exclude, batch_size=7)
    expected = one_by_one(
        made, random_sequences(30, ITEMS), length, last=last, min_history=min_history, exclude=exclude
    )
    sequence, history, rank, logp, repeat = (np.array(column) for column in zip(*expected, strict=True))
    assert found.sequence.tolist() == sequence.tolist()
    assert found.history.tolist() == history.tolist()
    assert found.repeat.tolist() == repeat.tolist()
    np.testing.assert_allclose(found.logp, logp, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.rank, rank)


def test_repeats_are_of_the_whole_sequence_not_of_the_window(tmp_path):
    data = log(tmp_path / "data", [[3, 1, 2, 4, 5, 3]], items=9)
    windows = Windows(data, "test", WindowConfig(length=2))
    found = score(policy(data, length=2), windows, events=data.events)
    assert found.item.tolist() == [5, 3]
    assert found.repeat.tolist() == [False, True]


def test_lists_are_counted(data):
    made = policy(data)
    windows = Windows(data, "test", WindowConfig())
    found = score(made, windows, events=data.events, lists=3, batch_size=7)
    assert found.shown.sum() == 3 * len(found)
    only_first = score(made, windows, events=data.events, lists=1)
    assert only_first.shown.tolist() == np.bincount(found.top, minlength=ITEMS).tolist()


def test_no_position_is_an_error_that_says_so(data):
    windows = Windows(data, "test", WindowConfig())
    with pytest.raises(DataError, match="no position has 50 actions.*min_history=0"):
        score(policy(data), windows, events=data.events, min_history=50)


def test_values_per_sequence_are_means_of_values_per_position(data):
    evaluation = evaluate_policy(
        policy(data), data, name="random", window=WindowConfig(), config=EvaluateConfig(min_history=0)
    )
    table = evaluation.per_sequence(["nDCG@20"]).to_pydict()
    values, sequence = evaluation.values("click.nDCG@20")
    assert len(table["sequence"]) == 30
    for place, number in enumerate(table["sequence"]):
        assert table["click.nDCG@20"][place] == pytest.approx(values[sequence == number].mean())
        assert table["positions"][place] == (evaluation.scores.sequence == number).sum()


@pytest.mark.parametrize("length", [20, 4])
def test_likelihood_and_rank_are_taken_among_unseen_items(data, length):
    """At each first meeting, of the policy and of a reference: what the whole sequence held before has no part."""
    made, other = policy(data, length=length), policy(data, length=length, seed=1)
    windows = Windows(data, "test", WindowConfig(length=length))
    found = score(made, windows, events=data.events, references={"μ̂": other}, unseen=True, batch_size=7)
    sequences, first = random_sequences(30, ITEMS), ~found.repeat
    assert first.any() and found.logp_unseen is not None

    def among_unseen(who, number: int, step: int) -> float:
        sequence = sequences[number]
        tokens = [START, *sequence][max(0, len(sequence) - length) : step + 1]
        chance = log_probabilities(who, tokens).exp().numpy()
        return float(np.log(chance[sequence[step]] / np.delete(chance, list(set(sequence[:step]))).sum()))

    at = list(zip(found.sequence[first], found.history[first], strict=True))
    expected = [[among_unseen(who, *each) for each in at] for who in (made, other)]
    np.testing.assert_allclose(found.logp_unseen[first], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.logp_unseen_reference["μ̂"][first], expected[1], rtol=1e-4, atol=1e-5)
    excluding = score(made, windows, events=data.events, exclude_seen=True)
    assert found.rank_unseen.tolist() == excluding.rank.tolist() and excluding.logp_unseen is None


def test_the_value_is_of_the_policy_as_it_is_served(data):
    """With seen items excluded: π among the rest, nothing for a repeat, and r̂ averaged over what may be shown."""
    made, mu, model = (policy(data, seed=seed) for seed in range(3))
    windows = Windows(data, "test", WindowConfig(length=20))
    asked = {"events": data.events, "references": {"μ̂": mu}, "reward_model": model}
    found = score(made, windows, exclude_seen=True, **asked)
    sequences = random_sequences(30, ITEMS)
    weight = decisions(found, propensities="μ̂").weight
    for at, (number, step) in enumerate(zip(found.sequence, found.history, strict=True)):
        tokens, seen = [START, *sequences[number]][: step + 1], sequences[number][:step]
        chance = log_probabilities(made, tokens).exp().numpy()
        chance[seen] = 0
        chance /= chance.sum()
        item, mine = sequences[number][step], log_probabilities(mu, tokens).exp().numpy()
        np.testing.assert_allclose(weight[at], chance[item] / mine[item], rtol=1e-3, atol=1e-6)
        expected = chance @ row_of(model, tokens).numpy()
        np.testing.assert_allclose(found.value_expected[at], expected, rtol=1e-3, atol=1e-5)
    assert found.repeat.any() and (weight[found.repeat] == 0).all()


def test_a_reward_weighted_figure_of_a_segment_is_weighted_by_its_own_rewards():
    """Σ r m / Σ |r| within the segment: at most 1, whatever the other positions earn."""
    rng = np.random.default_rng(3)
    repeat = rng.random(200) < 0.2
    found = scores(
        rank=rng.integers(1, 30, 200).astype(float), reward=np.where(repeat, 1.0, 0.2), repeat=repeat,
        event=np.where(repeat, 2, 1), history=rng.integers(0, 20, 200), sequence=np.arange(200) // 4,
    )  # fmt: skip
    evaluation = Evaluation(
        name="one", figures={**ranking(found, ["nDCG@20"])}, divergence=None, scores=found, counts=np.ones(3),
        settings={"lists": 20},
    )  # fmt: skip
    rows = {row.group: row for row in evaluation.by_segment("reward-weighted.nDCG@20")}
    gained = np.where(found.rank <= 20, 1 / np.log2(found.rank + 1), 0.0)
    for name, here in {"repeat": repeat, "new": ~repeat, "history > 15": found.history > 15}.items():
        expected = (found.reward * gained)[here].sum() / np.abs(found.reward[here]).sum()
        assert rows[name].mean == pytest.approx(expected) and 0 <= rows[name].mean <= 1, name
        assert rows[name].low <= rows[name].mean <= rows[name].high
    whole = (found.reward * gained).sum() / found.reward.sum()
    assert evaluation.estimate("reward-weighted.nDCG@20").mean == pytest.approx(whole)
