"""JAX: a training step with Adam, compiled by XLA; its parameters and moments are donated to the next.

XLA's allocator makes VMM calls of its own. Preallocation is off, so that growth is seen.
"""

import hashlib
import os

from dialogue import parser, perform

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")

WIDTH, LAYERS, BATCH, UPDATES = 1024, 4, 256, 10


class Training:
    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        assert jax.devices()[0].platform == "gpu", "JAX sees no GPU"
        self.jax = jax
        keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 2)
        self.inputs, self.targets = (jax.random.normal(key, (BATCH, WIDTH)) for key in keys[LAYERS:])
        weights = [jax.random.normal(key, (WIDTH, WIDTH)) / 32 for key in keys[:LAYERS]]
        self.state = weights, *([jnp.zeros_like(each) for each in weights] for _moment in range(2))
        self.update = jax.jit(self._update, donate_argnums=0)

    def _loss(self, weights, inputs, targets):
        for each in weights:
            inputs = self.jax.numpy.tanh(inputs @ each)
        return ((inputs - targets) ** 2).mean()

    def _update(self, state, inputs, targets):
        weights, means, squares = state
        loss, gradients = self.jax.value_and_grad(self._loss)(weights, inputs, targets)
        means = [0.9 * mean + 0.1 * gradient for mean, gradient in zip(means, gradients, strict=True)]
        squares = [0.99 * square + 0.01 * gradient**2 for square, gradient in zip(squares, gradients, strict=True)]
        steps = (mean / (square**0.5 + 1e-8) for mean, square in zip(means, squares, strict=True))
        weights = [weight - 1e-3 * step for weight, step in zip(weights, steps, strict=True)]
        return (weights, means, squares), loss

    def step(self) -> str:
        for _ in range(UPDATES):
            self.state, loss = self.update(self.state, self.inputs, self.targets)
        return f"loss {float(loss).hex()}"

    def digest(self) -> str:
        state = hashlib.sha256()
        for leaf in self.jax.tree_util.tree_leaves(self.state):
            state.update(self.jax.device_get(leaf).tobytes())
        return state.hexdigest()


def main() -> None:
    options = parser(__doc__).parse_args()
    perform(options, Training())


if __name__ == "__main__":
    main()
