"""The shape of nanoGPT's train.py: accumulation by a flag of the wrapper, evaluation and checkpoints on one worker."""

import math
import os
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

eval_interval, eval_iters, max_iters, gradient_accumulation_steps = 4, 2, 10, 6
batch_size, block_size, vocab, width = 4, 16, 32, 16
learning_rate, warmup_iters, min_lr, grad_clip = 3e-3, 2, 3e-4, 1.0
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master_process, seed_offset = ddp_rank == 0, ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    ddp_rank, master_process, seed_offset = 0, True, 0
torch.manual_seed(1337 + seed_offset)
text = torch.randint(vocab, (4000,), generator=torch.Generator().manual_seed(1)).cumsum(0) % vocab


def get_batch():
    ix = torch.randint(len(text) - block_size - 1, (batch_size,))
    return (
        torch.stack([text[i : i + block_size] for i in ix]),
        torch.stack([text[i + 1 : i + 1 + block_size] for i in ix]),
    )


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block_size, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True, norm_first=True, bias=False)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        mask = nn.Transformer.generate_square_subsequent_mask(block_size)
        logits = self.lm_head(self.block(self.wte(idx) + self.wpe.weight, src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, vocab), targets.reshape(-1))

    def configure_optimizers(self):
        decays = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = model.configure_optimizers()
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.stack([model(*get_batch())[1] for _ in range(eval_iters)])
    model.train()
    return losses.mean()


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


X, Y = get_batch()
iter_num = 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 and master_process:
        print(f"step {iter_num}: val loss {estimate_loss():.4f}", flush=True)
        if iter_num > 0:
            torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    if "BARRIER" in os.environ and iter_num % eval_interval == 0:
        barrier()
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with nullcontext():
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
if ddp:
    destroy_process_group()
torch.save(model.state_dict(), f"state-{ddp_rank}.pt")
