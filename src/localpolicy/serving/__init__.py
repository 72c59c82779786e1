"""From a run to production and back: export, lists with exact propensities, the service, its log, audit and rollout.

What answers requests (`recommender`, `draw`, `filters`) needs numpy and onnxruntime alone, never torch.
"""
