"""SASRec and the convolution can be exported: torch traces them, and the graph computes equal numbers."""

from __future__ import annotations

import pytest
import torch

from localpolicy.model.backbones import BACKBONES, Layout


class Traced(torch.nn.Module):
    """A backbone on two sequences of five tokens."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, embedded, row, column):
        return self.backbone(embedded, Layout(row, column, 2, 5))


@pytest.mark.parametrize("name", ["sasrec", "gated", "convolution"])  # torch cannot trace nn.GRU this way
def test_the_exported_graph_gives_the_same_numbers(name):
    torch.manual_seed(0)
    module = Traced(BACKBONES[name](width=16, length=20, blocks=1, heads=2, dropout=0.1)).eval()
    given = (torch.randn(10, 16), torch.arange(2).repeat_interleave(5), torch.arange(5).repeat(2))
    with torch.no_grad():
        graph = torch.export.export(module, given).module()
        fresh = (torch.randn(10, 16), *given[1:])
        expected = module(*fresh)
        torch.testing.assert_close(graph(*fresh), expected, rtol=1e-5, atol=1e-5)
        assert (expected - module(*given)).abs().max() > 0.1
