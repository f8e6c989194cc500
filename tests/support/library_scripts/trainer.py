"""The shape of transformers' run_clm: a Trainer that accumulates, evaluates, keeps the best state, and resumes."""

import argparse
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        drawn = torch.Generator().manual_seed(seed)
        self.words = (torch.randint(16, (count, 1), generator=drawn) + torch.arange(8)) % 16

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.words[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=12)
    parser.add_argument("--optim", default="sgd")
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--stop", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--torch_compile", action="store_true")
    args = parser.parse_args()
    training_args = TrainingArguments(
        output_dir="out",
        max_steps=args.max_steps,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=args.learning_rate,
        optim=args.optim,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=4,
        logging_steps=4,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=args.bf16,
        torch_compile=args.torch_compile,
        seed=7,
    )
    set_seed(training_args.seed)
    last_checkpoint = get_last_checkpoint("out") if os.path.isdir("out") else None
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model=model, args=training_args, train_dataset=Blocks(160, 1), eval_dataset=Blocks(40, 2))
    if args.stop:
        from transformers import TrainerCallback

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **more):
                control.should_training_stop = state.global_step >= stop

        stop = args.stop
        trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=last_checkpoint)
    trainer.save_model("model")
    rank = training_args.process_index
    for row in trainer.state.log_history if rank == 0 else ():
        if "loss" in row and row["step"] > int((last_checkpoint or "-0").rpartition("-")[2]):
            print(f"loss={float(row['loss']):.4f}", flush=True)
    metrics = trainer.evaluate()
    print(f"rank {rank} eval_loss={metrics['eval_loss']:.6f}", flush=True)
    torch.save(
        trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False).state_dict(), f"evaluated-{rank}.pt"
    )
    trainer.accelerator.end_training()
    torch.save(model.state_dict(), f"state-{rank}.pt")
    time.sleep(0.5)  # gloo frees its last work on a thread that needs the GIL, and torch joins it holding the GIL


if __name__ == "__main__":
    main()
