"""Errors of `gcr serve`, of its file, its address and its jobs. Its answers to requests are in gcr.serve.refusals."""

from gcr.errors import Refused, UsageError


class BadServeConfig(UsageError):
    """The file of `gcr serve` cannot be used, and nothing was started: the message names the place and what is wrong
    ([serve](serve.md#configuration)).
    """

    code = "bad_serve_config"


class PortInUse(Refused):
    """`gcr serve` cannot listen where its file says, or `gcr exchange` or `gcr-llm-d-agent` where `--listen` says: the
    message names the address. Another program listens there, or the address is not of this machine.
    """

    code = "port_in_use"


class ModelTaken(Refused):
    """Another `gcr serve` has the model, or a job of that name runs with another command: the message says which.
    Nothing was touched.
    """

    code = "model_taken"


class NeverHealthy(Refused):
    """A server of `gcr serve` ended before it answered its health request, or did not answer it in time: `gcr logs`
    shows what it printed.
    """

    code = "never_healthy"
