"""Names of the images of a migration's rounds, each of which says of which migration it is."""

import re

_DIGITS = 12  # of a migration's id
_IMAGE = re.compile(r"migration-([0-9a-f]{12})-[0-9]+\Z")


def image_of(id: str, number: int) -> str:
    """Returns the name of the image of a round."""
    return f"migration-{id[:_DIGITS]}-{number}"


def migration_of(image: str) -> str | None:
    """Returns the first digits of the id of an image's migration, None for any other image."""
    found = _IMAGE.match(image)
    return found[1] if found else None


def is_of_migration(image: str) -> bool:
    """Returns whether an image has such a name. A job that is stopped into one is on its way to another node."""
    return migration_of(image) is not None
