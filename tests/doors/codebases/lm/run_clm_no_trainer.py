import argparse, json, logging, math, os
import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from lm.data import get_dataloaders
from lm.modeling import GPTConfig, GPTForCausalLM
from lm.schedules import get_scheduler
logger = get_logger(__name__)
def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--num_train_epochs", type=int, default=2)
    p.add_argument("--max_train_steps", type=int, default=None)
    p.add_argument("--learning_rate", type=float, default=1e-2)
    p.add_argument("--weight_decay", type=float, default=0.01)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--checkpointing_steps", default="epoch")
    p.add_argument("--output_dir", default="out")
    return p.parse_args()
def main():
    args = parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(5)
    train_dataloader, eval_dataloader = get_dataloaders()
    model = GPTForCausalLM(GPTConfig())
    no_decay = ["bias", "ln"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    overrode = False
    steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * steps_per_epoch
    lr_scheduler = get_scheduler(optimizer, 1 * accelerator.num_processes, args.max_train_steps * accelerator.num_processes)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(model, optimizer, train_dataloader, eval_dataloader, lr_scheduler)
    completed, history = 0, []
    for epoch in range(args.num_train_epochs):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients and args.clip:
                    accelerator.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed += 1
            if completed >= args.max_train_steps:
                break
        model.eval()
        losses = []
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(4)))
        losses = torch.cat(losses)
        try:
            eval_loss = torch.mean(losses); perplexity = math.exp(eval_loss)
        except OverflowError:
            perplexity = float("inf")
        history += [perplexity, total_loss.item() / len(train_dataloader), lr_scheduler.get_last_lr()[0]]
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    accelerator.save(unwrapped.state_dict(), os.path.join(args.output_dir, "model.pt"))
    fresh = GPTForCausalLM(GPTConfig()); fresh.load_state_dict(torch.load(os.path.join(args.output_dir, "model.pt")))
    history.append(sum(p.abs().sum().item() for p in fresh.parameters()))
    accelerator.load_state(os.path.join(args.output_dir, "epoch_0"))
    history.append(sum(p.abs().sum().item() for p in accelerator.unwrap_model(model).parameters()))
    print("RESULT", json.dumps({"history": history, "completed": completed}))
if __name__ == "__main__":
    main()
