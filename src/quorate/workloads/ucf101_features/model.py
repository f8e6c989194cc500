"""The published LSTM over frames, with one bias vector per gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quorate.workloads.labelled_sequences import at_the_ends

DENSE = 512
"""Width between the LSTM and the scores."""


class OneBiasLSTM(nn.LSTM):
    """One LSTM layer whose gates have one bias vector each, as in the books; batch first.

    torch's own has two, which are only ever added up. Here the second one stays zero and is no parameter, and is not in
    the state dict either; the computation is torch's, its fused kernels included.
    """

    bias_hh_l0: Tensor

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, batch_first=True)
        del self.bias_hh_l0
        self.bias_hh_l0 = nn.Buffer(torch.zeros(4 * hidden), persistent=False)


class VideoClassifier(nn.Module):
    """LSTM, read to each sequence's own end; a dense layer of `DENSE` with ReLU; a linear layer.

    The LSTM runs over the padded batch: what comes after an end is computed and not looked at.
    """

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = OneBiasLSTM(features, hidden)
        self.dense = nn.Linear(hidden, DENSE)
        self.output = nn.Linear(DENSE, classes)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Scores (n, classes) of `frames` (n, longest, features), of which the first `lengths` (n,) >= 1 count."""
        states, _ = self.lstm(frames)
        scores: Tensor = self.output(torch.relu(self.dense(at_the_ends(states, lengths))))
        return scores
