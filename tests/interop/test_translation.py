"""The workload `translation` with the packages of its extra: subwords of tokenizers, scores of sacrebleu."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.architecture.tree import ROOT
from tests.support.libraries import PYTHON, needs
from tests.support.workload_files import write_translations

pytestmark = needs("tokenizers", "sacrebleu")
SCRIPT = """
import sys
from sacrebleu.metrics import CHRF
from quorate.workloads.translation import Translation, chrf
settings = {"folders": (sys.argv[1],), "use_cache": False, "size": "tiny", "longest": 40, "vocabulary": 300}
one, other = (Translation(tokens="bpe", score="bleu", **settings) for _ in range(2))
texts = [pair.target for pair in one.text.pairs]
tokens = one.vocabulary_tokens
assert all(tokens.decode(tokens.encode(text)) == text for text in texts)
assert all(tokens.encode(text) == other.vocabulary_tokens.encode(text) for text in texts)
assert max(number for text in texts for number in tokens.encode(text)) < 300
for text, reference in zip(texts, texts[1:]):
    assert abs(chrf(text, reference) - CHRF().sentence_score(text, [reference]).score) < 1e-9
data, model = one.dataset(train=False), one.model()
counts = one.quality(model, one.collate([data[0], data[1]]))
assert set(counts) == {"cross_entropy", "bleu", "examples"} and 0 <= counts["bleu"] <= 200
"""


def test_subwords_are_equal_on_all_workers_and_scores_are_those_of_sacrebleu(tmp_path: Path) -> None:
    folder = write_translations(tmp_path / "packages", 200)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    subprocess.run([str(PYTHON), "-c", SCRIPT, str(folder)], check=True, timeout=200, env=environment)
