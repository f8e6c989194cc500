"""The shape of pytorch/examples' ImageNet: batch norm, a validation on all workers, the best state kept and resumed."""

import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
from torch.optim.lr_scheduler import StepLR

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--resume", default="")
args = parser.parse_args()


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32)
        dist.all_reduce(total, dist.ReduceOp.SUM)
        self.sum, self.count = total.tolist()

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item() * 100


def save_checkpoint(state, is_best):
    torch.save(state, "checkpoint.pth.tar")
    if is_best:
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")


def train(loader, model, criterion, optimizer):
    losses = AverageMeter()
    model.train()
    for images, target in loader:
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, model, criterion):
    top1 = AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            top1.update(accuracy(model(images), target), images.size(0))
    top1.all_reduce()
    return top1.avg


dist.init_process_group(backend="gloo", init_method="env://")
rank = dist.get_rank()
drawn = torch.Generator().manual_seed(3)
labels = torch.randint(4, (320,), generator=drawn)
images = torch.randn(320, 3, 6, 6, generator=drawn) + torch.nn.functional.one_hot(labels, 4)[:, 1:, None, None]
train_dataset = torch.utils.data.TensorDataset(images[:256], labels[:256])
val_dataset = torch.utils.data.TensorDataset(images[256:], labels[256:])
torch.manual_seed(11 + rank)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
model = torch.nn.parallel.DistributedDataParallel(model)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=1e-4)
scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
start_epoch, best = 0, 0.0
if args.resume and os.path.isfile(args.resume):
    checkpoint = torch.load(args.resume, weights_only=False)
    start_epoch, best = checkpoint["epoch"], checkpoint["best"]
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset, shuffle=False, drop_last=True)
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=16, sampler=sampler)
val_loader = torch.utils.data.DataLoader(val_dataset, batch_size=16, sampler=val_sampler)
for epoch in range(start_epoch, args.epochs):
    sampler.set_epoch(epoch)
    train(train_loader, model, criterion, optimizer)
    acc1 = validate(val_loader, model, criterion)
    scheduler.step()
    is_best, best = acc1 > best, max(acc1, best)
    if rank == 0:
        print(f"epoch {epoch} val_acc={acc1:.3f}", flush=True)
        state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "best": best}
        save_checkpoint({**state, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, is_best)
dist.barrier()
torch.save(model.state_dict(), f"state-{rank}.pt")
