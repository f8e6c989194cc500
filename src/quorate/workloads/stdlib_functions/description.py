"""A corpus in words and a text histogram."""

from __future__ import annotations

import torch
from torch import Tensor

from quorate.workloads.stdlib_functions.corpus import Corpus

WIDTH = 40
"""Characters of the longest bar."""


def described(corpus: Corpus) -> list[str]:
    """Lines: how many functions and classes, the greatest classes, and how long the functions are."""
    number = len(corpus.labels)
    tested = int(corpus.is_test.sum())
    shares = torch.bincount(corpus.labels, minlength=len(corpus.classes))
    largest = [
        f"{corpus.classes[i]} {int(shares[i]) / number:.1%}" for i in shares.argsort(descending=True, stable=True)[:5]
    ]
    skipped = f", {len(corpus.skipped)} skipped" if corpus.skipped else ""
    return [
        f"stdlib-functions: {number} functions ({number - tested} training, {tested} test) of {corpus.files} files"
        f"{skipped}; vocabulary {len(corpus.vocabulary)}",
        f"{len(corpus.classes)} classes, the largest: {', '.join(largest)}",
        *length_lines(corpus.lengths),
    ]


def length_lines(lengths: Tensor) -> list[str]:
    """Mean, quantiles and a histogram in powers of two of `lengths` (n,), n >= 1."""
    exact = lengths.double()
    median, p90, p99 = (float(q) for q in exact.quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)))
    lines = [
        f"tokens per function: mean {float(exact.mean()):.1f}, median {median:.0f}, p90 {p90:.0f}, p99 {p99:.0f}, "
        f"max {int(lengths.max())}, all {int(lengths.sum())}"
    ]
    bins = torch.bincount(torch.tensor([int(length).bit_length() - 1 for length in lengths]))
    most = int(bins.max())
    first = int(bins.nonzero()[0])
    for power, count in enumerate(bins.tolist()[first:], first):
        bar = "#" * round(WIDTH * count / most)
        lines.append(f"{2**power:>6} to {2 ** (power + 1) - 1:<5}{count:>7} {bar}".rstrip())
    return lines
