"""Items have features: a frame of what is known of them, an item nobody has seen, and new ones without training.

python examples/item_features.py
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import localpolicy as lp

draw = np.random.default_rng(0)
films = pd.DataFrame(
    {
        "item_id": range(60),
        "genre": [("western", "comedy", "horror")[film % 3] for film in range(60)],
        "minutes": draw.normal(100, 15, 60).round(),
        "title": [f"Film {film}" for film in range(60)],
    }
)
genre = films["genre"].to_numpy()
rows = []
for person in range(300):  # most people stay with a genre; nobody has seen the last three films yet
    own = np.flatnonzero(genre[:57] == draw.choice(genre))
    for time in range(8):
        rows.append((person, draw.choice(own) if draw.random() < 0.9 else draw.integers(57), time))
log = pd.DataFrame(rows, columns=["sequence_id", "item_id", "timestamp"])

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    data = lp.prepare(log, items=films, out=here / "data", event="click")
    run = lp.train(data, "mle", out=here / "run", epochs=6, width=16, learning_rate=0.01)
    print("learnt from:", run.config.model.features)  # minutes are not informative here, and titles are only shown
    lists = run.recommend([[0, 3, 6], [1, 4, 7]], k=5, exclude_seen=True)
    print(lists.to_frame())
    print(lp.similar(run, [0], k=3))

    new = pd.DataFrame({"item_id": [100, 101], "genre": ["western", "horror"], "title": ["New West", "New Fright"]})
    wider = lp.extend(run, new, out=here / "wider")
    for title, history in (("westerns", [0, 3, 6]), ("horror", [2, 5, 8])):
        p = wider.policy().log_probabilities([history]).exp()[0, -2:]
        print(f"after {title}: New West {p[0]:.4f}, New Fright {p[1]:.4f}")
