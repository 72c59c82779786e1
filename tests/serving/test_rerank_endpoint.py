"""`POST /v1/rerank`: what it answers, what it writes down, pages, rules, answers, audit, swap and refusals."""

from __future__ import annotations

import json
import re
import shutil
from typing import Annotated

import numpy as np
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from http_client import rows
from pydantic import Field, TypeAdapter, ValidationError
from shop_layer import SHOP

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError
from localpolicy.ranker.features import as_columns
from localpolicy.ranker.improve import improve
from localpolicy.ranker.reading import read_requests
from localpolicy.serving.app import make_app
from localpolicy.serving.audit import audit
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.database import Database
from localpolicy.serving.records import now
from localpolicy.serving.reranking import MOST_COLUMNS, MOST_RULES, Candidate, candidates_within
from localpolicy.serving.rotate import rotate


@pytest.fixture
def serve(layer, tmp_path):
    """Starts a service of the layer and gives a client of it."""
    clients = []

    def make(**settings) -> TestClient:
        given = {"export": layer, "log": str(tmp_path / "log.db"), **settings}
        client = TestClient(make_app(ServeConfig.parse(given)))
        clients.append(client.__enter__())
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def question(seed=0, **changes):
    requests = SHOP.requests(1, np.random.default_rng(seed))
    item = requests.item[0]
    candidates = [{"item": f"i{one}", "score": float(score), "price": float(SHOP.price[one]),
                   "new": bool(SHOP.new[one]), "category": f"c{SHOP.category[one]}"}
                  for one, score in zip(item, requests.score[0], strict=True)]  # fmt: skip
    context = {"weekend": "no", "thrift": float(requests.thrift[0]), "keen": float(requests.keen[0])}
    return {"person": "ann", "context": context, "candidates": candidates, "k": 3, **changes}


def ask(client, *, expect=200, **changes):
    answer = client.post(
        "/v1/rerank", content=json.dumps(question(**changes)), headers={"content-type": "application/json"}
    )
    assert answer.status_code == expect, answer.text
    return answer.json()


def test_a_floor_that_a_layer_cannot_keep_is_refused(layer, tmp_path):
    with pytest.raises(ConfigError, match="floor: a layer draws by its own law"):
        make_app(ServeConfig.parse({"export": layer, "log": str(tmp_path / "log.db"), "floor": 0.1}))


def test_a_list_is_drawn_by_the_layers_law_and_logged(serve, layer, tmp_path):
    client = serve()
    found = ask(client)
    assert found["logged"] and found["page"] == 1 and found["draw"] == found["request"]
    asked = question()
    again = lp.Layer(layer).rerank(asked["candidates"], 3, context=asked["context"], request=found["draw"])
    assert (again.items, again.policy) == (found["items"], found["policy"])
    assert again.propensities == pytest.approx(found["propensities"], rel=1e-12)
    ((person, items, propensities, policy, mode, content),) = rows(
        tmp_path, "SELECT r.person, r.items, r.propensities, r.policy, r.mode, f.content FROM requests r "
        "JOIN filters f ON f.digest = r.filter")  # fmt: skip
    assert (person, json.loads(items), policy, mode) == ("ann", found["items"], found["policy"], "drawn")
    assert json.loads(propensities) == found["propensities"]
    about = json.loads(content)["rerank"]
    assert about["items"] == [one["item"] for one in asked["candidates"]]
    assert about["scores"] == [one["score"] for one in asked["candidates"]]
    assert sum(about["probabilities"]) == pytest.approx(1)


def test_answers_and_what_was_seen_are_stored(serve, tmp_path):
    client = serve()
    found = ask(client)
    answer = {"id": "1", "request": found["request"], "item": found["items"][0], "event": "click"}
    assert client.post("/v1/feedback", json=answer).json()["stored"]
    assert client.post("/v1/shown", json={"request": found["request"], "places": 2}).json()["stored"]
    wrong = client.post("/v1/feedback", json={**answer, "id": "2", "item": "i99999"})
    assert wrong.status_code == 422
    assert rows(tmp_path, "SELECT COUNT(*) FROM feedback") == [(1,)]


def test_page_two_continues_the_draw(serve, tmp_path):
    client = serve()
    first = ask(client)
    second = ask(client, page=2, draw=first["draw"])
    whole = ask(client, page=1, k=6)
    assert len({*first["items"], *second["items"]}) == 6 == len(whole["items"])
    assert second["request"] != first["request"] and second["draw"] == first["draw"]
    assert "send the draw" in ask(client, page=2, expect=422)["error"]
    assert "no draw" in ask(client, page=2, draw="0" * 32, expect=404)["error"]
    asked = question()
    low = {"item": asked["candidates"][-1]["item"], "score": -50.0}  # it is drawn nowhere: the pages look the same
    for changes in ({"seed": 5}, {"candidates": asked["candidates"][:-1]}, {"candidates": asked["candidates"][::-1]},
                    {"candidates": [*asked["candidates"][:-1], asked["candidates"][-1] | low]},
                    {"context": {**asked["context"], "keen": 0.0}},
                    {"rules": {"boost": [{"item": "x", "times": 2}]}}):  # fmt: skip
        other = ask(client, page=2, draw=first["draw"], expect=422, **changes)
        assert "does not continue page 1" in other["error"]
    beyond = ask(client, page=900, draw=first["draw"], expect=422)
    assert "take 2,700 candidates, and there are 15. The last whole page is 5." in beyond["error"]


def test_rules_of_a_request_are_used_instead_of_those_of_the_service(serve, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("group: category\nat_most: 1\n")
    client = serve(rules=path)
    kinds = {one["item"]: one["category"] for one in question()["candidates"]}
    for _ in range(10):
        items = ask(client)["items"]
        assert len({kinds[item] for item in items}) == 3
    last = question()["candidates"][-1]["item"]
    pinned = ask(client, rules={"pin": {"2": last}})
    assert pinned["items"][1] == last and pinned["propensities"][1] == 1
    assert "rules.group" in ask(client, rules={"group": 3}, expect=422)["error"]
    assert "no column 'colour'" in ask(client, rules={"group": "colour"}, expect=422)["error"]
    assert "the rules leave" in ask(client, k=15, expect=422)["error"]


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 422)])
def test_rules_hold_few_values(serve, more, status):
    """The rules, their list of boosts and each boost with its two entries count."""
    boosts = [{"item": "i1", "times": 1}] * ((MOST_RULES - 2) // 3 + more)
    assert ask(serve(), rules={"boost": boosts}, expect=status)


def test_items_rest_for_some_hours(serve):
    client = serve()
    first = ask(client, rules={"rest_hours": 1})
    second = ask(client, rules={"rest_hours": 1})
    assert not {*first["items"]} & {*second["items"]}
    third = ask(client, rules={"rest_hours": 1}, person="bob")
    assert third["items"]
    paged = ask(client, rules={"rest_hours": 1}, person="eve")
    more = ask(client, rules={"rest_hours": 1}, person="eve", page=2, draw=paged["draw"])
    assert not {*paged["items"]} & {*more["items"]}


def test_the_audit_passes_what_is_true_and_names_what_is_not(serve, layer, tmp_path):
    client = serve()
    for number in range(120):
        first = ask(client, seed=number, person=f"p{number % 7}")
        if number % 4 == 0:
            ask(client, seed=number, person=f"p{number % 7}", page=2, draw=first["draw"])
        if number % 5 == 0:
            ask(client, seed=number, rules={"group": "category", "at_most": 2, "rest_hours": 1})
    log = tmp_path / "log.db"
    passed = audit(log, runs=[layer])
    assert passed.exit_code == 0, passed.findings
    assert audit(log).exit_code == 4  # the layer was not named
    database = Database(log)
    with database.transaction():
        database.execute("UPDATE requests SET propensities = '[0.5,0.5,0.5]' WHERE id = ?", (first["request"],))
    database.close()
    wrong = audit(log, runs=[layer])
    assert wrong.exit_code == 3
    assert any(first["request"] in finding.text for finding in wrong.findings)


def test_a_rotated_log_is_a_log_of_requests(serve, layer, tmp_path):
    """Pages are one list, cut where it was last seen; rules that have a law of one request are in it."""
    client = serve()
    questions = [question(seed=number, person=f"p{number % 3}") for number in range(6)]
    last = [one["candidates"][-1]["item"] for one in questions]
    rules = [None, {"boost": [{"item": last[1], "times": 3}]}, {"pin": {"1": last[2]}}, {"group": "category"},
             {"pin": {"2": last[4]}}, None]  # fmt: skip
    found = [ask(client, seed=number, person=f"p{number % 3}", rules=one, defer=number == 5)
             for number, one in enumerate(rules)]  # fmt: skip
    second = ask(client, person="p0", page=2, draw=found[0]["draw"])
    for number, (request, item) in enumerate([(found[0], 1), (second, 0), (found[2], 0)]):
        answer = {"id": str(number), "request": request["request"], "item": request["items"][item], "event": "click",
                  "reward": 2.0}  # fmt: skip
        assert client.post("/v1/feedback", json=answer).json()["stored"]
    client.post("/v1/shown", json={"request": second["request"], "places": 2})
    rotate(tmp_path / "log.db", out=tmp_path / "rotated", upto=now() + 1)
    log = read_requests(tmp_path / "rotated")
    order = [log.ids.tolist().index(one["draw"]) for one in found[:3]]
    assert len(log) == 3  # neither groups, nor pins below others, nor what nobody saw
    lists = [log.items[log.item[log.shown[log.request[log.shown] == one]]].tolist() for one in order]
    assert lists == [found[0]["items"] + second["items"][:2], found[1]["items"], found[2]["items"]]
    assert log.pinned[order].tolist() == [0, 0, 1]
    shown = log.shown[log.request[log.shown] == order[0]]
    assert log.reward()[shown].tolist() == [0, 2, 0, 2, 0]
    rows = slice(log.start[order[1]], log.start[order[1] + 1])
    made = lp.Layer(layer)
    logits = made.logits(as_columns(questions[1]["candidates"]), questions[1]["context"], {})
    boosted = np.exp(logits - logits.max()) * np.where(log.items[log.item[rows]] == last[1], 3, 1)
    assert log.probability[rows] == pytest.approx(boosted / boosted.sum(), rel=1e-9)
    assert log.temperature == pytest.approx(made.draws["temperature"]) and log.standardise is True
    assert set(log.columns) == {"price", "new", "category"} and set(log.context) == {"weekend", "thrift", "keen"}
    assert log.weight.tolist() == [1, 1, 1] and len(set(log.person)) == 3
    with pytest.raises(DataError, match="leave the outcomes out"):
        read_requests(tmp_path / "rotated", tmp_path / "outcomes.csv")


def test_a_log_without_reranked_lists_holds_no_requests(start, tmp_path):
    start().post("/v1/recommend", json={"history": [], "k": 3})
    rotate(tmp_path / "log.db", out=tmp_path / "rotated", upto=now() + 1)
    with pytest.raises(DataError, match="holds no list of /v1/rerank"):
        read_requests(tmp_path / "rotated")


def test_argmax_under_a_softmax_is_found(serve, layer, tmp_path):
    """The best items are shown, and the softmax's propensities logged."""
    client = serve()
    for number in range(500):
        ask(client, seed=number)
    database = Database(tmp_path / "log.db")
    from localpolicy.ranker.rules import Openings, propensities_under

    found = database.rows("SELECT r.id, f.content FROM requests r JOIN filters f ON f.digest = r.filter")
    with database.transaction():
        for request, content in found:
            about = json.loads(content)["rerank"]
            order = np.argsort(-np.array(about["probabilities"]))[:3]
            told = propensities_under(Openings(np.log(about["probabilities"]), {}), order)
            database.execute("UPDATE requests SET items = ?, propensities = ? WHERE id = ?", (
                json.dumps([about["items"][one] for one in order]), json.dumps(told.tolist()), request))  # fmt: skip
    database.close()
    assert audit(tmp_path / "log.db", runs=[layer]).exit_code == 3


def test_shadow_shows_the_rankers_own_order(serve, layer, tmp_path):
    client = serve(shadow=True)
    asked = question()
    best = sorted(asked["candidates"], key=lambda one: -one["score"])
    found = ask(client)
    assert found["items"] == [one["item"] for one in best[:3]]
    assert found["propensities"] == [1, 1, 1]
    assert ask(client, page=2, draw=found["draw"])["items"] == [one["item"] for one in best[3:6]]
    ((content,),) = rows(tmp_path, f"SELECT f.content FROM requests r JOIN filters f ON f.digest = r.filter "
                         f"WHERE r.id = '{found['request']}'")  # fmt: skip
    assert len(json.loads(content)["rerank"]["would_show"]) == 3
    assert audit(tmp_path / "log.db", runs=[layer]).exit_code in (0, 4)


def test_a_new_layer_is_swapped_in_and_a_damaged_one_refused(serve, layer, tmp_path):
    folder = tmp_path / "served"
    shutil.copytree(layer, folder)
    client = serve(export=folder)
    service = client.app.state.service
    before = ask(client)["policy"]
    text = (folder / "layer.json").read_text()
    (folder / "layer.json").write_text(re.sub(r'"format": \d+', '"format": 99', text))
    service.deployment.refresh()
    assert client.get("/v1/policies").json()["refused"]
    assert ask(client)["policy"] == before
    shutil.rmtree(folder)
    rng = np.random.default_rng(3)
    requests = SHOP.requests(600, rng)
    lists = SHOP.lists(requests, rng)
    improve(*SHOP.tables(requests, lists, SHOP.clicks(requests, lists, rng)), items=SHOP.items(), out=folder,
            critics=("logistic",))  # fmt: skip
    service.deployment.refresh()
    assert client.get("/v1/policies").json()["refused"] is None
    assert ask(client)["policy"] != before


@pytest.mark.parametrize(("changes", "says"), [
    ({"candidates": []}, "one at least"),
    ({"candidates": [{"item": "a", "score": 1.0}, {"item": "a", "score": 2.0}]}, "'a' is named twice"),
    ({"candidates": [{"item": "a", "price": 1.0}]}, "need a 'score'"),
    ({"candidates": [{"item": True, "score": 1.0}]}, "id is a whole number or a text"),
    ({"candidates": [{"item": "a", "score": 1.0}, {"item": "b", "score": 1.0}]}, "all scores are equal"),
    ({"k": 16}, "k must be between 1 and 15"),
    ({"k": 0}, "k"),
    ({"page": 0}, "page"),
    ({"rules": {"rest_hours": 1e300}}, "rules.rest_hours: expected a number less than"),
    ({"colour": "red"}, "colour"),
    ({"person": None, "rules": {"rest_hours": 1}}, "rules.rest_hours: nobody is named"),
    ({"rules": {"at_most": 2}}, "name its column as group"),
    ({"rules": {"resthours": 2}}, "did you mean 'rest_hours'?"),
    ({"rules": {"boost": [{"times": 2, "column": "colour", "value": "red"}]}}, "no column 'colour'"),
    ({"rules": {"weights": {"reward": float("nan")}}}, "rules.weights.reward: expected a finite number"),
    ({"rules": {"weights": {"reward": 1e308}}}, "weights: {'reward': 1e+308} are too large"),
    ({"draw": "0" * 32}, "draw: page 1 begins a draw of its own"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(serve, changes, says):
    client = serve()
    assert says in ask(client, expect=422, **changes)["error"]
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("score", [float("nan"), float("inf"), [1.0]])
def test_a_score_that_is_no_finite_number_is_named(serve, score):
    asked = question()
    asked["candidates"][3]["score"] = score
    answer = serve().post("/v1/rerank", content=json.dumps(asked), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, "candidates.3.score")
    assert "expected a finite number" in answer.json()["error"]


def columns_of(candidates):
    return {name: [one[name] for one in candidates] for name in candidates[0]}


def test_candidates_may_be_columns(serve, layer, tmp_path):
    """The same draw id gives the same list, whatever the form; and the log is the same."""
    client, objects = serve(), question()["candidates"]
    first = ask(client)
    second = ask(client, page=2, draw=first["draw"], candidates=columns_of(objects))
    assert second["items"] == ask(client, page=2, draw=first["draw"])["items"]
    logged = [json.loads(content)["rerank"] for (content,) in rows(
        tmp_path, "SELECT f.content FROM requests r JOIN filters f ON f.digest = r.filter")]  # fmt: skip
    assert all(one["items"] == logged[0]["items"] and one["columns"] == logged[0]["columns"] for one in logged)
    assert audit(tmp_path / "log.db", runs=[layer]).exit_code in (0, 4)


@pytest.mark.parametrize(("columns", "field", "says"), [
    ({"item": ["a", "b"], "score": [1.0, "x" * 257]}, "candidates.score.1", "expected a finite number"),
    ({"item": ["a", "b"], "score": [1.0]}, None, "2 candidates have 1 of 'score'"),
    ({"item": ["a", "b"], "score": [1.0, "high"]}, None, "every candidate needs a 'score' that is a number"),
    ({"item": ["a", "a"], "score": [1.0, 2.0]}, None, "'a' is named twice"),
    ({"item": ["a"]}, "candidates", "at least 2 items"),
    ({"item": [], "score": []}, None, "one at least"),
    ({"item": "ab", "score": [1.0, 2.0]}, "candidates.item", "valid array"),
    ({"item": list(range(2001)), "score": [1.0] * 2001}, "candidates.item", "at most 2000"),
])  # fmt: skip
def test_columns_that_make_no_sense_are_named(serve, columns, field, says):
    refused = ask(serve(), expect=422, candidates=columns)
    assert refused["field"] == field and says in refused["error"]


ODD = [0, 1, -2.5, 3.0, 1e308, 2**63 - 1, -(2**63), 2**63, 10**30, "", "a", "é" * 256, "a" * 257, "a\0", "b\n", True,
       None, [], {}, float("nan"), float("inf"), -float("inf")]  # fmt: skip


def outcome(kind, given):
    """What pydantic makes of candidates, as the JSON of their columns; None if it refuses them."""
    try:
        found = kind.validate_python(given)
    except ValidationError:
        return None
    uneven = isinstance(found, list) and len({*map(tuple, found)}) > 1
    return json.dumps(found if uneven or isinstance(found, dict) else columns_of(found))


def test_columns_are_taken_as_cell_by_cell():
    """Candidates are checked by columns; each cell by itself, as the type says it, decides the same."""
    by_cell = TypeAdapter(Annotated[list[Candidate], Field(max_length=4)], config={"allow_inf_nan": False})
    by_column, rng, taken = TypeAdapter(candidates_within(4)), np.random.default_rng(0), 0
    for number in range(3000):
        names = ["item", "score", *rng.choice(["price", "x" * 257, "a\0", ""], number % 3 // 2)]
        kinds = [rng.choice(len(ODD), 1 + number % 3) for _ in names]  # few in a column
        given = [{name: ODD[rng.choice(some)] for name, some in zip(names, kinds, strict=True)}
                 for _ in range(rng.integers(1, 6))]  # fmt: skip
        if number % 7 == 0:
            given[-1].pop(names[-1])
        expected = outcome(by_cell, given)
        assert outcome(by_column, given) == expected
        if number % 7:
            assert outcome(by_column, columns_of(given)) == expected
        taken += expected is not None
    assert 300 < taken < 2700


def test_a_layer_is_not_asked_for_lists_of_its_own(serve):
    client = serve()
    assert client.post("/v1/recommend", json={"history": [], "k": 3}).status_code in (404, 405)
    assert client.get("/v1/policies").json()["policies"][0]["objective"] == "layer"
    assert client.get("/readyz").status_code == 200
    assert "/v1/rerank" in client.get("/openapi.json").json()["paths"]


def test_ids_of_a_request_are_all_numbers_or_all_texts(serve):
    client = serve()
    candidates = [{"item": number, "score": float(number)} for number in range(1, 5)]
    assert ask(client, candidates=candidates, history=[1, {"item": 2, "event": "view"}])["items"]
    for changes in ({"history": [1, "2"]}, {"history": [{"item": "2", "event": "view"}]},
                    {"candidates": [*candidates, {"item": "i5", "score": 1.0}]}):  # fmt: skip
        refused = ask(client, expect=422, **{"candidates": candidates, **changes})
        assert "whole numbers" in refused["error"]


def test_a_client_with_other_ids_stops_no_rotation(serve, tmp_path):
    """One sends numbers, the other texts: the file's items are texts, whoever came first."""
    client = serve()
    numbers = [{"item": number, "score": float(number)} for number in range(1, 5)]
    for number, changes in enumerate(({"candidates": numbers, "history": [3]}, {}, {"candidates": numbers})):
        ask(client, person=f"p{number}", **changes)
    (file,) = rotate(tmp_path / "log.db", out=tmp_path / "events", upto=now() + 1)
    found = pq.read_table(file).to_pylist()
    assert {row["sequence_id"] for row in found} == {"p0", "p1", "p2"} and len(found) == 3 * 3 + 1
    assert {row["item_id"] for row in found if row["sequence_id"] != "p1"} <= {"1", "2", "3", "4"}


def test_a_limit_of_a_group_that_no_list_reaches_is_refused(serve):
    client = serve()
    assert ask(client, rules={"group": "category", "at_most": 1_000_000})["items"]
    refused = ask(client, expect=422, rules={"group": "category", "at_most": 2**63})
    assert "at_most" in refused["error"]


def test_too_many_columns_are_refused_before_their_cells(serve):
    many = {f"c{number}": [] for number in range(MOST_COLUMNS + 1)}
    client = serve()
    for name, value in ("candidates", many), ("candidates", [many]), ("context", many):
        found = ask(client, expect=422, **{name: value})
        assert found["field"] == name and f"at most {MOST_COLUMNS} columns, got {MOST_COLUMNS + 1}" in found["error"]
