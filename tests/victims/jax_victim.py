"""JAX: XLA's own allocator (VMM calls of its own) and compiled steps. Preallocation is off, so that growth is seen."""

import argparse
import hashlib
import os
import time

from dialogue import say, serve

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")


class Model:
    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp
        import numpy

        assert jax.devices()[0].platform == "gpu", "JAX sees no GPU"
        self.numpy = numpy
        self.weights = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024)) / 64
        self.step_function = jax.jit(lambda w: w - 0.01 * jnp.tanh(w @ w.T))

    def step(self) -> None:
        self.weights = self.step_function(self.weights)

    def digest(self) -> str:
        return hashlib.sha256(self.numpy.asarray(self.weights).tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--interactive", action="store_true")
    options = parser.parse_args()
    model = Model()
    if options.interactive:
        model.step()
        serve(model.digest)
        return
    for _number in range(options.steps):
        model.step()
        time.sleep(options.pause)
    say(f"digest {model.digest()}")


if __name__ == "__main__":
    main()
