"""The Transformer: its size, what a position may see, and decoding that finds what it should."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from quorate.workloads.drawing import drawn
from quorate.workloads.transformer import BEGIN, END, PADDING, SIZES, Sizes, Transformer, decode, positions

SMALL = Sizes(layers=2, width=16, heads=2, inner=24)


def model(vocabulary: int = 11, seed: int = 0) -> Transformer:
    return drawn(lambda: Transformer(vocabulary, SMALL), seed).eval()


def sentences(rows: int, length: int, vocabulary: int = 11) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(END + 1, vocabulary, (rows, length), generator=random)


def test_the_base_has_the_published_number_of_parameters() -> None:
    base = Transformer(37_000, SIZES["base"])
    assert sum(parameter.numel() for parameter in base.parameters()) == 63_082_496


def test_positions_are_those_of_the_paper() -> None:
    table = positions(3, 4, 8).double()
    places, rates = torch.arange(3, 7, dtype=torch.float64)[:, None], 1e4 ** -(torch.arange(0, 8, 2).double() / 8)
    torch.testing.assert_close(table, torch.cat([(places * rates).sin(), (places * rates).cos()], 1), atol=1e-6, rtol=0)


def test_scores_depend_on_no_later_token_and_on_no_padding() -> None:
    net, source, target = model(), sentences(3, 6), sentences(3, 7)
    scores = net(source, target)
    later = target.clone()
    later[:, 4:] = END
    torch.testing.assert_close(net(source, later)[:, :4], scores[:, :4])
    assert not torch.allclose(net(source, later)[:, 4:], scores[:, 4:])
    padding = torch.full((3, 5), PADDING)
    padded = net(torch.cat([source, padding], 1), torch.cat([target, padding], 1))
    torch.testing.assert_close(padded[:, :7], scores)


def greedy(net: Transformer, source: Tensor, longest: int) -> list[list[int]]:
    """Without keys that are kept: the full decoder for each token."""
    translations = []
    for row in source:
        written = [BEGIN]
        while len(written) <= longest and written[-1] != END:
            scores = net(row[None], torch.tensor([written]))[0, -1]
            scores[[PADDING, BEGIN]] = -torch.inf
            written.append(int(scores.argmax()))
        translations.append([token for token in written if token > END])
    return translations


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_takes_the_most_probable_token(seed: int) -> None:
    net, source = model(seed=seed), sentences(5, 6)
    with torch.no_grad():
        net.embedding.weight[END] *= 3  # so that some sentences end early
    translations = decode(net, source, 9)
    assert translations == greedy(net, source, 9)


@torch.no_grad()
def test_enough_beams_find_the_best_of_all_translations() -> None:
    source, longest = sentences(2, 4, vocabulary=6), 3
    tokens = range(END + 1, 6)
    ended = [[*row, END] for n in range(longest) for row in itertools.product(tokens, repeat=n)]
    candidates = [*ended, *(list(row) for row in itertools.product(tokens, repeat=longest))]
    exceptions = 0
    for seed, factor in ((9, 1.0), (0, 2.0)):  # with 2, a token depends more on those before it
        net = model(vocabulary=6, seed=seed)
        net.embedding.weight.mul_(factor)
        translations = decode(net, source, longest, beams=4**longest)
        for row, translation in zip(source, translations, strict=True):
            totals, values = [], []
            for candidate in candidates:
                scores = net(row[None], torch.tensor([[BEGIN, *candidate[:-1]]]))[0].log_softmax(1)
                totals.append(sum(float(scores[place, token]) for place, token in enumerate(candidate)))
                values.append(totals[-1] / ((5 + len(candidate)) / 6) ** 0.6)
            best, probable = (max(range(len(x)), key=x.__getitem__) for x in (values, totals))
            exceptions += best != probable
            assert translation == [token for token in candidates[best] if token > END]
    assert exceptions  # the length has decided at least once
