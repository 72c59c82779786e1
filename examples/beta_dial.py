"""One model, every β: the dial μ̂ exp(Q/β), and a budget on divergence instead of a β.

python examples/beta_dial.py
"""

import tempfile
from pathlib import Path

from localpolicy import beta_within, configure, simulate, train
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    simulate("store", here / "data", sequences=1_000, items=60, prepared=True)
    data = Prepared(here / "data")
    run = train(
        data, out=here / "sqn", config=configure(changes=["objective.name=sqn", "train.epochs=3", "model.width=16"])
    )
    policy = run.policy()
    windows = Windows(data, "validation", run.config.data)
    for budget in (0.01, 0.1, 0.5):
        tilt = beta_within(policy, windows, max_kl=budget)
        print(f"KL from μ̂ within {budget}: β = {tilt.beta:.4f} (KL {tilt.kl:.4f}, JS {tilt.js:.4f})")
