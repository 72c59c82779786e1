"""Weighted matrix factorisation at the size of MovieLens-25M, compared with the `implicit` library's ALS.

    python benchmarks/factorisation.py [--ratings 25000000] [--users 162000] [--items 59000] [--rank 50] [--sweeps 1]

Simulated ratings with heavy-tailed users and items. Each way runs in its own process, so that its peak memory is its
own. `implicit` (skipped where it is not installed) minimises a related weighted sum by conjugate gradients, three
steps a sweep, where ours solves the normal equations exactly; `exact` is its own exact solver.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from localpolicy.measure.imputation import FactorisationConfig, Ratings, factorise


def simulated(count: int, users: int, items: int) -> Ratings:
    """`count` distinct pairs, popular items and busy users more often; ratings 0.5 to 5."""
    rng = np.random.default_rng(0)
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        more = int((count - len(keys)) * 1.3) + 1000
        user = (users * rng.random(more) ** 2).astype(np.int64)
        item = (items * rng.random(more) ** 3).astype(np.int64)
        keys = np.unique(np.concatenate([keys, user * items + item]))
    keys = np.sort(rng.permutation(keys)[:count])
    value = rng.integers(1, 11, count, dtype=np.int8).astype(np.float32) / 2
    return Ratings(keys // items, keys % items, value, users, items)


def ours(ratings: Ratings, rank: int, sweeps: int) -> None:
    """Alternating least squares, exactly solved."""
    factorise(ratings, FactorisationConfig(rank=rank, sweeps=sweeps))


def theirs(ratings: Ratings, rank: int, sweeps: int, *, exact: bool) -> None:
    """`implicit`'s ALS."""
    from implicit.als import AlternatingLeastSquares
    from scipy import sparse

    shape = (ratings.n_users, ratings.n_items)
    matrix = sparse.csr_matrix((ratings.value, (ratings.user, ratings.item)), shape=shape)
    model = AlternatingLeastSquares(
        factors=rank, iterations=sweeps, use_cg=not exact, num_threads=torch.get_num_threads(), random_state=0
    )
    model.fit(matrix, show_progress=False)


def main() -> None:
    """Run every way in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=int, default=25_000_000)
    parser.add_argument("--users", type=int, default=162_000)
    parser.add_argument("--items", type=int, default=59_000)
    parser.add_argument("--rank", type=int, default=50)
    parser.add_argument("--sweeps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--way", choices=["ours", "implicit", "implicit exact"], help="run one way in this process")
    options = parser.parse_args()
    if options.way is None:
        ways = ["ours"]
        ways += ["implicit", "implicit exact"] if importlib.util.find_spec("implicit") else []
        for way in ways:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--way", way], check=True)
        return
    torch.set_num_threads(options.threads)
    ratings = simulated(options.ratings, options.users, options.items)
    began, worked = time.perf_counter(), time.process_time()
    if options.way == "ours":
        ours(ratings, options.rank, options.sweeps)
    else:
        theirs(ratings, options.rank, options.sweeps, exact=options.way.endswith("exact"))
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    what = f"{options.way:15s} {options.sweeps} sweeps of {len(ratings.user):,} ratings"
    # On a shared machine the processor's seconds say more than the clock's.
    print(f"{what}  {seconds:7.1f} s ({worked:.1f} s of processor)  {peak:5.2f} GiB")


if __name__ == "__main__":
    main()
