"""Train a small GPT to write like Shakespeare, in 75 seconds on two CPU cores.

    python examples/train_gpt.py TEXT [--steps 1200] [--out gpt-demo]

Prepares TEXT (one .txt file), holds out a tenth of its speeches, fits a bigram model for comparison and trains the GPT. Prints the
loss of both models on the held-out text, and a sample.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from fastdata import Loader, NextToken, TokenDataset, prep

BLOCK, BATCH, WIDTH, HEADS, LAYERS = 64, 16, 128, 4, 4


class Block(nn.Module):
    """Causal self-attention, then an MLP for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class GPT(nn.Module):
    """A pre-norm transformer; the embedding is also the output layer."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, WIDTH), nn.Parameter(torch.zeros(BLOCK, WIDTH))
        nn.init.normal_(self.token.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.token(inputs) + self.place[: inputs.shape[1]]
        return self.norm(self.blocks(x)) @ self.token.weight.T


@torch.no_grad()
def loss_on(data: TokenDataset, logits: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the mean cross-entropy over every token of a sequential dataset, in nats."""
    total, count, next_token = 0.0, 0, NextToken()
    with Loader(data, 64) as loader:
        for tokens in loader:
            inputs, targets = next_token(tokens[: tokens.valid])
            total += float(F.cross_entropy(logits(inputs).flatten(0, 1), targets.flatten(), reduction="sum"))
            count += int((targets >= 0).sum())
    return total / count


def bigram(data: TokenDataset, vocab: int) -> torch.Tensor:
    """Return log-probabilities [vocab, vocab] of the next token: counts of pairs, with 0.1 added to each."""
    counts, next_token = torch.full((vocab, vocab), 0.1), NextToken()
    with Loader(data, 64) as loader:
        for tokens in loader:
            inputs, targets = next_token(tokens)
            real = targets >= 0
            counts.index_put_((inputs[real], targets[real]), torch.ones(int(real.sum())), accumulate=True)
    return (counts / counts.sum(1, keepdim=True)).log()


def fit(model: GPT, data: TokenDataset, steps: int) -> None:
    """Train with AdamW, warm-up and cosine. Rows begin anywhere; an epoch has as many tokens as the text."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.1, cycle_momentum=False)
    next_token, step, started = NextToken(), 0, time.perf_counter()
    with Loader(data, BATCH, shuffle=True, seed=0, drop_last=True) as loader:
        while step < steps:
            for tokens in loader:  # uint16 [B, BLOCK + 1]
                inputs, targets = next_token(tokens)
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                if step % 100 == 0 or step == steps:
                    waiting = loader.stats().wait_s / (time.perf_counter() - started)
                    print(f"step {step}: loss {float(loss.detach()):.2f}, {waiting:.1%} of the time waiting for data", flush=True)
                if step == steps:
                    break


@torch.no_grad()
def write(model: GPT, data: TokenDataset, count: int) -> str:
    """Return a generated text of `count` tokens, starting after an end token."""
    generator, ids = torch.Generator().manual_seed(1), [data.end or 0]
    for _ in range(count):
        likely = model(torch.tensor([ids[-BLOCK:]]))[0, -1].topk(40)
        ids.append(int(likely.indices[torch.multinomial(likely.values.softmax(0), 1, generator=generator)]))
    return data.decode([ord("\n") if k == data.end else k for k in ids[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--out", type=Path, default=Path("gpt-demo"))
    args = parser.parse_args()
    torch.manual_seed(0)
    store = args.out / "text.fds"
    made = prep(args.text, store, tokenizer="bytes", split_on="\n\n")
    print(f"{made.kept} speeches, {made.tokens} tokens in {store}")

    train, held_out = TokenDataset(store, BLOCK).split(0.9, seed=0)
    pairs, whole = (TokenDataset(store, BLOCK, mode="sequential").split(0.9, seed=0)[k] for k in (0, 1))
    print(f"{train.num_tokens} tokens to train on, {held_out.num_tokens} held out, a vocabulary of {train.vocab_size}")
    table = bigram(pairs, train.vocab_size)
    baseline = loss_on(whole, lambda inputs: table[inputs])
    model, started = GPT(train.vocab_size), time.perf_counter()
    fit(model, train, args.steps)
    loss = loss_on(whole, model)
    print(
        f"held-out loss {loss:.3f} nats a token after {time.perf_counter() - started:.0f} s; the bigram model's is {baseline:.3f}"
    )
    print(write(model, train, 400))


if __name__ == "__main__":
    main()
