"""Issue 4, security: Kafka's names of security settings, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer
from kohort.client.common.config import AdminConfig, ConsumerConfig
from kohort.client.common.security_config import jaas_options
from kohort.errors import ConfigError

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "hidden",
}


def test_dotted_names_and_no_secret_in_the_repr() -> None:
    made = AdminConfig.from_mapping({**SCRAM, "ssl.ca.location": "/ca.pem"})
    assert (made.security_protocol, made.sasl_username) == ("SASL_SSL", "alice")
    assert made.uses_tls
    assert made.uses_sasl
    assert made.verifies_hostname
    assert "hidden" not in repr(made)


def test_a_java_properties_file_is_understood() -> None:
    made = ConsumerConfig.from_mapping(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
            ' username="alice" \n password="a\\"b;c";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/me.pem",
            "ssl.endpoint.identification.algorithm": "",
            "sasl.kerberos.service.name": "kafka",
        }
    )
    assert (made.sasl_username, made.sasl_password) == ("alice", 'a"b;c')
    assert (made.ssl_ca_location, made.ssl_certificate_location) == ("/ca.pem", "/me.pem")
    assert not made.verifies_hostname


def test_jaas_of_client_credentials() -> None:
    text = 'x.OAuthBearerLoginModule required clientId="me" clientSecret=s3 scope="a b" x="y";'
    assert jaas_options(text) == {
        "sasl_oauthbearer_client_id": "me",
        "sasl_oauthbearer_client_secret": "s3",
        "sasl_oauthbearer_scope": "a b",
    }


@pytest.mark.parametrize("text", ["", "hidden", 'x required password="hidden"', "x required"])
def test_jaas_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config") as caught:
        jaas_options(text)
    assert "hidden" not in str(caught.value)


def test_a_file_holds_the_password(tmp_path: Path) -> None:
    file = tmp_path / "word"
    file.write_text("hidden\n")
    without = {key: value for key, value in SCRAM.items() if key != "sasl.password"}
    made = AdminConfig.from_mapping({**without, "sasl.password.file": str(file)})
    assert made.sasl_password == "hidden"
    with pytest.raises(ConfigError, match="cannot be read"):
        AdminConfig.from_mapping({**without, "sasl.password.file": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"security.protocol": "TLS"}, "SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl_mechanism"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-512"),
        ({**SCRAM, "sasl.password": ""}, "sasl_password"),
        ({**SCRAM, "sasl.username": ""}, "sasl_username"),
        ({**SCRAM, "sasl.usrname": "x"}, "sasl_username"),
        ({**SCRAM, "ssl.truststore.type": "JKS"}, "keytool"),
        ({**SCRAM, "ssl.ca.location": "/a", "ssl.truststore.location": "/b"}, "twice"),
        ({**SCRAM, "sasl.mechanism": "OAUTHBEARER"}, "sasl_oauthbearer_token_provider"),
    ],
)
def test_what_cannot_work(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        AdminConfig.from_mapping(values)
    assert "hidden" not in str(caught.value)


def test_files_that_cannot_be_used_are_told_at_once(tmp_path: Path) -> None:
    """Before anything is connected, and without leaving a thread behind."""
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed" * 10)
    for role in (Admin, Producer, Consumer):
        for path, why in ((tmp_path / "none", "cannot be read"), (store, "PEM")):
            with pytest.raises(ConfigError, match=why):
                role(security_protocol="SSL", ssl_ca_location=str(path))
