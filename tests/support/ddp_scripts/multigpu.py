"""The shape of pytorch/examples' DDP tutorial: a Trainer class, processes started by torch.multiprocessing."""

import argparse
import os

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        drawn = torch.Generator().manual_seed(0)
        self.data = [(torch.rand(20, generator=drawn), torch.rand(1, generator=drawn)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def ddp_setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ.setdefault("MASTER_PORT", "12355")
    init_process_group(backend="gloo", rank=rank, world_size=world_size)


class Trainer:
    def __init__(self, model, train_data, optimizer, rank, save_every):
        self.rank, self.train_data, self.optimizer, self.save_every = rank, train_data, optimizer, save_every
        self.model = DDP(model)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        print(f"[{self.rank}] Epoch {epoch} | Steps: {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "checkpoint.pt")


def main(rank, world_size, save_every, total_epochs, batch_size):
    ddp_setup(rank, world_size)
    torch.manual_seed(rank)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    dataset = MyTrainDataset(256)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset))
    trainer = Trainer(model, loader, optimizer, rank, save_every)
    trainer.train(total_epochs)
    destroy_process_group()
    torch.save(trainer.model.state_dict(), f"state-{rank}.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=16, type=int)
    parser.add_argument("--nprocs", default=2, type=int)
    args = parser.parse_args()
    mp.spawn(main, args=(args.nprocs, args.save_every, args.total_epochs, args.batch_size), nprocs=args.nprocs)
