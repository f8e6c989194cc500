"""The shape of Accelerate's nlp_example: a transformer for pairs of sentences, metrics gathered from all workers."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, BertConfig, get_linear_schedule_with_warmup

MAX_GPU_BATCH_SIZE, EVAL_BATCH_SIZE = 8, 16


class Pairs(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        drawn = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=drawn)
        self.words = torch.randint(3, 22, (count, 12), generator=drawn) + 18 * self.labels[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def get_dataloaders(accelerator, batch_size):
    def collate_fn(examples):
        words = torch.stack([example["input_ids"] for example in examples])
        labels = torch.stack([example["labels"] for example in examples])
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": labels}

    with accelerator.main_process_first():
        train, validation = Pairs(160, 1), Pairs(51, 2)
    return (
        DataLoader(train, shuffle=True, collate_fn=collate_fn, batch_size=batch_size, drop_last=True),
        DataLoader(validation, shuffle=False, collate_fn=collate_fn, batch_size=EVAL_BATCH_SIZE),
    )


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    lr, num_epochs, batch_size = config["lr"], int(config["num_epochs"]), int(config["batch_size"])
    gradient_accumulation_steps = batch_size // MAX_GPU_BATCH_SIZE
    set_seed(int(config["seed"]))
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, MAX_GPU_BATCH_SIZE)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=40, **sizes))
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=lr)
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=4,
        num_training_steps=(len(train_dataloader) * num_epochs) // gradient_accumulation_steps,
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(num_epochs):
        model.train()
        for step, batch in enumerate(train_dataloader):
            outputs = model(**batch)
            loss = outputs.loss / gradient_accumulation_steps
            accelerator.print(f"loss={outputs.loss.item():.4f}", flush=True)
            accelerator.backward(loss)
            if step % gradient_accumulation_steps == 0:
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = seen = 0
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
            right, seen = right + (predictions == references).sum().item(), seen + len(references)
        assert seen == 51
        accelerator.print(f"epoch {epoch}: accuracy={right / seen:.4f}", flush=True)
        torch.save(accelerator.get_state_dict(model), f"evaluated-{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    rank = accelerator.process_index
    accelerator.end_training()
    torch.save(accelerator.unwrap_model(model).state_dict(), f"state-{rank}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--batch_size", default=8)
    parser.add_argument("--num_epochs", default=2)
    args = parser.parse_args()
    training_function({"lr": 2e-3, "num_epochs": args.num_epochs, "seed": 42, "batch_size": args.batch_size}, args)


if __name__ == "__main__":
    main()
