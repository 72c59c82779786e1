"""Item features on a GPU: captured and fused steps give the weights of single, chunked steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from forms import weighted
from small_logs import small_item_table, write_small

from localpolicy.runs.config import Config
from localpolicy.training.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["mle", "lpi_rl"])
def test_fused_and_captured_equal_chunked(name, precision, tmp_path):
    ids = np.arange(100, 112)
    data = write_small(tmp_path / "data", item_id=ids, item_table=small_item_table(ids))
    model = {"width": 16, "dropout": 0.0, "features": ["brand", "tags", "price", "text"], "id_dropout": 0.0}

    def trained(**how):
        settings = {"device": "cuda", "epochs": 3, "batch_size": 16, "precision": precision, **how}
        config = Config.parse({"model": model, "objective": weighted({"name": name}), "train": settings})
        return train(data, out=tmp_path / how["catalogue"], config=config)

    fused, chunked = trained(catalogue="fused", capture=True), trained(catalogue="chunked", capture=False)
    assert fused.manifest["steps_captured"], fused.manifest["steps_not_captured"]
    close = 2e-3 if precision == "float32" else 2e-2
    for ours, theirs in zip(fused.metrics(), chunked.metrics(), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=close, abs=close / 10)
