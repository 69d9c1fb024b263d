"""Errors of the exchange of images between nodes."""

from gcr.errors import Refused


class PeerUnusable(Refused):
    """`gcr pull --from`: no peer answers, or a peer does not know the token, has no certificate that is trusted, or is
    no `gcr exchange` of this version. The message names the peer. Nothing was brought.
    """

    code = "peer_unusable"


class ImagesDiffer(Refused):
    """`gcr pull --from`: peers, or a peer and the store elsewhere, have different images of this name, and the message
    says which have which. Nothing was brought: name only peers with the image that is meant.
    """

    code = "images_differ"


class PiecesMissing(Refused):
    """`gcr pull --from`: no peer has the rest of the image, or none sent anything for a minute; the message says how
    much is missing, and of which packs. What came stays for a day, and the next pull takes it up.
    """

    code = "pieces_missing"
