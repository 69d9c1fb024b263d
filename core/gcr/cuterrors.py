"""Errors of a cut: one instant of a job that runs on several nodes."""

from gcr.errors import Refused, RolledBack


class CutTaken(Refused):
    """A cut of this id is under way on the node, or has suspended a job there: every cut has an id of its own."""

    code = "cut_taken"


class NoSuchCut(Refused):
    """The node takes part in no cut of this id: the cut is over there, or its daemon has died since; `gcr cluster
    recover` says where the job stands.
    """

    code = "no_such_cut"


class CannotHold(Refused):
    """This way to suspend a job, or to bring it back, cannot wait for other nodes; the message names it. A process
    that gcr did not start is one, and a driver that saves no living process another (AMD, without `--data-only`).
    """

    code = "cannot_hold"


class NotOneCut(Refused):
    """The nodes do not have the job suspended by one and the same cut, and the message says where it stands: `gcr
    cluster recover` has it run everywhere.
    """

    code = "not_one_cut"


class CutIncomplete(Refused):
    """An image of a job over nodes is not whole: a part is missing, or its cut was given up before every part was
    durable; the message says which. Nothing was touched.
    """

    code = "cut_incomplete"


class CutGivenUp(RolledBack):
    """The coordinator of a cut gave up, or did not say in time (`cut_s`) that every node had come as far: the job runs
    on here, or is as suspended as before.
    """

    code = "cut_given_up"


class CutFailed(RolledBack):
    """A node did not do its part of a cut; the job runs on every node, or is as suspended as before on every node. The
    message has the node's own error.
    """

    code = "cut_failed"


class CutUnsettled(RolledBack):
    """A node does not answer, or did not bring its part of the job back: the job may be suspended there, and run on the
    others. Once the node answers: `gcr cluster recover`.
    """

    code = "cut_unsettled"
