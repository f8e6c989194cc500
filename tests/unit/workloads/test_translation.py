"""Translation: batches of unequal work, what is learned, chrF, decoding, and what is refused."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError, MissingExtra
from quorate.core.workload import per_example
from quorate.workloads import translation
from quorate.workloads.transformer import BEGIN, END, PADDING
from quorate.workloads.translation import ByteTokens, Translation, chrf
from tests.support.workload_files import write_translations


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(write_translations(tmp_path / "packages", 800))


def made(folder: str, **settings: Any) -> Translation:
    return Translation(**{"folders": (folder,), "use_cache": False, "size": "tiny", **settings})


def test_the_work_of_batches_varies_as_their_longest_sentences(folder: str) -> None:
    workload = made(folder)
    data = workload.dataset(train=True)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    steps = [order[first : first + 16] for first in range(0, len(order) - 15, 16)]
    tokens = torch.tensor([float(workload.collate([data[place] for place in step]).tokens) for step in steps])
    assert float(tokens.std() / tokens.mean()) >= 0.3


def test_a_batch_is_padded_behind_the_ends_of_its_sentences(folder: str) -> None:
    workload = made(folder)
    data = workload.dataset(train=True)
    examples = [data[place] for place in range(4)]
    batch = workload.collate(examples)
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert batch.tokens == 4 * (max(len(s) for s, _ in examples) + max(len(t) for _, t in examples) - 1)
    for row, (source, target) in enumerate(examples):
        assert batch.source[row, : len(source)].tolist() == source.tolist()
        assert not batch.source[row, len(source) :].any() and not batch.target[row, len(target) :].any()
        assert (int(source[-1]), int(target[0]), int(target[-1])) == (END, BEGIN, END)
        assert data.lengths[row] == len(source) + len(target)


def test_tests_are_of_other_sentences_and_long_ones_are_left_out(folder: str) -> None:
    workload = made(folder, longest=60, test_pairs=10)
    training, test = workload.dataset(train=True), workload.dataset(train=False)
    assert len(test) == 10
    sources = [{tuple(data[place][0].tolist()) for place in range(len(data))} for data in (training, test)]
    assert sources[0].isdisjoint(sources[1])
    assert max(map(len, sources[0] | sources[1])) == 61
    assert len(made(folder, limit=50).dataset(train=True)) < 50


def test_a_long_sentence_in_either_language_leaves_a_pair_out(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "x.en", tmp_path / "x.de"
    short = [f"{place} a" for place in range(40)]
    ours.write_text("\n".join([*short, *(f"{line} long long long" for line in short), *short]), encoding="utf-8")
    theirs.write_text("\n".join([*short[::-1], *short, *(f"{line} lang lang" for line in short)]), encoding="utf-8")
    workload = Translation(pairs=(str(ours), str(theirs)), longest=6)
    assert sum(len(workload.dataset(train=train)) for train in (True, False)) == 40
    assert sum(len(Translation(pairs=workload.pairs).dataset(train=train)) for train in (True, False)) == 120


def test_bytes_are_tokens_of_any_text() -> None:
    tokens = ByteTokens()
    assert tokens.decode(tokens.encode("Öl, 油")) == "Öl, 油"
    assert tokens.decode([BEGIN, *tokens.encode("a"), END, PADDING]) == "a"


def test_an_epoch_learns_more_than_how_often_each_byte_occurs(folder: str) -> None:
    workload = made(folder, longest=60, warm_up=10, test_pairs=16)
    model, data, test = workload.model(0), workload.dataset(train=True), workload.dataset(train=False)
    optimizer = workload.optimizer(model)
    for step, first in enumerate(range(0, len(data), 8), 1):
        optimizer.param_groups[0]["lr"] = workload.rate(step) * workload.learning_rate
        batch = workload.collate([data[place] for place in range(first, min(first + 8, len(data)))])
        workload.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    quality = per_example(workload.quality(model, workload.collate([test[place] for place in range(len(test))])))
    assert quality["cross_entropy"] < workload.unigram_bound() - 0.1


def test_the_bound_is_the_entropy_of_single_bytes(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "x.en", tmp_path / "x.de"
    ours.write_text("\n".join(f"sentence {place}" for place in range(400)), encoding="utf-8")
    theirs.write_text("\n".join("ab" for _ in range(400)), encoding="utf-8")
    workload = Translation(pairs=(str(ours), str(theirs)))
    assert workload.unigram_bound() == pytest.approx(torch.tensor(3.0).log().item(), abs=0.3)


def test_the_rate_rises_and_falls_as_published(folder: str) -> None:
    workload = made(folder, size="base", warm_up=4000)
    usual = workload.optimizer(torch.nn.Linear(1, 1)).param_groups[0]
    assert (usual["betas"], usual["eps"]) == ((0.9, 0.98), 1e-9)
    for step in (1, 100, 4000, 9000):
        published = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert usual["lr"] * workload.rate(step) == pytest.approx(published)


def test_a_smoothed_loss_is_that_of_the_formula(folder: str) -> None:
    workload = made(folder)
    data, model = workload.dataset(train=True), workload.model()
    batch = workload.collate([data[place] for place in range(3)])
    logs = model(batch.source, batch.target[:, :-1]).log_softmax(2)
    following = batch.target[:, 1:]
    losses = -(0.9 * logs.gather(2, following[..., None])[..., 0] + 0.1 * logs.mean(2))
    expected = losses[following != PADDING].mean()
    torch.testing.assert_close(workload.loss(model, batch), expected)


def test_chrf_is_that_of_sacrebleu() -> None:
    cases = [
        ("Das Haus ist klein.", "Das Haus ist klein.", 100.0),
        ("Das Haus ist groß.", "Das Haus war klein.", 35.87649018586604),  # CHRF().sentence_score of sacrebleu 2.6.0
        ("", "Etwas", 0.0),
        ("xyz", "Etwas", 0.0),
    ]
    for text, reference, value in cases:
        assert chrf(text, reference) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("beams", [1, 2])
def test_evaluations_score_translations_when_asked(folder: str, beams: int) -> None:
    workload = made(folder, score="chrf", beams=beams, longest=40)
    data, model = workload.dataset(train=False), workload.model()
    batch = workload.collate([data[place] for place in range(3)])
    counts = workload.quality(model, batch)
    assert set(counts) == {"cross_entropy", "chrf", "examples"} and 0 <= counts["chrf"] <= 300
    texts = workload.translate(model, ["Open the file", "Print"])
    assert len(texts) == 2 and all(isinstance(text, str) for text in texts)


def test_packages_that_are_missing_are_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "find_spec", lambda name: None if name in ("tokenizers", "sacrebleu") else util)
    with pytest.raises(MissingExtra, match="translation with subwords needs tokenizers; install it with: pip install"):
        made(folder, tokens="bpe")
    with pytest.raises(MissingExtra, match="BLEU needs sacrebleu; install it with: pip install"):
        made(folder, score="bleu")


def test_wrong_settings_are_refused(folder: str, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"longest": 0}, "longest must be at least 1, not 0"),
        ({"limit": 1}, "limit must be at least 2, not 1"),
        ({"vocabulary": 100}, "vocabulary must be at least 259, not 100"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1"),
        ({"language": "../de"}, 'language must be a code such as de or pt_BR, not "../de"'),
        ({"size": "huge"}, 'size must be one of tiny, small, base, not "huge"'),
    ]
    for settings, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            made(folder, **settings)
    with pytest.raises(ConfigurationError, match="there are 0 training and 0 test pairs .nothing installed., which is"):
        made(str(tmp_path / "packages" / "none")).dataset(train=True)
