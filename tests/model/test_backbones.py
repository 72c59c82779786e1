"""Backbones and the flat layout: causal, blind to other sequences, and off without dropout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import ITEMS, SEQUENCES, network, prepared, whole
from torch import nn

from localpolicy.data.batches import batch_of_histories
from localpolicy.errors import ConfigError
from localpolicy.model.backbones import BACKBONES, Layout, backbone_called
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.types import START

each_backbone = pytest.mark.parametrize("backbone", list(BACKBONES))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data") / "prepared")


@each_backbone
@pytest.mark.parametrize("event_embeddings", [False, True])
def test_a_later_token_never_changes_an_earlier_state(data, backbone, event_embeddings):
    made, batch = network(backbone=backbone, event_embeddings=event_embeddings), whole(data)
    before = made.hidden(batch)
    for token in range(len(batch.row)):
        if batch.previous_item[token] == START:
            continue
        item, event = batch.previous_item.clone(), batch.previous_event.clone()
        item[token] = (item[token] + 1) % ITEMS
        event[token] = 1 - event[token]
        after = made.hidden(replace(batch, previous_item=item, previous_event=event))
        moved = (after - before).abs().amax(1) > 1e-9
        later = (batch.row == batch.row[token]) & (batch.column >= batch.column[token])
        assert moved[token], "a token must see itself"
        assert not (moved & ~later).any()


@each_backbone
def test_a_token_sees_its_whole_history(data, backbone):
    """Changing the first item of a window reaches its last state (windows are within the reach of all backbones)."""
    made, batch = network(backbone=backbone), whole(data)
    rows = [row for row in range(batch.size) if batch.previous_item[(batch.row == row) & (batch.column == 0)] != START]
    assert rows
    item = batch.previous_item.clone()
    item[batch.column == 0] = torch.where(
        item[batch.column == 0] == START, START, (item[batch.column == 0] + 1) % ITEMS
    )
    moved = (made.hidden(replace(batch, previous_item=item)) - made.hidden(batch)).abs().amax(1) > 1e-9
    for row in rows:
        assert moved[batch.row == row].all()


@each_backbone
@pytest.mark.parametrize("event_embeddings", [False, True])
def test_a_batch_is_each_sequence_alone(data, backbone, event_embeddings):
    """Windows of 1 to 5 tokens in one batch: states and gradients equal those of one after another."""
    made, batch = network(backbone=backbone, event_embeddings=event_embeddings), whole(data)
    assert len(set(torch.bincount(batch.row).tolist())) > 1, "lengths must differ"
    weight = torch.linspace(-1, 1, len(batch.row), dtype=torch.float64)[:, None]
    together = made.hidden(batch)
    (weight * together).sum().backward()
    gradients = {
        name: parameter.grad.clone() for name, parameter in made.named_parameters() if parameter.grad is not None
    }
    made.zero_grad()
    alone = []
    for row in range(batch.size):
        mine = batch.row == row
        one = replace(
            batch, sequences=torch.zeros(1, dtype=torch.long), row=torch.zeros(int(mine.sum()), dtype=torch.long),
            column=batch.column[mine], previous_item=batch.previous_item[mine],
            previous_event=batch.previous_event[mine],
        )  # fmt: skip
        alone.append(made.hidden(one))
        (weight[mine] * alone[-1]).sum().backward()
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-11, atol=1e-12)
    assert len(gradients) > 5
    for name, parameter in made.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-11)


@each_backbone
def test_training_states_are_those_of_serving(data, backbone):
    """The state at a step of a window equals the state of the history before it, given as a history."""
    made, batch = network(backbone=backbone, event_embeddings=True, length=20), whole(data, length=20)
    hidden = made.hidden(batch)
    for row, sequence in enumerate(SEQUENCES):
        for step in range(len(sequence)):
            items, events = [a[0] for a in sequence[:step]], [a[1] for a in sequence[:step]]
            one = batch_of_histories([items], [events], length=20)
            token = int(((batch.row == row) & (batch.column == step)).nonzero())
            torch.testing.assert_close(made.hidden(one)[one.scored[0]], hidden[token], rtol=1e-11, atol=1e-12)


@each_backbone
def test_hidden_without_dropout_restores_the_mode(data, backbone):
    made, batch = network(backbone=backbone, dropout=0.5), whole(data)
    made.train()
    assert not torch.equal(made.hidden(batch), made.hidden(batch)), "dropout must be on for this to prove anything"
    still = made.hidden_without_dropout(batch)
    assert made.training and all(module.training for module in made.modules())
    assert not still.requires_grad
    assert torch.equal(still, made.hidden_without_dropout(batch))
    torch.testing.assert_close(still, made.eval().hidden(batch).detach(), rtol=0, atol=0)


def test_closed_gates_add_nothing_and_open_ones_the_whole_branch(data):
    """σ(-∞) leaves h as it is; σ(+∞) and attention of one token alone leave W (silu(A x) ⊙ B x) to write out."""
    made = network(backbone="gated", blocks=1, dropout=0).double()
    (block,), lone = made.backbone.blocks, batch_of_histories([[]], length=5)
    first = made.embed(lone) + made.backbone.position[:1]
    gates = (block.gate_attention, block.gate_mlp)

    def hidden(attention: float, mlp: float):
        with torch.no_grad():
            for gate, bias in zip(gates, (attention, mlp), strict=True):
                gate.weight.zero_()
                gate.bias.fill_(bias)
        return made.hidden(lone)

    torch.testing.assert_close(hidden(-1e9, -1e9), made.backbone.norm(first))
    value = block.project_in(block.norm_attention(first))[:, 2 * first.shape[1] :]
    torch.testing.assert_close(hidden(1e9, -1e9), made.backbone.norm(first + block.project_out(value)))
    a, b = block.wide.weight.chunk(2)
    x = block.norm_mlp(first)
    branch = (x @ a.T * torch.sigmoid(x @ a.T) * (x @ b.T)) @ block.narrow.weight.T
    torch.testing.assert_close(hidden(-1e9, 1e9), made.backbone.norm(first + branch))


def test_every_part_of_the_input_matters(data):
    made, batch = network(event_embeddings=True), whole(data)
    before = made.hidden(batch)
    events = made.hidden(
        replace(batch, previous_event=torch.where(batch.previous_item == START, 0, 1 - batch.previous_event))
    )
    assert ((events - before).abs().amax(1) > 1e-9)[batch.column > 0].all()
    without = network(event_embeddings=False)
    assert torch.equal(without.hidden(batch), without.hidden(replace(batch, previous_event=1 - batch.previous_event)))
    # START is its own vector, and no item's: not even the first's, which its index is clamped to.
    with torch.no_grad():
        made.embedding[0] += torch.linspace(-2, 1, 8)  # not a constant, which norms would take away
    lone = batch_of_histories([[]], length=5)
    torch.testing.assert_close(made.hidden(lone), network(event_embeddings=True).hidden(lone))


def test_flatten_inverts_pad():
    layout = Layout(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 0]), rows=3, columns=2)
    flat = torch.tensor([[1.0], [2.0], [3.0]])
    assert layout.pad(flat).squeeze(2).tolist() == [[1, 2], [0, 0], [3, 0]]
    assert torch.equal(layout.flatten(layout.pad(flat)), flat)


def test_any_module_can_be_the_backbone(data):
    class Mean(nn.Module):
        """Running mean of the embedded tokens."""

        def forward(self, embedded, layout):
            block = layout.pad(embedded)
            return layout.flatten(block.cumsum(1) / torch.arange(1, layout.columns + 1)[None, :, None])

    torch.manual_seed(0)
    made = Network(ModelConfig(width=4), items=ITEMS, events=0, length=5, backbone=Mean()).double()
    batch = whole(data)
    embedded, hidden = made.embed(batch), made.hidden(batch)
    last = (batch.row == 2).nonzero().squeeze(1)
    torch.testing.assert_close(hidden[last[-1]], embedded[last].mean(0))


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"width \(8\) must be a multiple of model.heads \(3\)"):
        Network(ModelConfig(width=8, heads=3), items=ITEMS, events=0, length=5)


@pytest.mark.parametrize("histories", [[[1, 2, 3, 4, 5], [], [6]], [[1, 2], [3, 4], [5, 6]]])  # the latter fill a block
@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_ends_alone_are_as_they_would_be_among_all_tokens(histories, blocks, heads):
    torch.manual_seed(0)
    config = ModelConfig(width=8, blocks=blocks, heads=heads)
    network = Network(config, items=9, events=1, length=4).double().eval()
    ends = batch_of_histories(histories, length=4)
    assert ends.ends_only
    whole = network.hidden_without_dropout(replace(ends, ends_only=False))[ends.scored]
    torch.testing.assert_close(network.hidden_without_dropout(ends)[ends.scored], whole)
    alone = [network.hidden_without_dropout(batch_of_histories([history], length=4))[-1] for history in histories]
    torch.testing.assert_close(torch.stack(alone), whole)


@pytest.mark.parametrize("name", ["os:system", "os:path", "builtins:dict", "localpolicy.errors:nearest"])
def test_a_name_in_a_file_is_never_called_unless_it_is_a_network(name):
    with pytest.raises(ConfigError, match=r"not a subclass of torch\.nn\.Module"):
        backbone_called(name)
