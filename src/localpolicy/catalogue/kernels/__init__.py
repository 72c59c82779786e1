"""Triton kernels over tiles of the catalogue. `fused` calls them; nothing else imports them, and they import Triton.

Each kernel walks tiles of [positions, items] that live in registers alone. Reductions over tiles have a fixed order,
so equal inputs give equal bits.
"""
