"""`improve` on a simulated shop: β, verdict and layer, against the truth; and the layer's law, pages and refusals."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.plackett_luce import law
from localpolicy.ranker.features import as_columns
from localpolicy.ranker.improve import improve, judged, persons_apart
from localpolicy.ranker.law import law_of, own_law
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import ListValues
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig, Requests, drawn

SMALL = RankerConfig(items=300, people=400, candidates=20, places=5)


def logged(config=SMALL, *, count=4000, seed=1):
    world, rng = ForeignRanker(config, seed=seed), np.random.default_rng(seed)
    requests = world.requests(count, rng)
    lists = world.lists(requests, rng)
    return world, (*world.tables(requests, lists, world.clicks(requests, lists, rng)), world.items())


def improved(out, config=SMALL, *, count=4000, seed=1, **settings):
    world, (requests, outcomes, items) = logged(config, count=count, seed=seed)
    return world, improve(requests, outcomes, items=items, out=out, **({"critics": ("logistic",)} | settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return improved(tmp_path_factory.mktemp("layer") / "run")


def asked(world, requests, number):
    """One request, as a caller sends it."""
    item = requests.item[number]
    candidates = {"item": [f"i{one}" for one in item], "score": requests.score[number], "price": world.price[item],
                  "new": world.new[item], "category": [f"c{one}" for one in world.category[item]]}  # fmt: skip
    context = {"weekend": "yes" if requests.weekend[number] else "no", "thrift": requests.thrift[number],
               "keen": requests.keen[number]}  # fmt: skip
    return candidates, context


def one_of(requests, number):
    return Requests(*(np.asarray(values)[number : number + 1] for values in requests))


def test_the_layer_earns_more_than_the_ranker(made):
    world, result = made
    assert result.verdict == "deploy" and result.exit_code == 0
    assert result.gain.low > 0
    assert result.law.temperature == pytest.approx(0.1, rel=0.05)
    layer, requests = lp.Layer(result.folder), world.requests(400, np.random.default_rng(7))
    earned = []
    for number in range(400):
        candidates, context = asked(world, requests, number)
        items = layer.rerank(candidates, 5, context=context, rng=np.random.default_rng(number)).items
        at = [candidates["item"].index(item) for item in items]
        earned.append(world.value(one_of(requests, number), np.array([at]))[0])
    own = world.value(requests, np.argsort(-requests.score, axis=1)[:, :5])
    assert np.mean(earned - own) > 3 * np.std(earned - own) / 20
    assert np.mean(earned) / own.mean() - 1 == pytest.approx(result.gain.mean / result.earned, abs=0.06)


def test_log_and_request_have_equal_features(made):
    """Â of a candidate is the same number, from the log and from a request."""
    world, result = made
    requests = world.requests(3, np.random.default_rng(8))
    tables = world.tables(requests, requests.item[:, :5].argsort(1), np.zeros((3, 5), bool))
    log = read_requests(*tables, items=world.items())
    layer = lp.Layer(result.folder)
    from localpolicy.ranker.law import standard_scores

    score = np.empty(len(log.item))
    for block in log.padded():
        score[block.rows[block.real]] = standard_scores(log, block)[block.real]
    codes, numbers = layer.encoder.of_log(log, np.arange(20), score)
    candidates, context = asked(world, requests, 0)
    columns = as_columns(candidates)
    columns["score"] = (columns["score"] - columns["score"].mean()) / columns["score"].std()
    own_codes, own_numbers = layer.encoder.of_request(columns, context)
    assert np.array_equal(codes, own_codes)
    assert numbers == pytest.approx(own_numbers)


def test_at_infinite_beta_it_is_the_declared_law(made):
    world, result = made
    layer = lp.Layer(result.folder, beta=math.inf)
    requests = world.requests(1, np.random.default_rng(9))
    candidates, context = asked(world, requests, 0)
    weight = np.exp(law(requests.score[0], temperature=result.law.temperature, standardise=True))
    answer = layer.rerank(candidates, 5, context=context, rng=np.random.default_rng(1))
    assert answer.record["probabilities"] == pytest.approx(weight / weight.sum(), abs=1e-12)
    shown = [candidates["item"].index(item) for item in answer.items]
    for place, propensity in enumerate(answer.propensities):
        assert propensity == pytest.approx(weight[shown[place]] / np.delete(weight, shown[:place]).sum(), abs=1e-12)


@pytest.mark.parametrize(("temperatures", "served"), [((0.4,), 0.4), ((0.4, 0.0, 0.2, 0.4), 0.4)])
def test_logged_temperatures_of_raw_scores_are_the_layers(tmp_path, temperatures, served):
    """New requests state no temperature: they are drawn by the one that most drawn requests of the log state."""
    world, rng = ForeignRanker(SMALL, seed=4), np.random.default_rng(4)
    requests = world.requests(600, rng)
    temperature = np.resize(temperatures, 600)
    lists = drawn(requests.score / np.maximum(temperature, 1e-9)[:, None], SMALL.places, rng)
    log, outcomes = world.tables(requests, lists, world.clicks(requests, lists, rng))
    log = log.append_column("temperature", [temperature])
    result = improve(log, outcomes, out=tmp_path / "run", critics=("logistic",))
    assert (result.law.kind, result.law.temperature, result.law.standardise) == ("scores", None, False)
    columns = as_columns({"item": ["a", "b", "c"], "score": [0.3, 2.0, 1.1]})
    weight = np.exp((columns["score"] - 2.0) / served)
    found = np.exp(lp.Layer(tmp_path / "run", beta=math.inf).declared(columns))
    assert found / found.sum() == pytest.approx(weight / weight.sum(), abs=1e-12)


def test_a_layers_own_log_improves_the_rankers_law_again(made, tmp_path):
    """Its lines state two laws: lists were drawn by the tilted one, and the next layer tilts the ranker's."""
    world, result = made
    layer, rng = result.layer(), np.random.default_rng(12)
    requests = world.requests(1500, rng)
    answers = [layer.rerank(*(one := asked(world, requests, number))[:1], 5, context=one[1], rng=rng,
                            person=f"p{requests.person[number]}") for number in range(1500)]  # fmt: skip
    position = [{f"i{item}": at for at, item in enumerate(row)} for row in requests.item]
    lists = np.array([[at[item] for item in one.items] for at, one in zip(position, answers, strict=True)])
    outcomes = [{"request": answers[request].request, "item": answers[request].items[place], "event": "click"}
                for request, place in zip(*np.nonzero(world.clicks(requests, lists, rng)), strict=True)]  # fmt: skip
    log = read_requests(pa.Table.from_pylist([one.record for one in answers]), pa.Table.from_pylist(outcomes))
    again = improve(log, out=tmp_path / "again", critics=("logistic",))
    assert again.law.kind == "probabilities" and again.beta < math.inf
    candidates, _ = asked(world, requests, 0)
    weight = np.exp(layer.declared(as_columns(candidates)))
    found = np.exp(lp.Layer(again.folder, beta=math.inf).declared(as_columns(candidates)))
    assert found / found.sum() == pytest.approx(weight / weight.sum(), abs=1e-12)
    added = np.array([again.layer().advantage(as_columns(one[0]), one[1], {}) for one in
                      (asked(world, requests, number) for number in range(500))]) / again.beta  # fmt: skip
    some = Requests(*(values[:500] for values in requests))
    own = world.value(some, np.argsort(-some.score, axis=1)[:, :5]).mean()
    truth = np.mean([world.value(some, drawn(world.law(some) + added, 5, rng)).mean() for _ in range(8)]) - own
    assert truth > 0 and again.gain.mean == pytest.approx(truth, abs=4 * again.gain.se)
    law_alone = judged_at_infinity(log, again, world)
    assert law_alone.mean < 0 < again.tried[0].gain.mean  # tilts are tried against the ranker's law, not the layer's


def test_what_gains_nothing_over_the_layer_in_service_is_not_deployed():
    """The log is drawn by the best tilt there is; a new one of the same kind beats the ranker's own list alone."""
    world, rng = ForeignRanker(SMALL, seed=5), np.random.default_rng(5)
    requests = world.requests(6000, rng)
    best = world.law(requests._replace(score=requests.log_odds))
    lists = drawn(best, 5, rng)
    tables = world.tables(requests, lists, world.clicks(requests, lists, rng), logits=best)
    of_layer = tables[0].append_column("temperature", [np.full(6000, 0.1)]).append_column(
        "standardise", [np.full(6000, True)])  # fmt: skip
    log = read_requests(of_layer, tables[1], items=world.items())
    law, (_, _, choice, verdict) = law_of(log), persons_apart(log, 0)
    added = (best - world.law(requests)).ravel()
    found = judged(log, law, added, log.reward(), world.examined, choice, verdict, own_law(log, law))
    assert found["beta"] < math.inf and found["gain"].low > 0 > found["over_drawn"].low
    assert found["verdict"] != "deploy" and "the drawn lists" in found["why"]


def test_resting_items_are_asked_for(made):
    candidates, context = asked(made[0], made[0].requests(1, np.random.default_rng(1)), 0)
    with pytest.raises(ConfigError, match="Pass resting="):
        made[1].layer(rules=lp.Rules(rest_hours=2)).rerank(candidates, 3, context=context)
    assert len(made[1].layer(rules=lp.Rules(rest_hours=2)).rerank(candidates, 3, resting=[]).items) == 3


def test_records_of_pages_are_one_list_and_rules_are_in_their_law(made, tmp_path):
    world, result = made
    requests = world.requests(3, np.random.default_rng(5))
    layer, shadow = result.layer(), result.layer(shadow=True)
    (one, about), (two, more), (three, _) = (asked(world, requests, number) for number in range(3))
    rested, boosted, top = two["item"][0], two["item"][1], two["item"][2]
    rules = lp.Rules(boost=[{"item": boosted, "times": 5}], pin={1: top})
    first = layer.rerank(one, 5, context=about)
    lists = [first, layer.rerank(one, 5, context=about, page=2, request=first.request),
             layer.rerank(two, 5, context=more, rules=rules, resting=[rested]),
             layer.rerank(two, 5, rules=lp.Rules(group="category")), shadow.rerank(three, 5)]  # fmt: skip
    lines = tmp_path / "log.jsonl"
    lines.write_text("".join(json.dumps(made.record) + "\n" for made in lists[::-1]))
    log = read_requests(lines)
    assert len(log) == 3  # a list with groups has no law of one request
    at = {request: number for number, request in enumerate(log.ids)}
    shown = {
        one: log.items[log.item[log.shown[log.request[log.shown] == number]]].tolist() for one, number in at.items()
    }
    assert shown[first.request] == first.items + lists[1].items
    assert log.pinned[[at[one.request] for one in (first, lists[2], lists[4])]].tolist() == [0, 1, 5]
    rows = slice(log.start[at[lists[2].request]], log.start[at[lists[2].request] + 1])
    logits = layer.logits(as_columns(two), more, {})
    weight = np.exp(logits - logits.max()) * np.where(np.array(two["item"]) == boosted, 5, 1)
    weight[0] = 0
    assert log.probability[rows] == pytest.approx(weight / weight.sum(), rel=1e-9)
    assert set(log.columns) == {"price", "new", "category"}
    answers = pa.table({"request": [first.request, lists[3].request], "item": [first.items[0], lists[3].items[0]]})
    assert len(read_requests(lines, answers).answers.row) == 1  # that of the list with groups goes with it
    lines.write_text(json.dumps(lists[1].record) + "\n")
    with pytest.raises(DataError, match="has page 2, and not just one page 1 before it"):
        read_requests(lines)
    for wrong, says in ({"page": None}, "has no page"), ({"page": "two"}, "'page'"), ({"shown": None}, "'shown'"):
        lines.write_text(json.dumps(first.record | wrong) + "\n")
        with pytest.raises(DataError, match=says):
            read_requests(lines)


def judged_at_infinity(log, result, world):
    """The gain of the ranker's own drawn law over the lists of the log."""
    values = ListValues(log, result.law, np.arange(len(log)), world.examined, log.reward())
    own = own_law(log, result.law)
    weights = values.weights(
        lambda block: np.where(block.real, own.logits(log, block) - result.law.logits(log, block), 0)
    )
    return values.gain(weights)


def test_a_log_of_probabilities_needs_them_of_new_candidates(tmp_path):
    _, (requests, outcomes, items) = logged(count=400)
    chances = [np.exp(row) / np.exp(row).sum() for row in requests["scores"].to_numpy(zero_copy_only=False)]
    rng = np.random.default_rng(3)
    shown = [rng.choice(row.as_py(), 5, replace=False, p=p).tolist()
             for row, p in zip(requests["candidates"], chances, strict=True)]  # fmt: skip
    log = requests.drop_columns(["scores", "shown"]).append_column("shown", [shown])
    log = log.append_column("probabilities", [[one.tolist() for one in chances]])
    outcomes = pa.table({"request": log["request"], "item": [one[0] for one in shown]})
    improve(log, outcomes, items=items, out=tmp_path / "run", critics=("logistic",))
    with pytest.raises(DataError, match="candidates need their 'probability'"):
        lp.Layer(tmp_path / "run").rerank([{"item": "a", "score": 1.0}, {"item": "b", "score": 2.0}], 1)


def test_the_law_is_tilted_by_the_advantage(made):
    world, result = made
    requests = world.requests(1, np.random.default_rng(9))
    candidates, context = asked(world, requests, 0)
    told = {}
    for beta in (0.2, 0.4, math.inf):
        record = lp.Layer(result.folder, beta=beta).rerank(candidates, 5, context=context).record
        told[beta] = np.log(record["probabilities"])
    tilt = {beta: told[beta] - told[math.inf] for beta in (0.2, 0.4)}
    assert tilt[0.2] - tilt[0.2].mean() == pytest.approx(2 * (tilt[0.4] - tilt[0.4].mean()), abs=1e-9)
    assert np.ptp(tilt[0.2]) > 0.1


def test_pages_continue_one_draw(made):
    world, result = made
    candidates, context = asked(world, world.requests(1, np.random.default_rng(4)), 0)
    layer = lp.Layer(result.folder)
    first = layer.rerank(candidates, 5, context=context)
    second = layer.rerank(candidates, 5, context=context, page=2, request=first.request)
    whole = layer.rerank(candidates, 10, context=context, request=first.request)
    assert whole.items == first.items + second.items
    assert whole.propensities == pytest.approx(first.propensities + second.propensities, rel=1e-12)
    assert second.record["page"] == 2
    with pytest.raises(ConfigError, match="page 2 continues a draw"):
        layer.rerank(candidates, 5, context=context, page=2)
    with pytest.raises(DataError, match="page 3: 3 pages of 8 take 24 candidates"):
        layer.rerank(candidates, 8, context=context, page=3, request=first.request)


def test_shadow_shows_the_rankers_own_order(made):
    world, result = made
    requests = world.requests(1, np.random.default_rng(5))
    candidates, context = asked(world, requests, 0)
    answer = lp.Layer(result.folder, shadow=True).rerank(candidates, 5, context=context)
    best = np.argsort(-requests.score[0])[:5]
    assert answer.items == [candidates["item"][one] for one in best]
    assert answer.propensities == [1] * 5
    assert len(answer.record["would_show"]) == 5


def test_the_price_of_rules_is_what_the_critics_lose_by_them(made):
    """The price of rules for lists of one place is enumerated; a boost of the best earns, a pin of the worst costs."""
    world, result = made
    layer = lp.Layer(result.folder)
    candidates, context = asked(world, world.requests(1, np.random.default_rng(3)), 0)
    record = layer.rerank(candidates, 1, context=context).record
    law_, columns = np.array(record["probabilities"]), as_columns(candidates)
    (critic,) = layer.critics.values()
    chance = 1 / (1 + np.exp(-critic.log_odds(layer._first(columns, context))))
    worst, best = (candidates["item"][at] for at in (int(chance.argmin()), int(chance.argmax())))
    found = layer.price(candidates, 1, lp.Rules(pin={1: worst}), context=context, draws=4000,
                        rng=np.random.default_rng(1))  # fmt: skip
    assert found == pytest.approx(1 - chance.min() / (law_ @ chance), rel=0.05)
    boosted = law_ * np.where(np.array(candidates["item"]) == best, 9.0, 1.0)
    found = layer.price(candidates, 1, lp.Rules(boost=[{"item": best, "times": 9}]), context=context, draws=4000,
                        rng=np.random.default_rng(1))  # fmt: skip
    assert found == pytest.approx(1 - boosted @ chance / boosted.sum() / (law_ @ chance), abs=0.02)
    assert found < 0
    assert layer.price(candidates, 5, lp.Rules(), context=context, draws=2000) == pytest.approx(0, abs=0.02)


def test_rules_of_a_request_are_used_instead_of_those_of_the_layer(made):
    world, result = made
    candidates, context = asked(world, world.requests(1, np.random.default_rng(6)), 0)
    layer = lp.Layer(result.folder, rules=lp.Rules(group="category", at_most=1))
    chosen = dict(zip(candidates["item"], candidates["category"], strict=True))
    kinds = len(set(candidates["category"]))
    for seed in range(20):
        items = layer.rerank(candidates, min(5, kinds), context=context, rng=np.random.default_rng(seed)).items
        assert len({chosen[item] for item in items}) == len(items)
    pinned = layer.rerank(candidates, 3, context=context, rules=lp.Rules(pin={1: candidates["item"][-1]}))
    assert pinned.items[0] == candidates["item"][-1] and pinned.propensities[0] == 1
    with pytest.raises(ConfigError, match="no critic of 'buy'"):
        layer.rerank(candidates, 3, context=context, rules=lp.Rules(weights={"buy": 1.0}))


def test_a_candidate_without_a_group_is_named(made):
    """Limits per group cannot hold for it, and a list that breaks them is never shown."""
    world, result = made
    candidates, context = asked(world, world.requests(1, np.random.default_rng(6)), 0)
    missing = candidates | {"category": [None, *candidates["category"][1:]]}
    with pytest.raises(DataError, match=f"'{candidates['item'][0]}' has no 'category'"):
        lp.Layer(result.folder).rerank(missing, 3, context=context, rules=lp.Rules(group="category"))


def test_columns_that_requests_lack_are_named_once(made, caplog):
    world, result = made
    candidates, context = asked(world, world.requests(1, np.random.default_rng(6)), 0)
    layer = lp.Layer(result.folder)
    layer.rerank(candidates, 3, context=context)
    assert not caplog.records
    fewer = {name: values for name, values in candidates.items() if name != "price"}
    for _ in range(2):
        layer.rerank(fewer, 3, context={})
    assert sum("candidates without 'price'" in record.message for record in caplog.records) == 1
    assert sum("a context without 'weekend'" in record.message for record in caplog.records) == 1


def test_a_log_of_limited_lists_alone_is_refused_with_the_reason(made):
    world, result = made
    layer, rows = lp.Layer(result.folder, rules=lp.Rules(group="category", at_most=3)), []
    requests = world.requests(3, np.random.default_rng(6))
    for one in range(3):
        candidates, context = asked(world, requests, one)
        rows.append(layer.rerank(candidates, 3, context=context).record)
    with pytest.raises(DataError, match="all 3 lists were drawn with groups"):
        read_requests(pa.Table.from_pylist(rows))


@pytest.mark.parametrize(("candidates", "says"), [
    ([], "one at least"),
    ([{"item": "a"}], "need a 'score'"),
    ([{"item": "a", "score": 1.0}, {"item": "a", "score": 2.0}], "'a' is named twice"),
    ([{"item": "a", "score": float("nan")}], "score of 'a' is not a finite number"),
    ([{"item": "a", "score": "high"}], "every candidate needs a 'score'"),
    ({"item": ["a", "b"], "score": [1.0]}, "2 candidates have 1 of 'score'"),
    ([{"item": "a", "score": 1.0}, {"item": "b", "score": 1.0}], "all scores are equal"),
])  # fmt: skip
def test_candidates_that_cannot_be_ranked_are_refused(made, candidates, says):
    with pytest.raises(DataError, match=says):
        lp.Layer(made[1].folder).rerank(candidates, 1)


def test_a_flawless_ranker_stays_as_it_is(tmp_path):
    _, result = improved(tmp_path / "run", SMALL.model_copy(update={"flawless": True}), count=2500)
    assert result.verdict != "deploy"
    assert result.gain is None or result.gain.low <= 0


@pytest.mark.parametrize(("people", "judged"), [(40, False), (100, True)])
def test_a_log_of_few_persons_is_not_judged(tmp_path, people, judged):
    """A tenth or so of them choose β."""
    _, result = improved(tmp_path / "run", SMALL.model_copy(update={"people": people}), count=1500)
    assert ("persons, and 10 are needed" in result.why) != judged
    assert (result.price is not None) == judged and (judged or result.verdict == "cannot tell")


def test_lists_that_were_not_drawn_teach_a_critic_and_give_no_verdict(tmp_path):
    _, result = improved(tmp_path / "run", SMALL.model_copy(update={"temperature": 0.0}), count=1500)
    assert (result.verdict, result.exit_code, result.beta) == ("cannot tell", 4, math.inf)
    assert result.law.kind == "deterministic"
    assert result.losses["reward"]["logistic"] < math.log(2)


def test_each_event_has_its_critic_and_a_weight(tmp_path):
    world, (requests, outcomes, items) = logged(count=1500)
    import pyarrow as pa

    kind = np.where(np.arange(len(outcomes)) % 3 == 0, "buy", "click")
    outcomes = outcomes.set_column(2, "event", pa.array(kind))
    result = improve(requests, outcomes, items=items, out=tmp_path / "run", events=("click", "buy"),
                     critics=("logistic",))  # fmt: skip
    assert set(result.losses) == {"click", "buy"}
    layer = lp.Layer(result.folder, beta=0.3)
    candidates, context = asked(world, world.requests(1, np.random.default_rng(2)), 0)

    def told(**weights):
        record = layer.rerank(candidates, 3, context=context, rules=lp.Rules(weights=weights)).record
        return np.log(record["probabilities"])

    none, click, buy, both = told(click=0, buy=0), told(click=1, buy=0), told(click=0, buy=1), told(click=1, buy=1)
    assert np.ptp((both - none) - (click - none) - (buy - none)) == pytest.approx(0, abs=1e-9)
    assert np.ptp(click - none) > 0.05 and np.ptp(buy - none) > 0.05


def test_lightgbm_is_kept_as_text(tmp_path):
    world, result = improved(tmp_path / "run", count=1500, critics=("lightgbm",))
    (path,) = (tmp_path / "run").glob("*/lightgbm.txt")
    assert path.read_text().startswith("tree")
    candidates, context = asked(world, world.requests(1, np.random.default_rng(2)), 0)
    assert len(lp.Layer(result.folder, beta=0.3).rerank(candidates, 5, context=context).items) == 5


def test_an_altered_layer_is_refused(made, tmp_path):
    shutil.copytree(made[1].folder, tmp_path / "run")
    path = tmp_path / "run" / "layer.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "beta": 0.001}))
    with pytest.raises(DataError, match="altered"):
        lp.Layer(tmp_path / "run")
    path.write_text(json.dumps(about))
    (tmp_path / "run" / "critic-1" / "logistic.npz").write_bytes(b"")
    with pytest.raises(RunError, match="altered"):
        _ = lp.Layer(tmp_path / "run").critics


@pytest.mark.parametrize(("change", "says"), [
    (lambda tables: (tables[0].slice(0, 50), None), "at least 100 are needed"),
    (lambda tables: (tables[0], None), "no answer to anything shown"),
])  # fmt: skip
def test_logs_that_teach_nothing_are_refused(change, says, tmp_path):
    _, tables = logged(count=200)
    with pytest.raises(DataError, match=says):
        improve(*change(tables), out=tmp_path / "run")


def test_negative_rewards_are_refused(tmp_path):
    import pyarrow as pa

    _, (requests, outcomes, _) = logged(count=200)
    outcomes = outcomes.set_column(3, "reward", pa.array(-np.ones(len(outcomes))))
    with pytest.raises(DataError, match="negative reward"):
        improve(requests, outcomes, out=tmp_path / "run")


def test_equal_logs_give_equal_layers(tmp_path):
    one, two = (improved(tmp_path / name, count=800)[1] for name in ("one", "two"))
    assert one.to_dict() | {"folder": ""} == two.to_dict() | {"folder": ""}
    assert lp.Layer(one.folder).version == lp.Layer(two.folder).version


def test_the_layer_needs_numpy_alone(made):
    code = f"""
import sys, localpolicy as lp
layer = lp.Layer({str(made[1].folder)!r})
layer.rerank([{{"item": "a", "score": 1.0}}, {{"item": "b", "score": 2.0}}], 1)
print({{"torch", "pyarrow", "duckdb", "scipy"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_whole_numbers_are_ids_however_they_are_written():
    assert as_columns([{"item": 3.0, "score": 1}, {"item": 4, "score": 2}])["item"] == [3, 4]
    checked = as_columns({"item": ["a"], "score": [1]})
    assert as_columns(checked) is checked
    for wrong in (3.5, 1e300, True, None):
        with pytest.raises(DataError, match="an item's id is a whole number or a text"):
            as_columns([{"item": wrong, "score": 1}])
