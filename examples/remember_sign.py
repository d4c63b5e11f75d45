"""Trains a policy that must remember: a sign at a maze's entrance tells where to turn at its end.

In such a T-maze (B. Bakker: Reinforcement Learning with Long Short-Term Memory, 2001), a policy
without a memory is right half of the time. PPO (J. Schulman et al., 2017) trains an LSTM by
sequences that go on where an episode ends: `resets` tells it where the next one begins.

    python examples/remember_sign.py --output=runs/remember_sign.png
"""

import argparse
import pathlib
import time

import keras
import matplotlib.figure
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf.keras

MAZES, STEPS, UNITS = 64, 128, 64
SIGNS, TO_WALK = np.zeros((2, MAZES), int)


def act(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Walks on (0) or turns left (1) or right (2), and returns rewards, ends and what is seen."""
    ends, hits_wall = (TO_WALK == 0) & (actions > 0), (TO_WALK == 0) != (actions > 0)
    rewards = np.where(ends, SIGNS * (2 * actions - 3), -0.1 * hits_wall)
    SIGNS[ends] = np.random.choice([-1, 1], ends.sum())
    TO_WALK[:] = np.where(ends, np.random.randint(5, 20, MAZES), TO_WALK - ~hits_wall)
    return rewards, ends, np.stack([SIGNS * ends, TO_WALK == 0, ends], 1).astype("float32")


class ResettingCell(keras.layers.LSTMCell):  # It begins anew where the last feature is 1.
    def call(self, inputs, states, training=False):
        return super().call(inputs, [state * (1 - inputs[:, -1:]) for state in states], training)


def surrogate(known: tf.Tensor, chances: tf.Tensor) -> tf.Tensor:
    """Returns PPO's loss [mazes, steps], with a bonus for entropy."""
    actions, before, gains = tf.unstack(known, axis=-1)
    ratios = tf.exp(tf.gather(chances, tf.cast(actions, "int32"), batch_dims=2) - before)
    least = tf.minimum(ratios * gains, tf.clip_by_value(ratios, 0.8, 1.2) * gains)
    return 0.01 * tf.reduce_sum(tf.exp(chances) * chances, -1) - least


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, default="runs/remember_sign.png")
    parser.add_argument("--rollouts", type=int, default=60)
    parser.add_argument("--stock", action="store_true", help="train with Keras's own layers")
    flags = parser.parse_args()
    keras.utils.set_random_seed(0)
    seen, *states = inputs = [keras.Input(shape) for shape in ((None, 3), (UNITS,), (UNITS,))]
    options, resets = {"return_sequences": True, "return_state": True}, {}
    layer = keras.layers.RNN(ResettingCell(UNITS), **options)
    if not flags.stock:
        layer, resets = cudnn_rnn_tf.keras.LSTM(UNITS, **options), {"resets": seen[..., 2] > 0}
    read, *after = layer(seen, initial_state=states, **resets)
    heads = [keras.layers.Dense(3, "log_softmax")(read), keras.layers.Dense(1)(read)]
    trained, policy = keras.Model(inputs, heads), tf.function(keras.Model(inputs, [*heads, *after]))
    trained.compile(keras.optimizers.Adam(3e-3, global_clipnorm=0.5), [surrogate, "mse"])
    states, shares, start, steps = [tf.zeros((MAZES, UNITS))] * 2, [], 0.0, [act(np.ones(MAZES))]
    for _ in range(flags.rollouts):
        first, steps = states, steps[-1:]
        for _ in range(STEPS):
            seen = steps[-1][2]
            chances, values, *states = policy([seen[:, None], *states])
            actions = np.argmax(chances[:, 0] + np.random.gumbel(size=(MAZES, 3)), 1)
            before = chances.numpy()[np.arange(MAZES), 0, actions]
            steps.append((*act(actions), seen, actions, before, values.numpy()[:, 0, 0]))
        won, ends, _, seen, *known, values = (np.stack(x, 1) for x in zip(*steps[1:], strict=True))
        gains = np.zeros_like(values)  # Generalized advantages, of J. Schulman et al., 2015.
        for t in reversed(range(STEPS - 1)):
            future = 0.98 * (values[:, t + 1] + 0.95 * gains[:, t + 1])
            gains[:, t] = won[:, t] + ~ends[:, t] * future - values[:, t]
        known = np.stack([*known, (gains - gains.mean()) / gains.std()], -1)
        trained.fit([seen, *first], [known, gains + values], MAZES, epochs=4, verbose=0)
        shares.append(np.mean(won[ends] > 0))
        start = start or time.perf_counter()  # The first rollout also traces the model.
    print(f"seconds of training after the first rollout: {time.perf_counter() - start:.2f}")
    print(f"turns in the last ten rollouts: {np.mean(shares[-10:]):.1%} are right")
    figure = matplotlib.figure.Figure(figsize=(6, 3), layout="constrained")
    figure.subplots(subplot_kw={"xlabel": "rollout", "ylabel": "right turns"}).plot(shares)
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(flags.output, dpi=80)


if __name__ == "__main__":
    main()
