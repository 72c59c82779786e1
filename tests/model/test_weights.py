"""Weights on disk are plain safetensors, and no file but ours is ever in the folder."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import load_file, save

from localpolicy.model import weights
from localpolicy.model.weights import save_weights

TENSORS = {
    "heads.b": torch.arange(6.0).reshape(2, 3),
    "a": torch.tensor(3.0),
    "exact": torch.rand(3, dtype=torch.float64),
    "none of them": torch.zeros(0, 4),
    "ä": torch.tensor([1.5]),
}


def test_the_bytes_are_those_of_safetensors(tmp_path):
    save_weights(TENSORS, tmp_path / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").read_bytes() == save(TENSORS)
    found = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def test_writing_weights_leaves_no_foreign_file_names(tmp_path, monkeypatch):
    """Files that a kill leaves are removed by their name, so no file may have another."""
    seen = []
    write = weights._bytes
    monkeypatch.setattr(weights, "_bytes", lambda one: seen.append(os.listdir(tmp_path)) or write(one))
    save_weights(TENSORS, tmp_path / "weights.safetensors")
    assert len(seen) == len(TENSORS) and seen == [seen[0]] * len(seen)
    (name,) = seen[0]
    assert name.startswith("weights.safetensors.partial-")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_umask_decides_who_reads_the_weights(mask, tmp_path):
    before = os.umask(mask)
    try:
        save_weights(TENSORS, tmp_path / "weights.safetensors")
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
