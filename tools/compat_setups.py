"""How the broker and the clients are set up for a test of librdkafka's: scenarios, and TLS.

Keys and certificates are made with openssl, for one run and 30 days; without it the test of TLS
skips itself.

The broker asks for no client certificate there: the test knows the alerts alone by which Java
refuses one (42, 40), and OpenSSL, which is under Python, sends another (48, unknown CA).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TLS_TEST = "0097"
LATENCY_TESTS = ("0055", "0127")
LATENCY_MULTIPLIER = 10
"""They want ten records to take 11 ms on average, and a record to come within 60 ms of the time
that the client waits by itself: where others want the processors too, most of that is waiting for
one. The first leaves itself out on CI."""
ACL_TESTS = ("0081", "0109", "0115", "0119")
"""They make ACLs, or call kafka-acls.sh."""
ACCESS_CONTROL = ("acls=true", "allow.everyone.if.no.acl.found=true")
PASSWORD = "of-no-secret"
CA, BROKER, CLIENT = "ca", "broker", "client"


@dataclass(frozen=True)
class Setup:
    """What differs from `kohort broker run` and plain clients."""

    broker: tuple[str, ...] = ()
    """Settings, KEY=VALUE."""
    client: tuple[str, ...] = ()
    """Lines of the suite's configuration file."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    relayed: bool = False
    """Clients begin at a relay, whose first answer comes a little later."""


def setup_of(number: str, scenario: str, directory: Path) -> Setup:
    """For one test; `directory` is for what has to be made."""
    if scenario == "noautocreate":
        return Setup(broker=("auto.create.topics.enable=false",))
    if number in ACL_TESTS:
        return Setup(broker=ACCESS_CONTROL)
    if number in LATENCY_TESTS:
        return Setup(client=(f"test.timeout.multiplier={LATENCY_MULTIPLIER}",))
    if number == TLS_TEST and shutil.which("openssl"):
        return tls(directory / "keys")
    return Setup()


def tls(keys: Path) -> Setup:
    """A broker that speaks TLS, and what the test wants to know of the keys."""
    shutil.rmtree(keys, ignore_errors=True)
    keys.mkdir(parents=True)
    make_keys(keys)
    at = {name: str(keys / name) for name in (path.name for path in keys.iterdir())}
    return Setup(
        relayed=True,
        broker=(
            "security.protocol=SSL",
            f"ssl.certificate.location={at['broker.pem']}",
            f"ssl.key.location={at['broker.key']}",
        ),
        client=(
            "security.protocol=ssl",
            f"ssl.ca.location={at['ca.pem']}",
            f"ssl.certificate.location={at['client.pem']}",
            f"ssl.key.location={at['client.key']}",
            f"ssl.key.password={PASSWORD}",
        ),
        environment={
            "SSL_client_auth": "none",
            "SSL_password": PASSWORD,
            "SSL_pkcs": at["client.p12"],
            "SSL_pub_pem": at["client.pem"],
            "SSL_pub_der": at["client.der"],
            "SSL_priv_pem": at["client.key"],
            "SSL_ca_pem": at["ca.pem"],
            "SSL_ca_der": at["ca.der"],
            "SSL_all_cas_pem": at["all_cas.pem"],
        },
    )


def make_keys(keys: Path) -> None:
    """A certificate authority, a broker's certificate for 127.0.0.1, a client's in all formats."""

    def openssl(*words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=keys, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"openssl {' '.join(words)}: {done.stderr}")

    self_signed = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30")
    for name in (CA, "unused"):
        openssl(
            *self_signed, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"
        )
    (keys / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name, hidden in ((BROKER, ("-nodes",)), (CLIENT, ("-passout", f"pass:{PASSWORD}"))):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            *hidden,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-days",
            "30",
            "-extfile",
            "names",
        )
    for name in (CA, CLIENT):
        openssl("x509", "-in", f"{name}.pem", "-outform", "der", "-out", f"{name}.der")
    secret = ("-passin", f"pass:{PASSWORD}", "-passout", f"pass:{PASSWORD}")
    openssl(
        "pkcs12",
        "-export",
        "-in",
        "client.pem",
        "-inkey",
        "client.key",
        "-certfile",
        "ca.pem",
        "-out",
        "client.p12",
        *secret,
    )
    (keys / "all_cas.pem").write_text(
        (keys / "ca.pem").read_text() + (keys / "unused.pem").read_text()
    )
