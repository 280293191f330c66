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
OIDC = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "hidden",
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
    text = 'x.OAuthBearerLoginModule required clientId="me" clientSecret=s3 scope="a b";'
    assert jaas_options(text) == {
        "sasl_oauthbearer_client_id": "me",
        "sasl_oauthbearer_client_secret": "s3",
        "sasl_oauthbearer_scope": "a b",
    }


def test_jaas_in_single_quotes() -> None:
    """As Java reads them: either quote within the other, or behind a backslash."""
    text = """x required username='ann' password='a"b\\'c;' ;"""
    assert jaas_options(text) == {"sasl_username": "ann", "sasl_password": "a\"b'c;"}
    assert jaas_options("""x required password="it's";""") == {"sasl_password": "it's"}


def test_jaas_with_extensions() -> None:
    """Confluent Cloud finds the cluster by them."""
    text = """x required clientId='me' clientSecret='hidden'
        extension_logicalCluster="lkc-1" extension_identityPoolId='pool,2';"""
    without = {key: value for key, value in OIDC.items() if ".client." not in key}
    made = AdminConfig.from_mapping({**without, "sasl.jaas.config": text})
    assert made.sasl_oauthbearer_extensions == ("logicalCluster=lkc-1", "identityPoolId=pool,2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hidden",
        'x required password="hidden"',
        "x required",
        'x required username="ann" password="hidden";;',
        "x required username=ann password='hidden;",
        "x required username=ann'hidden';",
        'x required username="ann", password="hidden";',
    ],
)
def test_jaas_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config") as caught:
        jaas_options(text)
    assert "hidden" not in str(caught.value)


def test_a_jaas_option_that_is_not_known_is_refused() -> None:
    """It would change the login (a delegation token), and has been left out silently."""
    jaas = 'x required username="ann" password="hidden" tokenauth="true";'
    with pytest.raises(ConfigError, match="tokenauth") as caught:
        AdminConfig.from_mapping({"security.protocol": "SASL_SSL", "sasl.jaas.config": jaas})
    assert "hidden" not in str(caught.value)
    made = AdminConfig.from_mapping({"sasl.jaas.config": "Krb5LoginModule required x=y;"})
    assert made.security_protocol == "PLAINTEXT"  # no login


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
        ({**OIDC, "sasl.oauthbearer.extensions": "a=b,hidden"}, "NAME=VALUE"),
        ({**OIDC, "sasl.oauthbearer.extensions": "a-b=hidden"}, "NAME=VALUE"),
        ({**OIDC, "sasl.oauthbearer.extensions": "auth=hidden"}, "NAME=VALUE"),
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
