"""Claims whose figures are on other pages of the benchmarks, and claims that cannot be tried here. Nothing is measured.

    python benchmarks/truth/published_here.py

A figure is taken from its page with the line in which it stands there; if that line has changed, nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, UNTRIED, Bounds, Claim, Trial, at_least, at_most, row_of, write

PAGES = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, kw_only=True)
class Cited:
    """A figure of another page."""

    name: str
    claim: Claim
    figure: str
    differs: str
    bounds: Bounds
    page: str
    text: str
    """The part of the page in which the figure stands."""
    low_median_high: tuple[float, float, float]
    note: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """Return the row. Raises `SystemExit` if the page does not have the text."""
        if self.text not in (PAGES / self.page).read_text(encoding="utf-8"):
            raise SystemExit(f"{self.name}: docs/benchmarks/{self.page} no longer has {self.text!r}")
        trial = Trial(name=self.name, claim=self.claim, figure=self.figure, differs=self.differs, bounds=self.bounds,
                      note=self.note, world="real processes", measure=lambda _: self.low_median_high)  # fmt: skip
        return {**row_of(trial, self.low_median_high), "cited": {"page": self.page, "text": self.text}}


@dataclass(frozen=True, kw_only=True)
class Untried:
    """A claim that cannot be tried here."""

    name: str
    claim: Claim
    needs: str

    @property
    def row(self) -> dict[str, Any]:
        """Return the row, which has no figure."""
        return {"name": self.name, **asdict(self.claim), "needs": self.needs, "verdict": UNTRIED}


EAGER = "Li et al., Taming unbalanced training workloads, PPoPP 2020 (eager-SGD)"
IMAGENET = "ImageNet and"
CITED = (
    Cited(
        name="eager-solo, light imbalance, real processes",
        claim=Claim(
            claim="eager-SGD (solo) reaches the loss of synchronous SGD 1.75 times as fast",
            source=EAGER,
            published="1.75",
            on_what="regression of 8,193 parameters, 8 GPUs, one random worker late by 300 ms",
        ),
        figure="seconds to equal loss, torch DDP / eager-solo",
        differs="8 processes that sleep for most of a step of 280 ms; three times the usual rate on both sides",
        bounds=at_least(1.58, 1.1),
        page="late-workers.md",
        text="| 300 ms | 67.6 | – | 44.2 | 36.3 | 1.86 | 1.86 to 1.87 | 1.75 | 0.984 |",
        low_median_high=(1.86, 1.86, 1.87),
        note="from [late workers](late-workers.md#one-random-worker-late-in-every-step)",
    ),
    Cited(
        name="1-bit Adam over a slow network, real processes",
        claim=Claim(
            claim="1-bit Adam trains up to 3.3 times as fast as Adam over Ethernet",
            source="Tang et al., 1-bit Adam, ICML 2021",
            published="up to 3.3",
            on_what="BERT-Large, up to 256 V100, 40 GbE",
        ),
        figure="seconds to equal loss, all-reduce with Adam / one-bit-adam",
        differs="4 hosts (network namespaces) at 100 Mbit/s, a Transformer of 10.8 million parameters, 60 steps",
        bounds=at_least(2.97, 1.1),
        page="codecs.md",
        text="| `one-bit-adam` | 121.9, 128.9 | 65 | 0.68 | 3.52, 3.10 |",
        low_median_high=(3.10, 3.31, 3.52),
        note="of two turns; from [codecs](codecs.md#one-bit-optimizers), `benchmarks/one_bit.py --hosts`",
    ),
    Cited(
        name="memory of ZeRO-3, real processes",
        claim=Claim(
            claim="a worker with ZeRO-3 holds 16 bytes a parameter, divided by the number of workers",
            source="Rajbhandari et al., ZeRO, SC 2020",
            published="by formula",
            on_what="any model under Adam",
        ),
        figure="live bytes held between steps over the formula",
        differs="26 million parameters in float32, 2 processes",
        bounds=at_most(1.1, 1.5),
        page="sharding.md",
        text="| `zero=3` | 0.799 | 1.033 (1.033 to 1.069) |",
        low_median_high=(1.033, 1.033, 1.069),
        note="from [shards](sharding.md#shards-beside-fsdp2), `benchmarks/sharded.py`",
    ),
    Cited(
        name="SGP, real processes",
        claim=Claim(
            claim="SGP trains more than 3.1 times as fast as all-reduce",
            source="Assran et al., Stochastic gradient push, ICML 2019",
            published="1.6 h instead of more than 5 h",
            on_what="ResNet-50, ImageNet, 32 nodes of 8 GPUs, 10 Gbit/s",
        ),
        figure="seconds to equal loss, torch DDP / sgp",
        differs="8 processes on one host, one random worker late by 150 ms in steps of 140 ms, equal rates",
        bounds=at_least(2.8, 1.1),
        page="gossip.md",
        text="| `sgp` | 23.6559 (22.6315 to 23.6848) | 1.4480 (1.3773 to 1.5153) |",
        low_median_high=(1.3773, 1.4480, 1.5153),
        note="from [gossip](gossip.md#gossip-with-a-random-late-worker), `benchmarks/gossip.py --loss`",
    ),
    Cited(
        name="AD-PSGD, real processes",
        claim=Claim(
            claim="AD-PSGD is 4 to 8 times as fast as all-reduce in a heterogeneous cluster",
            source="Lian et al., Asynchronous decentralized parallel SGD, ICML 2018",
            published="4 to 8",
            on_what="ResNet-50, ImageNet, up to 128 GPUs, shared network",
        ),
        figure="seconds to equal loss, torch DDP / ad-psgd",
        differs="8 processes on one host, one random worker late by 150 ms in steps of 140 ms, equal rates",
        bounds=at_least(4.0, 1.2),
        page="gossip.md",
        text="| `ad-psgd` | 18.1638 (17.7261 to 19.5026) | 1.8381 (1.7584 to 1.8881) |",
        low_median_high=(1.7584, 1.8381, 1.8881),
        note="from [gossip](gossip.md#gossip-with-a-random-late-worker), `benchmarks/gossip.py --loss`; a delay that "
        "changes the worker in each step allows at most 1.9",
    ),
    Cited(
        name="LARS on an LSTM",
        claim=Claim(
            claim="LARS keeps the accuracy with large batches",
            source="You et al., Large batch training of convolutional networks, 2017 (LARS)",
            published="no loss at 128 times the usual batch",
            on_what="ResNet-50 and AlexNet on ImageNet",
        ),
        figure="accuracy in percent at 32 times the usual batch; the usual batch has 65.1",
        differs="an LSTM on functions of Python's standard library, which LARS was not made for",
        bounds=at_least(64.1, 60.0),
        page="large-batches.md",
        text="| 47.4 (45.7 to 49.1) | 37.6 (26.4 to 40.5) |",
        low_median_high=(26.4, 37.6, 40.5),
        note="from [large batches](large-batches.md), `benchmarks/large_batch.py --part stdlib-functions`",
    ),
    Cited(
        name="LAMB on an LSTM",
        claim=Claim(
            claim="LAMB keeps the quality with large batches",
            source="You et al., Large batch optimization for deep learning, ICLR 2020 (LAMB)",
            published="no loss with a batch of 32 to 64 thousand",
            on_what="BERT, TPUv3 pod of 1,024 chips",
        ),
        figure="accuracy in percent at 32 times the usual batch; the usual batch has 65.1",
        differs="an LSTM on functions of Python's standard library; the usual batch is under AdamW",
        bounds=at_least(64.1, 60.0),
        page="large-batches.md",
        text="| 37.6 (26.4 to 40.5) | 66.2 (65.0 to 66.3) |",
        low_median_high=(65.0, 66.2, 66.3),
        note="from [large batches](large-batches.md), `benchmarks/large_batch.py --part stdlib-functions`",
    ),
)
UNTRIED_CLAIMS = (
    Untried(
        name="eager-solo, accuracy on ImageNet",
        claim=Claim(
            claim="solo loses 0.6 points of top-1 accuracy with 4 of 64 workers late",
            source=EAGER,
            published="75.2 % and 75.8 %",
            on_what="ResNet-50, ImageNet, 64 P100, 90 epochs",
        ),
        needs=f"{IMAGENET} 64 GPUs for some hours.",
    ),
    Untried(
        name="ImageNet in one hour",
        claim=Claim(
            claim="ResNet-50 trains in one hour with a batch of 8,192",
            source="Goyal et al., Accurate, large minibatch SGD, 2017",
            published="76.3 % in 1 h",
            on_what="ResNet-50, ImageNet, 256 P100",
        ),
        needs=f"{IMAGENET} 256 GPUs.",
    ),
    Untried(
        name="BERT in 76 minutes",
        claim=Claim(
            claim="LAMB trains BERT in 76 minutes",
            source="You et al., Large batch optimization for deep learning, ICLR 2020 (LAMB)",
            published="76 min, 8,599 steps",
            on_what="BERT, TPUv3 pod of 1,024 chips",
        ),
        needs="the text that BERT was trained on, and a thousand accelerators.",
    ),
    Untried(
        name="a trillion parameters",
        claim=Claim(
            claim="tensor, pipeline and data parallelism together reach 52 % of the peak",
            source="Narayanan et al., Efficient large-scale language model training, SC 2021",
            published="502 petaFLOP/s",
            on_what="GPT with 1 trillion parameters, 3,072 A100",
        ),
        needs="thousands of GPUs with NVLink and InfiniBand.",
    ),
    Untried(
        name="1-bit SGD, speed",
        claim=Claim(
            claim="one bit a number makes training on 40 GPUs 10 times as fast as on one",
            source="Seide et al., 1-bit stochastic gradient descent, Interspeech 2014",
            published="10",
            on_what="speech network of 160 million parameters, 20 servers of 2 GPUs",
        ),
        needs="20 hosts with GPUs; how well one bit trains is tried above.",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the same: nothing is measured")
    parser.parse_args()
    write(Path(__file__).stem, [entry.row for entry in (*CITED, *UNTRIED_CLAIMS)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
