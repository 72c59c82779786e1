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


def test_while_they_are_written_the_folder_holds_names_of_ours_alone(tmp_path, monkeypatch):
    """What a kill leaves is swept away by its name, so nothing may have another."""
    seen = []
    write = weights._bytes
    monkeypatch.setattr(weights, "_bytes", lambda one: seen.append(os.listdir(tmp_path)) or write(one))
    save_weights(TENSORS, tmp_path / "weights.safetensors")
    assert len(seen) == len(TENSORS) and seen == [seen[0]] * len(seen)
    (name,) = seen[0]
    assert name.startswith("weights.safetensors.partial-")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_who_may_read_them_is_said_by_the_umask(mask, tmp_path):
    before = os.umask(mask)
    try:
        save_weights(TENSORS, tmp_path / "weights.safetensors")
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
