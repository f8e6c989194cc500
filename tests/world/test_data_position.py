"""A training is killed and goes on with another number of workers: every example of an epoch is computed once."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer
from tests.support.launching import LIMIT

EXAMPLES = 90

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")

SCRIPT = f"""
import json, os, signal, sys
from pathlib import Path
import torch, quorate

world = quorate.join()
folder, share, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
model = torch.nn.Linear(1, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1e-6), model)
data = torch.utils.data.TensorDataset(torch.arange({EXAMPLES}.0).unsqueeze(1))
loader = quorate.loader(data, 2, share=share, num_workers=2)
before = sorted(folder.glob(f"{{int(name) - 1}}-*.json"))
if before:
    loader.load_state_dicts([json.loads(file.read_text())["position"] for file in before])
seen = []
for epoch in range(loader.epoch, 2):
    for inputs, in loader:
        model(inputs).sum().backward()
        if name != "3" and world.rank == 1 and len(seen) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        seen.append([epoch, inputs.squeeze(1).int().tolist()])
        new = folder / f"new-{{world.rank}}"
        new.write_text(json.dumps({{"seen": seen, "position": loader.state_dict()}}))
        new.rename(folder / f"{{name}}-{{world.rank}}.json")
"""


@pytest.mark.parametrize("share", ["static", "dynamic"])
def test_killed_twice_and_resumed_with_other_numbers_of_workers(share: str, tmp_path: Path, server: RunServer) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    for number, size in enumerate((3, 2, 3), 1):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        arguments = [str(tmp_path), share, str(number)]
        request = RunRequest(script=str(script), size=size, folder=folder, arguments=arguments)
        ended = server.start(request).wait(LIMIT)
        assert ended is not None, f"the run had not ended after {LIMIT:g} s"
        assert (ended.status == 0) == (number == 3)
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert sorted(files) == [f"{run}-{rank}.json" for run, size in ((1, 3), (2, 2), (3, 3)) for rank in range(size)]
    found: list[Counter[int]] = [Counter(), Counter()]
    told: Any
    for told in files.values():
        for epoch, examples in told["seen"]:
            found[epoch].update(examples)
    assert found[1] == Counter(range(EXAMPLES))
    padding = 2 if share == "static" else 0  # what is left of epoch 0 is a multiple of 3, plus at most that
    assert set(found[0]) == set(range(EXAMPLES))
    assert found[0].total() <= EXAMPLES + padding
