"""The shape of Lightning's own examples: a LightningModule, `Trainer(strategy="ddp")`, and its checkpoints."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def pictures(count, seed):
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=drawn)
    images = torch.randn(count, 3, 6, 6, generator=drawn) + nn.functional.one_hot(labels, 4)[:, 1:, None, None]
    return TensorDataset(images, labels)


class ImageClassifier(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


class Evaluated(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero:
            print(f"loss={outputs['loss'].item():.4f}", flush=True)

    def on_validation_end(self, trainer, module):
        torch.save(module.state_dict(), f"evaluated-{trainer.global_rank}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--average", choices=["ema", "swa"])
    parser.add_argument("--compile", nargs="?", const="inductor")
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    L.seed_everything(5)
    train = DataLoader(pictures(192, 1), batch_size=8, shuffle=True)
    validation = DataLoader(pictures(48, 2), batch_size=8)
    kept = ModelCheckpoint("kept", filename="best", monitor="val_acc", mode="max", save_last=True)
    averages = {
        "ema": [EMAWeightAveraging(decay=0.9)],
        "swa": [StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=1, annealing_epochs=1)],
        None: [],
    }
    trainer = L.Trainer(
        precision=args.precision,
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        callbacks=[kept, Evaluated(), *averages[args.average]],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = ImageClassifier(args.lr)
    if args.compile:
        model.compile(backend=args.compile)
    trainer.fit(model, train, validation, ckpt_path=args.ckpt_path)
    if trainer.is_global_zero:
        print(f"val_acc={trainer.callback_metrics['val_acc']:.4f}", flush=True)
    rank = trainer.global_rank
    trainer.strategy.barrier()
    torch.distributed.destroy_process_group()
    torch.save(model.state_dict(), f"state-{rank}.pt")


if __name__ == "__main__":
    main()
