"""Replicas in shards of torch's FSDP2, with gradients of two batches in each update, and an evaluation."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
for batch in range(16):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * batch + rank))
    model.set_requires_gradient_sync(batch % 2 == 1)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    if batch % 2 == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    if batch == 9:
        model.eval()
        with torch.no_grad():
            evaluated = model(torch.ones(1, 8))
        model.train()
        everywhere = [torch.empty_like(evaluated) for _ in range(4)]
        dist.all_gather(everywhere, evaluated)
        assert all(torch.equal(x, evaluated) for x in everywhere)
assert model[0].weight.to_local().shape == (8, 8)
model.eval()
state = {name: x.full_tensor() if hasattr(x, "full_tensor") else x for name, x in model.state_dict().items()}
torch.save(state, f"state-{rank}.pt")
