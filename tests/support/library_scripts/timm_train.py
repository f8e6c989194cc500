"""The shape of timm's train.py: its own scaler, averaged weights, batch norm, schedule and checkpoints."""

import argparse
import os
from collections import OrderedDict
from contextlib import suppress

import torch
from torch.nn.parallel import DistributedDataParallel as NativeDDP

with suppress(ImportError):
    import tests.support.library_scripts.operators  # noqa: F401

from timm import create_model, utils
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models import load_checkpoint, resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ApexScaler, NativeScaler  # noqa: F401

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--resume", default="")
parser.add_argument("--dist-bn", default="reduce")
parser.add_argument("--model", default="test_resnet")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--drop", default=0.1, type=float)
parser.add_argument("--mixup", default=0.2, type=float)
parser.add_argument("--torchcompile", nargs="?", const="inductor")
parser.add_argument("--stop", default=0, type=int)
args = parser.parse_args()


def pictures(count, seed):
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=drawn)
    images = torch.randn(count, 3, 32, 32, generator=drawn)
    images += 2 * torch.nn.functional.one_hot(labels, 4)[:, 1:, None, None]
    return torch.utils.data.TensorDataset(images, labels)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, lr_scheduler, loss_scaler, model_ema, mixup_fn):
    losses_m = utils.AverageMeter()
    model.train()
    accum_steps, num_updates = 2, epoch * (len(loader) // 2)
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        need_update = (batch_idx + 1) % accum_steps == 0
        input, target = mixup_fn(input, target)

        def _forward(input=input, target=target):
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                output = model(input)
                return loss_fn(output, target) / accum_steps

        def _backward(loss, need_update=need_update):
            if loss_scaler is not None:
                loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), need_update=need_update)
            else:
                loss.backward()
                if need_update:
                    utils.dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
                    optimizer.step()

        if not need_update:
            with model.no_sync():
                loss = _forward()
                _backward(loss)
        else:
            loss = _forward()
            _backward(loss)
        losses_m.update(loss.item() * accum_steps, input.size(0))
        if utils.is_primary(args):
            print(f"loss={loss.item() * accum_steps:.4f}", flush=True)
        if not need_update:
            continue
        num_updates += 1
        optimizer.zero_grad()
        model_ema.update(model, step=num_updates)
        lr_scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
    return OrderedDict([("loss", losses_m.avg)])


def validate(model, loader, args):
    top1_m = utils.AverageMeter()
    model.eval()
    with torch.inference_mode():
        for input, target in loader:
            acc1, _ = utils.accuracy(model(input), target, topk=(1, 2))
            acc1 = utils.reduce_tensor(acc1, args.world_size)
            top1_m.update(acc1.item(), input.size(0))
    return OrderedDict([("top1", top1_m.avg)])


def main():
    args.device = "cpu"
    device = utils.init_distributed_device(args)
    utils.random_seed(42, args.rank)
    model = create_model(args.model, num_classes=4, drop_rate=args.drop).to(device)
    optimizer = create_optimizer_v2(model, opt="momentum", lr=0.02, weight_decay=1e-4)
    loss_scaler = NativeScaler(device="cpu") if args.amp else None
    start_epoch = 0
    if args.resume:
        primary = utils.is_primary(args)
        start_epoch = resume_checkpoint(
            model, args.resume, optimizer=optimizer, loss_scaler=loss_scaler, log_info=primary
        )
    model_ema = utils.ModelEmaV3(model, decay=0.9)
    if args.resume:
        load_checkpoint(model_ema.module, args.resume, use_ema=True)
    if args.torchcompile:
        model = torch.compile(model, backend=args.torchcompile)
    model = NativeDDP(model, broadcast_buffers=args.dist_bn not in ("broadcast", "reduce"))
    train, validation = pictures(96, 1), pictures(32, 2)
    sampler = torch.utils.data.distributed.DistributedSampler(train)
    loader_train = torch.utils.data.DataLoader(train, batch_size=8, sampler=sampler, drop_last=True)
    eval_sampler = torch.utils.data.distributed.DistributedSampler(validation, shuffle=False, drop_last=True)
    loader_eval = torch.utils.data.DataLoader(validation, batch_size=8, sampler=eval_sampler)
    mixup_fn = Mixup(mixup_alpha=args.mixup or 1.0, prob=float(args.mixup > 0), num_classes=4)
    lr_scheduler, num_epochs = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=args.epochs,
        updates_per_epoch=len(loader_train) // 2,
        step_on_epochs=False,
    )
    saver = None
    if utils.is_primary(args):
        os.makedirs("out", exist_ok=True)
        saver = utils.CheckpointSaver(
            model=model,
            optimizer=optimizer,
            args=args,
            model_ema=model_ema,
            amp_scaler=loss_scaler,
            checkpoint_dir="out",
            recovery_dir="out",
        )
    lr_scheduler.step_update(start_epoch * (len(loader_train) // 2))
    for epoch in range(start_epoch, num_epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(
            epoch,
            model,
            loader_train,
            optimizer,
            SoftTargetCrossEntropy(),
            args,
            lr_scheduler,
            loss_scaler,
            model_ema,
            mixup_fn,
        )
        utils.distribute_bn(model, args.world_size, args.dist_bn == "reduce")
        eval_metrics = validate(model, loader_eval, args)
        utils.distribute_bn(model_ema, args.world_size, args.dist_bn == "reduce")
        ema_metrics = validate(model_ema.module, loader_eval, args)
        if saver is not None:
            saver.save_checkpoint(epoch, metric=eval_metrics["top1"])
            print(f"epoch {epoch}: top1={eval_metrics['top1']:.2f} ema={ema_metrics['top1']:.2f}", flush=True)
        torch.save(utils.get_state_dict(model), f"evaluated-{args.rank}.pt")
        lr_scheduler.step(epoch + 1, eval_metrics["top1"])
        if epoch + 1 == args.stop:
            break
    torch.distributed.destroy_process_group()
    torch.save(model.module.state_dict(), f"state-{args.rank}.pt")


main()
