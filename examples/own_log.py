"""Prepare your own CSV, train on it, and recommend a list of items.

    python examples/own_log.py

Replace the simulated CSV by your file: one row per event, with a column for the sequence (a session or a user), the
item, what happened, and the time.
"""

import csv
import random
import tempfile
from pathlib import Path

from localpolicy import configure, prepare, train


def write_csv(path: Path) -> None:
    """A shop where people who look at an even item tend to look at the next one."""
    chance = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["session", "product", "what", "when"])
        for session in range(600):
            item = chance.randrange(20)
            for step in range(chance.randrange(2, 8)):
                rows.writerow(
                    [f"s{session}", f"p{item}", "buy" if chance.random() < 0.1 else "view", 1_700_000_000 + step]
                )
                item = (item + 1) % 20 if item % 2 == 0 else chance.randrange(20)


with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    write_csv(here / "shop.csv")
    data = prepare(
        "events",
        [here / "shop.csv"],
        out=here / "data",
        columns={"sequence_id": "session", "item_id": "product", "event": "what", "timestamp": "when"},
        rewards={"buy": 1.0, "view": 0.2},
    )
    # Few sequences are held out here: likelihood is a steadier judge of epochs than the rank of a handful of purchases.
    settings = configure(
        changes=[
            "objective.name=lpi_cb",
            "objective.beta=0.3",
            "train.epochs=15",
            "train.batch_size=32",
            "train.learning_rate=0.01",
            "train.select=logp",
        ]
    )
    run = train(data, out=here / "run", config=settings)
    lists = run.policy().recommend([["p4"], ["p3", "p8"]], 3)
    for items, chances in zip(lists.items, lists.log_probability.exp().tolist(), strict=True):
        print(", ".join(f"{item} ({chance:.0%})" for item, chance in zip(items, chances, strict=True)))
