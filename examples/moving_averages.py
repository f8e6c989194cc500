"""A moving average of weights beside strategies whose replicas differ between exchanges: workers average the averages.

quorate run -n 2 examples/moving_averages.py
quorate run --virtual 4 examples/moving_averages.py
"""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import quorate

world = quorate.join()
model = torch.nn.Linear(3, 1)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = quorate.distribute(optimizer, model, "local-sgd")
for _step in range(20):
    model(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    averaged.update_parameters(model)
with world.evaluate(), torch.no_grad():
    for x in averaged.module.parameters():
        x.copy_(world.mean(x))
    print(averaged.module(torch.ones(1, 3)))  # the same on all workers
optimizer.finish()
