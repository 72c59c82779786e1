"""Measuring a policy: ranking, reward, divergence from the logging policy, truth where a world gives it."""
