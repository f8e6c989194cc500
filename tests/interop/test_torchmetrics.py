"""A metric of torchmetrics is that of all workers' examples, without an edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.libraries import needs, result_of

pytestmark = needs("torchmetrics")
SCRIPT = """
import sys, torch, torchmetrics, quorate
world = quorate.join()
torch.manual_seed(0)
x = torch.randn(50, 4)
targets = x.argmax(1)
model = torch.nn.Linear(4, 4)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.5), model)
for batch, labels in quorate.loader(torch.utils.data.TensorDataset(x, targets), batch_size=5, share="static"):
    torch.nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=4, average="micro")
loss = torchmetrics.MeanMetric()
with world.evaluate(), torch.no_grad():
    for part in [slice(0, 7), slice(7, 20)] if world.rank == 0 else [slice(20, 50)]:
        accuracy.update(model(x[part]), targets[part])
        loss.update(torch.nn.functional.cross_entropy(model(x[part]), targets[part]), weight=len(x[part]))
    whole = model(x)
    right = (whole.argmax(1) == targets).float().mean()
    wanted = [float(right), float(torch.nn.functional.cross_entropy(whole, targets))]
    computed = [float(accuracy.compute()), float(loss.compute())]
assert max(abs(a - b) for a, b in zip(computed, wanted)) < 1e-6, (computed, wanted)
print("result", computed, flush=True)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority", "d-psgd"])
def test_it_is_that_of_all_examples(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert 0 < result_of(tmp_path, "first", "--strategy", strategy, "train.py")[0] <= 1
