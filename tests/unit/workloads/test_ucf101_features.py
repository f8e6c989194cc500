"""Videos as features: what is read and refused, and an LSTM with one bias vector per gate."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import ConfigurationError
from quorate.workloads.drawing import drawn
from quorate.workloads.ucf101_features import OneBiasLSTM, Ucf101Features, VideoClassifier
from tests.support.workload_files import write_videos


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_videos(tmp_path / "videos", 12, features=6, classes=3)


def made(folder: Path, **settings: Any) -> Ucf101Features:
    return Ucf101Features(**{"folder": str(folder), "features": 6, "hidden": 8, "classes": 3, **settings})


def by_the_book(lstm: OneBiasLSTM, frames: Tensor) -> Tensor:
    """Hidden states (n, longest, hidden): gates i, f, g, o = W x + U h + b, as four blocks of one matrix."""
    hidden = torch.zeros(len(frames), lstm.hidden_size)
    cell, states = hidden, []
    for frame in frames.unbind(1):
        gates = frame @ lstm.weight_ih_l0.T + hidden @ lstm.weight_hh_l0.T + lstm.bias_ih_l0
        i, f, g, o = gates.chunk(4, dim=1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states, 1)


def test_the_model_has_the_published_size() -> None:
    with torch.device("meta"):
        model = VideoClassifier(2048, 2048, 101)
    assert sum(parameter.numel() for parameter in model.parameters()) == 34_663_525
    defaults = {name: getattr(Ucf101Features, name) for name in ("features", "hidden", "classes")}
    assert defaults == {"features": 2048, "hidden": 2048, "classes": 101}


def test_the_lstm_has_one_bias_and_is_the_one_of_the_books() -> None:
    torch.manual_seed(0)
    lstm = OneBiasLSTM(5, 7)
    assert [name for name, _ in lstm.named_parameters()] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"]
    assert list(lstm.state_dict()) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"]
    frames, weights = torch.randn(3, 11, 5), torch.randn(3, 11, 7)
    for each in (lstm, copy.deepcopy(lstm)):
        states, _ = each(frames)
        torch.testing.assert_close(states, by_the_book(each, frames))
        ours = torch.autograd.grad((states * weights).sum(), list(each.parameters()))
        theirs = torch.autograd.grad((by_the_book(each, frames) * weights).sum(), list(each.parameters()))
        torch.testing.assert_close(ours, theirs)


def test_it_goes_on_being_one_bias_after_steps_moves_and_loading() -> None:
    torch.manual_seed(0)
    lstm, frames = OneBiasLSTM(5, 7), torch.randn(3, 4, 5)
    optimizer = torch.optim.AdamW(lstm.parameters(), lr=0.1)
    for _ in range(3):
        lstm(frames)[0].square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(lstm(frames)[0], by_the_book(lstm, frames))
    other = OneBiasLSTM(5, 7)
    other.load_state_dict(lstm.state_dict())
    torch.testing.assert_close(other(frames)[0], lstm(frames)[0])
    moved = lstm.double().float()
    torch.testing.assert_close(moved(frames)[0], by_the_book(moved, frames))
    assert not lstm.bias_hh_l0.any() and not isinstance(lstm.bias_hh_l0, nn.Parameter)


def test_padding_changes_nothing() -> None:
    model = drawn(lambda: VideoClassifier(6, 8, 3), seed=0)
    frames, lengths = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 9, 1])
    together = model(frames, lengths)
    for video, length, scores in zip(frames, lengths, together, strict=True):
        alone = model(video[:length].unsqueeze(0), length.unsqueeze(0))
        torch.testing.assert_close(alone.squeeze(0), scores)


def test_videos_come_as_they_were_written(folder: Path) -> None:
    workload = made(folder)
    data = workload.dataset(train=True)
    assert workload.class_names == ("Action0", "Action1", "Action2")
    lines = (folder / "train.txt").read_text().splitlines()
    assert len(data) == len(lines) == 12
    for index, line in enumerate(lines):
        frames, label = data[index]
        assert np.array_equal(frames.numpy(), np.load(folder / line.rsplit(maxsplit=1)[0]))
        assert label == index % 3
    assert data.lengths.tolist() == [1 + index % 9 for index in range(12)]
    batch = workload.collate([data[index] for index in (0, 4, 2)])
    assert batch.items.shape == (3, 5, 6) and batch.lengths.tolist() == [1, 5, 3] and batch.labels.tolist() == [0, 1, 2]
    assert batch.tokens == 15
    assert not batch.items[0, 1:].any()
    assert len(workload.dataset(train=False)) == 6


def test_long_videos_are_cut(folder: Path) -> None:
    data = made(folder, longest=4).dataset(train=True)
    assert data.lengths.max() == 4 == max(len(data[index][0]) for index in range(len(data)))


def test_the_splits_have_the_names_that_are_given(folder: Path) -> None:
    first, second, *_ = (folder / "train.txt").read_text().splitlines()
    (folder / "some.txt").write_text(f"{first}\n\n   {second}  \n")
    assert len(made(folder, train_split="some.txt", test_split="train.txt").dataset(train=True)) == 2


def test_numbers_are_names(folder: Path) -> None:
    text = (folder / "train.txt").read_text().replace("Action", "10")
    (folder / "train.txt").write_text(text)
    workload = made(folder)
    assert workload.class_names == ("100", "101", "102")
    with pytest.raises(ConfigurationError, match=r'unknown class in test.txt line 1 "Action0". Known: 100, 101, 102'):
        workload.dataset(train=False)


def test_splits_that_are_not_what_they_should_be(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no.txt cannot be read \(No such file or directory\)"):
        made(folder, train_split="no.txt").dataset(train=True)
    for content, words in {
        b"": "names no video",
        b"\xff\xfe": r"cannot be read \(it is not text\)",
        b"a.npy Action0\nb.npy\n": 'own.txt line 2 is "b.npy"; a line is a path and a class',
        b"a.npy Action0\n": "own.txt line 1 names .*a.npy, which is not there",
        b"a.npy Actoin1\n": 'unknown class in own.txt line 1 "Actoin1"; did you mean "Action1"',
    }.items():
        (folder / "own.txt").write_bytes(content)
        with pytest.raises(ConfigurationError, match=words):
            made(folder, test_split="own.txt").dataset(train=False)
    with pytest.raises(ConfigurationError, match="the training split has 3 classes and the setting classes is 2"):
        made(folder, classes=2).dataset(train=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (np.zeros((3, 5), np.float32), "holds 3 x 5 numbers of type float32; wanted are frames x 6 of type float32"),
        (np.zeros((3, 6), np.float64), "holds 3 x 6 numbers of type float64"),
        (np.zeros((6,), np.float32), "holds 6 numbers"),
        (np.zeros((0, 6), np.float32), "0 x 6|is damaged"),
        (np.array([None]), "is damaged, or no .npy file of plain numbers"),
    ],
)
def test_videos_that_are_something_else(folder: Path, content: np.ndarray, words: str) -> None:
    np.save(folder / "class 0" / "train_3.npy", content)
    with pytest.raises(ConfigurationError, match=rf"train_3.npy.*({words})"):
        made(folder).dataset(train=True)


def test_videos_that_are_cut_off(folder: Path) -> None:
    file = folder / "class 0" / "train_3.npy"
    whole = file.read_bytes()
    for content in (b"", whole[:5], whole[:20], whole[:-1], b"PK\3\4" + whole):
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match="train_3.npy is damaged, or no .npy file"):
            made(folder).dataset(train=True)


def test_settings_and_folders_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ucf101-features needs a setting folder=..., where one .npy file"):
        Ucf101Features()
    with pytest.raises(ConfigurationError, match="there is no folder .*nowhere"):
        made(tmp_path / "nowhere")
    for setting in ("longest", "classes", "features", "hidden"):
        with pytest.raises(ConfigurationError, match=f"ucf101-features: {setting} must be at least 1, not 0"):
            made(tmp_path, **{setting: 0})
