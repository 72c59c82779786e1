"""Serving: export, lists with exact propensities, the HTTP service, its log, audit and rollout.

Answering requests (`recommender`, `sampling`, `filters`) needs numpy and onnxruntime alone, never torch.
"""
