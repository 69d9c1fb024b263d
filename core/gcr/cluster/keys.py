"""The keys that the exchanges of a cluster have in common: one token, and one certificate with its key.

A node that pulls trusts that certificate alone, and looks at no name in it: only nodes of the cluster have its key. So
a node may have any address, and the certificate needs no authority. It has no end either, so no clock matters.
"""

import datetime
import hashlib
import secrets
from typing import Any, Self

from gcr.api.answers import Answer
from gcr.errors import LibraryMissing

_BEGIN = datetime.datetime(2000, 1, 1)
_NO_END = datetime.datetime(9999, 12, 31, 23, 59, 59)  # "no well-defined expiration date": RFC 5280, 4.1.2.5


class Keys(Answer, frozen=True, kw_only=True):
    """`certificate` and `key` are PEM."""

    token: str
    certificate: str
    key: str

    def __repr__(self) -> str:
        return f"Keys({self.name})"  # the rest is secret, and would be in a traceback

    @property
    def name(self) -> str:
        """Returns the hash of the certificate, by which an exchange says which keys it has: 64 hexadecimal digits."""
        return name_of(self.certificate.encode())

    @classmethod
    def made(cls) -> Self:
        """Returns new ones. Raises LibraryMissing."""
        certificate, key = _certificate()
        return cls(token=secrets.token_hex(32), certificate=certificate, key=key)


def name_of(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _certificate() -> tuple[str, str]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        text = f"the keys of an exchange need the Python module {error.name}: {error}"
        raise LibraryMissing(text, hint="pip install 'gpu-cr[exchange]'") from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gcr exchange of a cluster")])
    builder: Any = x509.CertificateBuilder()
    made = (
        builder.subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_NO_END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return made.public_bytes(serialization.Encoding.PEM).decode(), pem.decode()
