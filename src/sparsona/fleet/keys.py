"""Keys of a fleet: its own authority, the server's certificate, and a key for every node."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsona.fleet import FleetError, needs_flower

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

NODE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


def make_authority(folder: Path, hosts: Sequence[str], days: int) -> None:
    """A new authority and a server certificate for these names and addresses: ca.crt, server.pem, server.key.

    The authority's own key is used once and not kept: who wants another server certificate makes new keys.
    """
    needs_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority, server = _new_key(), _new_key()
    now = datetime.datetime.now(datetime.UTC)
    start, end = now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=days)

    def certificate(name: str, key: EllipticCurvePrivateKey) -> Any:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sparsona fleet")])
        form = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        form = form.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
        return form.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)

    trusted = certificate("Sparsona fleet", authority)
    trusted = trusted.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    trusted = trusted.add_extension(_usage(sign=False), critical=True)
    served = certificate(hosts[0], server)
    served = served.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    served = served.add_extension(_usage(sign=True), critical=True)
    served = served.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    served = served.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    served = served.add_extension(identifier, critical=False)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(folder / "ca.crt", _pem(trusted.sign(authority, hashes.SHA256())))
    _write(folder / "server.pem", _pem(served.sign(authority, hashes.SHA256())))
    _write(folder / "server.key", _private(server, ssh=False), secret=True)


def make_node_key(folder: Path, name: str, client: int) -> None:
    """A node's key: NAME.key stays with the node; NAME.pub, which begins the server's trust, names its client."""
    needs_flower()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = _new_key()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(folder / f"{name}.key", _private(key, ssh=True), secret=True)
    _write(folder / f"{name}.pub", public + f" {name} client-{client}\n".encode())


def read_public(file: Path) -> tuple[str, int, str]:
    """The name and the client of a node, and its key, as its .pub file has them."""
    words = file.read_text(encoding="utf-8").split()
    label = re.fullmatch(r"client-(\d{1,6})", words[3]) if len(words) == 4 else None
    if label is None or not words[0].startswith("ecdsa-sha2-nistp") or not NODE_NAME.fullmatch(words[2]):
        raise FleetError(f"{file} is not a public key of a node; make one with: sparsona fleet keys")
    return words[2], int(label[1]), f"{words[0]} {words[1]}"


def roster(folder: Path) -> dict[int, tuple[str, Path]]:
    """The nodes that a server trusts, by client: all .pub files of a folder; one client, one key."""
    nodes: dict[int, tuple[str, Path]] = {}
    seen: dict[str, Path] = {}
    for file in sorted(folder.glob("*.pub")):
        name, client, key = read_public(file)
        if client in nodes:
            raise FleetError(f"{nodes[client][1]} and {file} are both keys of client {client}; remove one of them")
        if key in seen:
            raise FleetError(f"{seen[key]} and {file} are the same key; each node needs its own")
        nodes[client] = (name, file)
        seen[key] = file
    return nodes


def check_certificate(file: Path, host: str | None = None) -> datetime.datetime:
    """When a certificate ends; raises FleetError if it is missing or out of date, or not for this host."""
    needs_flower()
    from cryptography import x509

    if not file.is_file():
        raise FleetError(f"{file} is missing; make keys with: sparsona fleet keys")
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise FleetError(f"{file} is not a certificate: {error}") from error
    now = datetime.datetime.now(datetime.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        raise FleetError(
            f"{file} is only valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}; make new keys with: sparsona fleet keys"
        )
    if host is not None:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = [str(n) for kind in (x509.DNSName, x509.IPAddress) for n in names.get_values_for_type(kind)]
        if host not in known:
            raise FleetError(f"{file} is for {', '.join(known)}, not for {host}; make keys with --host {host}")
    return end


def check_private(file: Path) -> None:
    """Raise FleetError if a node's private key is missing, or can be read by others, or is none."""
    needs_flower()
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    if not file.is_file():
        raise FleetError(f"{file} is missing; make the node's key with: sparsona fleet keys")
    if file.stat().st_mode & 0o077:
        raise FleetError(f"{file} is readable by other users; make it private with: chmod 600 {file}")
    try:
        load_ssh_private_key(file.read_bytes(), None)
    except ValueError as error:
        raise FleetError(f"{file} is not a private key: {error}") from error


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?", host):
            raise FleetError(
                f'host: "{host}" is not allowed; expected a name such as server.example.org, or an IP address'
            ) from None
        return x509.DNSName(host)


def _usage(sign: bool) -> Any:
    from cryptography import x509

    rest = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "encipher_only", "decipher_only"), False
    )
    return x509.KeyUsage(digital_signature=sign, key_agreement=False, key_cert_sign=not sign, crl_sign=not sign, **rest)


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = certificate.public_bytes(Encoding.PEM)
    return pem


def _private(key: EllipticCurvePrivateKey, ssh: bool) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    form = PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, data: bytes, secret: bool = False) -> None:
    """Write a new file; only its owner can ever read a secret one. An existing file is never replaced."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except FileExistsError:
        raise FleetError(f"{path} already exists, and keys are never replaced; choose another folder or name") from None
    with os.fdopen(number, "wb") as f:
        f.write(data)
