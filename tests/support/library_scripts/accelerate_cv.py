"""The shape of Accelerate's complete cv_example: accumulation, clipping, a cycle of rates, states saved and resumed."""

import argparse
import os

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


def pictures(count, seed):
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=drawn)
    images = torch.randn(count, 3, 6, 6, generator=drawn) + nn.functional.one_hot(labels, 4)[:, 1:, None, None]
    return TensorDataset(images, labels)


def training_function(config, args):
    accelerator = Accelerator(
        cpu=args.cpu,
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(config["seed"])
    train_dataloader = DataLoader(pictures(160, 1), shuffle=True, batch_size=8)
    eval_dataloader = DataLoader(pictures(51, 2), shuffle=False, batch_size=16)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    optimizer = torch.optim.SGD(params=model.parameters(), lr=config["lr"] / 25, momentum=0.9)
    lr_scheduler = OneCycleLR(optimizer, config["lr"], epochs=config["epochs"], steps_per_epoch=len(train_dataloader))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    overall_step = starting_epoch = resume_step = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        kind, _, number = os.path.basename(args.resume_from_checkpoint).partition("_")
        overall_step = int(number) if kind == "step" else (int(number) + 1) * len(train_dataloader)
        starting_epoch, resume_step = divmod(overall_step, len(train_dataloader))
    rank = accelerator.process_index
    for epoch in range(starting_epoch, config["epochs"]):
        model.train()
        train_dataloader.set_epoch(epoch)
        active_dataloader = train_dataloader
        if args.resume_from_checkpoint and epoch == starting_epoch:
            active_dataloader = accelerator.skip_first_batches(train_dataloader, resume_step)
        for inputs, labels in active_dataloader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(inputs), labels)
                accelerator.print(f"loss={loss.item():.4f}", flush=True)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            overall_step += 1
            if overall_step % int(args.checkpointing_steps) == 0:
                accelerator.save_state(f"step_{overall_step}")
            if overall_step == int(args.stop):
                return
        model.eval()
        accurate = num_elems = 0
        for inputs, labels in eval_dataloader:
            with torch.no_grad():
                outputs = model(inputs)
            predictions, references = accelerator.gather_for_metrics((outputs.argmax(dim=-1), labels))
            accurate += (predictions == references).long().sum().item()
            num_elems += references.shape[0]
        assert num_elems == 51
        accelerator.print(f"epoch {epoch}: accuracy={100 * accurate / num_elems:.2f}", flush=True)
        accelerator.save_state(f"epoch_{epoch}")
        torch.save(model.state_dict(), f"evaluated-{rank}.pt")
        if epoch + 1 == int(args.stop_after):
            return
    accelerator.wait_for_everyone()
    accelerator.end_training()
    torch.save(accelerator.unwrap_model(model).state_dict(), f"state-{rank}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--checkpointing_steps", default=100)
    parser.add_argument("--resume_from_checkpoint", default="")
    parser.add_argument("--stop", default=0)
    parser.add_argument("--stop_after", default=0)
    parser.add_argument("--epochs", default=2, type=int)
    args = parser.parse_args()
    training_function({"lr": 0.2, "epochs": args.epochs, "seed": 42}, args)


if __name__ == "__main__":
    main()
