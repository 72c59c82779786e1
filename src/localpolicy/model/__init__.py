"""The policy network: backbones, heads, the readout of a batch, and `Policy`, which everything else holds."""
