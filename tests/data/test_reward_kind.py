"""What the numbers of a reward column are: by the user's word, by names, by the numbers; never by the test split."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import localpolicy as lp
from localpolicy.data.guess.guess import guess
from localpolicy.data.reward_kind import reward_kind, reward_ranges, sale_events, unpaid_events
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError, DataError
from localpolicy.measure.metrics import question_of

ITEMS, ROWS = 12, 600


def stars(rng, item):
    return rng.choice([1, 2, 3, 4, 5], p=[0.05, 0.1, 0.2, 0.4, 0.25], size=len(item)).astype(float)


def price(rng, item):
    return (3.0 * 1.5**item).round(2)


def basket(rng, item):
    """A price times a quantity."""
    return price(rng, item) * quantity(rng, item)


def quantity(rng, item):
    return rng.geometric(0.6, size=len(item)).astype(float)


def seconds(rng, item):
    return rng.lognormal(3.0, 1.0, size=len(item)) * (1 + 0.05 * item)


def log(folder, numbers, *, events=("view",), earning=None, column=None, said="auto", test=None):
    """Rows of every event, of which the earning ones have these numbers; `test` changes the test split's."""
    settings = {"columns": {} if column is None else {"reward": column}, "reward_kind": said}
    rng = np.random.default_rng(0)
    with writing(folder, kind="interactions", events=list(events), settings=settings) as store:
        for split in ("train", "validation", "test"):
            item, event = rng.integers(ITEMS, size=ROWS), rng.integers(len(events), size=ROWS)
            reward = numbers(rng, item) if split != "test" or test is None else test(rng, item)
            silent = [code for code, name in enumerate(events) if earning is not None and name not in earning]
            reward = np.where(np.isin(event, silent), 0.0, reward)
            store.splits[split].append(np.full(ROWS // 6, 6), {"item": item, "event": event, "reward": reward})
        store.write_items(np.arange(ITEMS), np.ones(ITEMS, np.int64))
    return Prepared(folder)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("opinion", stars), ("amount", price), ("amount", basket), ("amount", quantity), ("measure", seconds)],
)
def test_numbers_alone_tell(tmp_path, kind, numbers):
    found = reward_kind(log(tmp_path / "data", numbers))
    assert found is not None and found.kind == kind
    assert found.events == ("view",)


@pytest.mark.parametrize(
    ("kind", "column"),
    [("amount", "sales_value"), ("measure", "dwell_time"), ("opinion", "stars"), ("amount", "Preis")],
)
@pytest.mark.parametrize("numbers", [stars, price, seconds])
def test_a_name_beats_the_numbers(tmp_path, kind, column, numbers):
    assert reward_kind(log(tmp_path / "data", numbers, column=column)).kind == kind


@pytest.mark.parametrize("said", ["opinion", "amount", "measure"])
def test_the_users_word_beats_name_and_numbers(tmp_path, said):
    found = reward_kind(log(tmp_path / "data", seconds, column="price", said=said))
    assert (found.kind, found.column) == (said, "price")


def test_what_only_sales_earn_is_an_amount(tmp_path):
    """Their numbers alone would be opinions, or measures."""
    events = ("purchase", "view")
    for number, numbers in enumerate((stars, seconds)):
        found = reward_kind(log(tmp_path / str(number), numbers, events=events, earning=("purchase",)))
        assert (found.kind, found.events, found.sales) == ("amount", ("purchase",), ("purchase",))
    everywhere = reward_kind(log(tmp_path / "everywhere", seconds, events=events))
    assert (everywhere.kind, everywhere.sales) == ("measure", ("purchase",))


def test_an_opinion_is_on_every_row(tmp_path):
    data = log(tmp_path / "data", stars, events=("listen", "rate"), earning=("rate",), column="rating")
    assert reward_kind(data).kind == "measure"
    assert reward_kind(log(tmp_path / "both", stars, events=("listen", "rate"), column="rating")).kind == "opinion"


def test_the_test_split_has_no_say(tmp_path):
    """Only the rows that judge hold numbers that vary, or other numbers."""
    for number, (numbers, test) in enumerate([(stars, price), (price, stars), (seconds, stars)]):
        alone, other = (
            log(tmp_path / f"{number}-{name}", numbers, test=change) for name, change in (("a", None), ("b", test))
        )
        assert reward_kind(alone) == reward_kind(other)
        assert reward_ranges(alone) == reward_ranges(other)

    def same(rng, item):
        return np.ones(len(item))

    assert reward_kind(log(tmp_path / "same", same, test=price)) is None


def test_rewards_by_event_have_no_kind(tmp_path):
    rows = [(visit, item, event) for visit in range(200) for item, event in ((visit % 5, "click"), (1, "purchase"))]
    sequence, item, event = zip(*rows, strict=True)
    frame = pa.table({"sequence_id": sequence, "item_id": item, "event": event})
    assert reward_kind(lp.prepare(frame, out=tmp_path / "data")) is None
    with pytest.raises(ConfigError, match="a column of rewards"):
        lp.prepare(frame, out=tmp_path / "said", reward_kind="amount")


def test_a_prepared_log_keeps_the_users_word_and_its_own_name_of_the_column(tmp_path):
    rng = np.random.default_rng(1)
    item = rng.integers(5, size=800)
    frame = pa.table({"sequence_id": np.repeat(np.arange(200), 4), "item_id": item, "event": ["buy"] * 800,
                      "brought": seconds(rng, item)})  # fmt: skip
    for said, kind in (("auto", "measure"), ("amount", "amount")):
        data = lp.prepare(frame, out=tmp_path / said, columns={"reward": "brought"}, reward_kind=said)
        found = reward_kind(data)
        assert (found.kind, found.column, found.sales) == (kind, "brought", ("buy",))


def test_views_earn_nothing_from_a_column_of_prices(tmp_path, caplog):
    """A log that joined every row with its item's price: what was viewed and left brought nothing; refunds stay."""
    kinds = ["view", "purchase", "view", "refund"]
    frame = pa.table({
        "sequence_id": np.repeat(np.arange(200), 4), "item_id": np.arange(800) % 7, "event": kinds * 200,
        "price": [5.0, 4.0, None, -3.0, 5.0, 2.0, 1.0, -3.0] * 100,
    })  # fmt: skip
    earned = {("view", 0.0), ("purchase", 4.0), ("purchase", 2.0), ("refund", -3.0)}
    for said in ("auto", "amount"):
        data = lp.prepare(frame, out=tmp_path / said, columns={"reward": "price"}, reward_kind=said)
        found = {(row["event"], row["reward"]) for row in data.to_frame()[["event", "reward"]].to_dict("records")}
        assert found == earned
        assert reward_kind(data).kind == "amount"
        question = question_of(data)
        assert (question.kind, question.amount) == ("rewards", "price") and "sales differ in price" in question.why
    assert 'rows of refund, view earn nothing. reward_kind="measure" takes them as they stand' in caplog.text
    with pytest.raises(DataError, match="reward is empty"):
        lp.prepare(frame, out=tmp_path / "measure", columns={"reward": "price"}, reward_kind="measure")
    assert unpaid_events(["view", "purchase"], "price", "measure") == ()
    assert unpaid_events(["view", "purchase"], "dwell_time", "auto") == ()
    assert unpaid_events(["row", "line"], "price", "auto") == (), "no event is named like a sale"


def test_a_log_of_views_and_sales_is_not_read_as_a_till(tmp_path):
    rows = "".join(
        f"{n % 90},{n * 7 % 11},{'buy' if n % 5 == 0 else 'view'},{n % 11 + 1}.5,{10**9 + n}\n" for n in range(900)
    )
    (tmp_path / "log.csv").write_text(f"user,item,event,price,time\n{rows}")
    meaning = " ".join(guess(tmp_path / "log.csv", columns={"reward": "price"}).meaning)
    assert "a log of actions" in meaning and "rows that are no sale earn nothing" in meaning


def test_events_that_are_ratings_are_opinions(tmp_path):
    visits = np.repeat(np.arange(200), 4)
    frame = pa.table({"sequence_id": visits, "item_id": np.arange(800) % 7, "rating": np.arange(800) % 5})
    data = lp.prepare(frame, out=tmp_path / "data", columns={"event": "rating"}, rewards=">=4=1,*=0")
    found = reward_kind(data)
    assert (found.kind, found.column) == ("opinion", "rating")


def test_sales_are_recognised_by_their_names():
    assert sale_events(["view", "add_purchase", "ORDER"]) == ("add_purchase", "ORDER")
    assert sale_events(["row"]) == ("row",)
