"""What critics credit on logs of actions: first meetings by default, rows where asked; and what is then shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from broken_runs import train_until
from shop_logs import write_shop
from small_logs import write_small

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError
from localpolicy.objectives.lpi import DISCOUNT, LPI, LPIBandit
from localpolicy.report.results import run_table
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_yaml, write_text
from localpolicy.training.setup import resolve
from localpolicy.training.train import train


def config(name="lpi_rl", *, objective=None, **changes):
    settings = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", **changes}
    return Config.parse({"model": {"width": 8}, "objective": {"name": name, **(objective or {})}, "train": settings})


def write_views(path, *, sequences=400, items=8, seed=0) -> Prepared:
    """Write views of random products that all sell equally: half of the views are followed by a purchase."""
    rng = np.random.default_rng(seed)
    with writing(path, kind="interactions", events=["view", "purchase"], rewards={"view": 0.2, "purchase": 1}) as store:
        for split, share in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
            rows, lengths = [], []
            for _ in range(int(share * sequences)):
                before = len(rows)
                for item in rng.permutation(items)[:4]:
                    rows += [(item, 0, 0.2)] + [(item, 1, 1.0)] * int(rng.random() < 0.5)
                lengths.append(len(rows) - before)
            item, event, reward = (np.array(column) for column in zip(*rows, strict=True))
            store.splits[split].append(np.array(lengths), {"item": item, "event": event, "reward": reward})
        store.write_items(np.arange(items), np.ones(items, np.int64))
    return Prepared(path)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return write_shop(tmp_path_factory.mktemp("credit") / "shop", items=6)


@pytest.mark.parametrize("name", ["lpi_rl", "lpi_cb"])
def test_first_meetings_are_credited_on_logs_of_actions_and_rows_where_it_is_stated_what_was_shown(name, shop, small):
    assert resolve(config(name), shop).objective.credit == "meetings"
    assert resolve(config(name), small).objective.credit == "rows"
    assert resolve(config(name, objective={"credit": "rows"}), shop).objective.credit == "rows"


def test_ratings_and_logs_without_prices_are_read_row_by_row(tmp_path):
    alike = write_small(tmp_path / "alike", propensity=False, rewards={"none": 1.0, "click": 1.0, "purchase": 1.0})
    assert resolve(config(), alike).objective.credit == "rows"


def test_the_discount_follows_the_credit_unless_it_is_given(shop, small):
    assert resolve(config(), shop).objective.gamma is None and resolve(config(), shop).objective.discount == 0
    assert resolve(config(), small).objective.gamma == DISCOUNT
    assert resolve(config(objective={"credit": "rows"}), shop).objective.gamma == DISCOUNT
    given = resolve(config(objective={"gamma": 0.9}), shop).objective
    assert (given.gamma, given.credit) == (0.9, "rows")
    with pytest.raises(ConfigError, match="all later rewards of its item, undiscounted"):
        LPI(gamma=0.9, credit="meetings")
    assert LPI().critic_objective("").gamma == DISCOUNT
    assert LPI(credit="meetings").critic_objective("").gamma == LPIBandit().critic_objective("").gamma == 0


def test_first_meetings_of_what_was_shown_are_refused(small, tmp_path):
    with pytest.raises(ConfigError, match="every row is a choice of its own. Use rows"):
        train(small, out=tmp_path / "run", config=config(objective={"credit": "meetings"}))


def test_if_all_products_sell_equally_the_policy_stays_and_repeats_no_views(tmp_path):
    """Row by row, the product just viewed seems to earn five times as much, since it is bought next."""
    data, shown = write_views(tmp_path / "data"), {}
    for credit in ("rows", "meetings"):
        asked = config(objective={"credit": credit}, epochs=12)
        policy = train(data, out=tmp_path / credit, config=asked).policy()
        chance = {}
        for each, name in ((policy, "new"), (policy.logging(), "log")):
            logp = each.log_probabilities([[0], [3], [5]], [["view"]] * 3)
            chance[name] = logp[torch.arange(3), torch.tensor([0, 3, 5])].exp().mean().item()
        shown[credit] = chance["new"] / chance["log"]
    assert shown["rows"] > 1.3
    assert shown["meetings"] == pytest.approx(1, abs=0.1)


def test_a_stopped_run_resumes_to_the_same_bytes(shop, tmp_path):
    asked = config(objective={"beta": 0.3, "calibrate_critic": False}, checkpoint_every=2)
    whole = train(shop, out=tmp_path / "whole", config=asked)
    train_until(4, shop, out=tmp_path / "broken", config=asked, objective="critic")
    broken = train(shop, out=tmp_path / "broken", config=asked, resume=True)
    for name in ("policy.safetensors", "policy.json", "metrics.jsonl"):
        assert (whole.folder / name).read_bytes() == (broken.folder / name).read_bytes(), name


def test_an_older_run_that_credits_rows_resumes_with_rows(shop, tmp_path):
    begun = Run(tmp_path / "run")
    begun.folder.mkdir()
    begun.write_config(resolve(config(objective={"credit": "rows"}), shop))
    written = read_yaml(begun.folder / "config.yaml")
    del written["objective"]["credit"]
    write_text(begun.folder / "config.yaml", yaml.safe_dump(written))
    resumed = resolve(config(), shop, begun=begun).objective
    assert resumed == begun.config.objective
    assert resumed.critic_objective("") == LPI(credit="rows").critic_objective("")


def test_the_critics_epoch_and_calibration_use_first_meetings(shop, tmp_path):
    run = train(shop, out=tmp_path / "run", config=config())
    earned = []
    for half in range(2):
        windows = Windows(shop, "validation", run.config.data).part(half, 2).of_first_meetings()
        batch = windows.cut(windows._numbers(torch.arange(len(windows))))
        earned.append(batch.reward[batch.scored if half == 0 else batch.scored_after(1)].double())
    chosen = [line["validation"]["constant_error"] for line in run.metrics() if line["stage"] == "critic-1"]
    assert chosen == pytest.approx([earned[0].var(correction=0).item()] * len(chosen))
    assert run.manifest["improvement"]["calibration"]["n"] == len(earned[1])
    assert "(closed form; first meetings, undiscounted)" in run.summary()
    assert "(closed form; first meetings, undiscounted)" in run_table(run).title, "the terminal says so, too"
    assert run.manifest["improvement"]["critic_error"]["constant"] == pytest.approx(earned[1].var(correction=0).item())


def test_rows_are_credited_if_held_out_meetings_earn_nothing(tmp_path):
    """Before: with the last action alone held out every credit was that of a view, and the critic was silenced."""
    data = write_views(tmp_path / "data")
    assert resolve(config(), data).objective.credit == "meetings"
    last = config().with_changes(["data.last=1"])
    found = resolve(last, data).objective
    assert (found.credit, found.gamma) == ("rows", DISCOUNT)
    with pytest.raises(ConfigError, match="all earned the same, so they say nothing of a critic"):
        resolve(last.with_changes(["objective.credit=meetings"]), data)


def test_what_was_no_choice_is_no_first_meeting(tmp_path):
    """Before: rows that say what is known beforehand were credited, and made the mean of repeats smaller."""
    events = ["context", "view", "purchase"]
    with writing(tmp_path / "data", kind="interactions", events=events, rewards={"view": 0.2, "purchase": 1}) as store:
        for split in ("train", "validation", "test"):
            columns = {"item": [0, 1, 1, 2, 2], "event": [0, 1, 2, 1, 1], "reward": [0, 0.2, 1, 0.2, 0.2]}
            store.splits[split].append(np.array([5]), {name: np.array(each) for name, each in columns.items()})
        store.write_items(np.arange(3), np.ones(3, np.int64))
    data = Prepared(tmp_path / "data")
    windows = Windows(data, "train", config().data)
    alone, every = windows.of_first_meetings(), windows.of_first_meetings(repeats=True)
    (batch,), (whole,) = alone.in_order(8), every.in_order(8)
    assert batch.reward[batch.scored].tolist() == pytest.approx([1.2, 0.2]), "of products 1 and 2"
    assert whole.reward[whole.scored].tolist() == pytest.approx([1.2, 0.7, 0.2, 0.7]), "repeats earn the mean of these"


def test_an_objective_of_ones_own_need_not_know_of_credits(shop):
    class Mine(LPIBandit):
        def resolved(self, *, propensities):
            return self.model_copy(update={"beta": 2.0 if propensities else 1.0})

    found = resolve(config().model_copy(update={"objective": Mine()}), shop).objective
    assert (found.beta, found.credit) == (1.0, "meetings")
