"""Scripts that layouts are planned for."""

SCRIPT = """
import sys
import torch
from torch import nn
import quorate

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.last = nn.Linear(64, 3)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

quorate.join()
model = Net()
optimizer = quorate.distribute(torch.optim.Adam(model.parameters()), model)
for _ in range(int(sys.argv[1])):
    model(torch.ones(10, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("stepped")
"""
DIVIDED = SCRIPT.replace("Net()\n", "quorate.parallelize(Net())\n")
"""The same with a model that may be in pieces."""
