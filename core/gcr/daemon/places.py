"""The end of a private place (gcr.parked): the job runs again that came back from it."""

from gcr.job.decisions import DecisionRecord
from gcr.parked import place_of


def forget_place(decision: DecisionRecord | None) -> None:
    """Removes the private place of a job that runs again, if its decision names one. Raises nothing."""
    if decision and decision.image and (place := place_of(decision.image.store)):
        place.remove()
