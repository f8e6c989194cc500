"""Q-learning with a replay buffer: rank 1 keeps what happened, rank 0 learns from it, the others act.

quorate run -n 4 examples/requests/replay_buffer.py
quorate run --virtual 6 examples/requests/replay_buffer.py
"""

import argparse
import random

import torch
from torch import Tensor

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, default=60, help="of each actor")
parser.add_argument("--updates", type=int, default=500, help="after the last episode")
options = parser.parse_args()

PLACES, LEARNER, BUFFER = 8, 0, 1  # a corridor of 8 places; at its right end there is a reward
world = quorate.join()
if world.size < 3:
    raise SystemExit("this needs at least 3 workers: one learns, one keeps, and the others act")
random.seed(world.rank)
torch.manual_seed(0)
values = torch.nn.Linear(PLACES, 2)  # of a step to the left, and to the right, from each place
buffer: list[Tensor] = []
episodes = 0


def add(steps: Tensor) -> None:
    """Rows of place, action, reward, next place."""
    global episodes
    buffer.extend(steps)
    del buffer[:-5000]
    episodes += 1


def sample(count: int) -> Tensor | None:
    return torch.stack(random.choices(buffer, k=count)) if buffer else None


def weights() -> dict[str, Tensor]:
    return dict(values.state_dict())


def q(places: Tensor) -> Tensor:
    return values(torch.nn.functional.one_hot(places.long(), PLACES).float())


def play(chance: float) -> Tensor:
    """One episode: with this chance a step is drawn, else it is the better one."""
    place, steps = 0, []
    while place < PLACES - 1 and len(steps) < 50:
        action = random.randrange(2) if random.random() < chance else int(q(torch.tensor([place])).argmax())
        after = max(0, place + (1 if action else -1))
        steps.append([place, action, float(after == PLACES - 1), after])
        place = after
    return torch.tensor(steps)


if world.rank == BUFFER:
    world.serve("add", add)
    world.serve("sample", sample)
    world.serve("episodes", lambda: episodes)
elif world.rank == LEARNER:
    world.serve("weights", weights)
    optimizer = torch.optim.Adam(values.parameters(), lr=0.01)
    left, all_episodes = options.updates, options.episodes * (world.size - 2)
    while left > 0:
        left -= world.ask(BUFFER, "episodes").wait() == all_episodes
        batch = world.ask(BUFFER, "sample", 64).wait()
        if batch is not None:
            place, action, reward, after = batch.unbind(1)
            with torch.no_grad():
                wanted = reward + 0.9 * (1 - reward) * q(after).max(1).values
            loss = (q(place).gather(1, action.long()[:, None])[:, 0] - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
else:
    for episode in range(options.episodes):
        values.load_state_dict(world.ask(LEARNER, "weights").wait())
        world.ask(BUFFER, "add", play(chance=1 - episode / options.episodes)).wait()
world.serve_until_done()
if world.is_first:
    print(f"the way to the reward takes {len(play(chance=0.0))} steps; the shortest takes {PLACES - 1}")
