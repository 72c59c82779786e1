"""Every figure the paper publishes in a table, as printed.

Source: Dawen Liang and Nikos Vlassis, "Local Policy Improvement for Recommender Systems", 2022: Table 1 (Netflix),
Table 2 (attributes of the data) and Table 3 (YooChoose, RetailRocket). The counts of Table 2 stand with the readers
that should find them (`localpolicy.data.readers`). The figures of section 4.2 were published as pictures alone.
"""

from __future__ import annotations

from typing import NamedTuple

METRICS = tuple(
    f"{event}.{name}@{k}" for event in ("purchase", "click") for name in ("HR", "nDCG") for k in (5, 10, 20)
)


class Published(NamedTuple):
    """A figure as printed; `se` is an upper bound where the paper says "on the order of", or "below"."""

    value: float
    se: float


_JS = "JS"
# Standard errors of hit rate and nDCG, from the table's heading; none is given for JS.
_ERRORS = {
    "yoochoose": {"purchase": 0.002, "click": 0.001},  # click: "< 0.001"
    "retailrocket": {"purchase": 0.007, "click": 0.002},
}
# Logits: policy; purchase HR@5 @10 @20, nDCG @5 @10 @20; click likewise; JS.
_TABLE3 = {
    "yoochoose": """
mle             0.317 0.411 0.493 0.227 0.258 0.279 0.464 0.552 0.628 0.376 0.404 0.423 -
reward_weighted 0.322 0.415 0.496 0.232 0.262 0.283 0.461 0.547 0.623 0.373 0.401 0.420 0.089
pg              0.318 0.411 0.490 0.227 0.257 0.277 0.457 0.543 0.617 0.371 0.399 0.417 0.095
ips_pg          0.245 0.295 0.344 0.187 0.203 0.215 0.100 0.123 0.148 0.076 0.083 0.089 0.526
sqn             0.366 0.460 0.539 0.266 0.296 0.316 0.479 0.567 0.642 0.387 0.415 0.434 0.159
sac             0.364 0.458 0.537 0.266 0.297 0.317 0.473 0.561 0.637 0.384 0.413 0.432 0.167
lpi_rl          0.372 0.469 0.547 0.271 0.303 0.323 0.479 0.567 0.643 0.388 0.417 0.436 0.156
""",
    "retailrocket": """
mle             0.631 0.669 0.698 0.551 0.563 0.571 0.445 0.494 0.537 0.374 0.390 0.401 -
reward_weighted 0.631 0.663 0.689 0.561 0.572 0.578 0.440 0.487 0.528 0.373 0.388 0.398 0.282
pg              0.621 0.660 0.687 0.545 0.558 0.565 0.444 0.491 0.533 0.375 0.391 0.401 0.282
ips_pg          0.257 0.270 0.285 0.224 0.228 0.232 0.107 0.117 0.127 0.089 0.093 0.095 0.571
sqn             0.663 0.702 0.723 0.593 0.605 0.611 0.468 0.520 0.567 0.396 0.413 0.424 0.270
sac             0.654 0.689 0.716 0.578 0.589 0.596 0.462 0.512 0.556 0.393 0.409 0.421 0.301
lpi_rl          0.665 0.700 0.724 0.599 0.610 0.616 0.471 0.522 0.567 0.400 0.416 0.428 0.273
""",
}
# Logits: policy; AR@1, iAR@1, JS. "The standard errors on all three metrics are on the order of 10^-4."
_TABLE1 = """
mle               0.060 0.696 -
reward_weighted   0.060 0.727 0.094
ips               0.030 0.690 0.504
lpi_cb β=0.001    0.023 0.706 0.223
lpi_cb β=0.1      0.061 0.739 0.118
lpi_cb β=1        0.061 0.717 0.087
lpi_cb β=1000     0.060 0.698 0.081
"""


def table1() -> dict[str, dict[str, Published]]:
    """By policy: AR@1, iAR@1 and JS on the Netflix Prize."""
    rows = _rows(_TABLE1)
    return {
        policy: {
            name: Published(value, 1e-4)
            for name, value in zip(("AR@1", "iAR@1", _JS), values, strict=True)
            if value is not None
        }
        for policy, values in rows.items()
    }


def table3(source: str) -> dict[str, dict[str, Published]]:
    """By policy: the twelve ranking figures and JS on one data set; nothing where it is not one of the paper's."""
    if source not in _TABLE3:
        return {}
    errors = {name: _ERRORS[source][name.partition(".")[0]] for name in METRICS}
    return {
        policy: {
            name: Published(value, errors.get(name, float("nan")))
            for name, value in zip((*METRICS, _JS), values, strict=True)
            if value is not None
        }
        for policy, values in _rows(_TABLE3[source]).items()
    }


def _rows(text: str) -> dict[str, list[float | None]]:
    """Numbers by the words before them."""
    table: dict[str, list[float | None]] = {}
    for line in text.strip().splitlines():
        words = line.split()
        first = next(column for column, word in enumerate(words) if word == "-" or word[0].isdigit())
        table[" ".join(words[:first])] = [None if word == "-" else float(word) for word in words[first:]]
    return table
