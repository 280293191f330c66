"""Certificates to throw away, for tests of TLS.

    certificates = Certificates(tmp_path)
    with Cluster(security_protocol="SSL", **certificates.broker()) as cluster:
        consumer = Consumer(bootstrap_servers=cluster.bootstrap, **certificates.client())

Rules:
- A new authority is made for each object; nothing outside of `directory` believes it.
- Needs trustme (the extra `testing`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kohort.errors import ConfigError


class Certificates:
    """An authority, and what it signs, as PEM files in `directory`."""

    def __init__(self, directory: str | Path) -> None:
        try:
            import trustme
        except ImportError:
            raise ConfigError(
                "throw-away certificates need trustme; install kohort[testing]"
            ) from None
        self._directory = Path(directory)
        self._authority: Any = trustme.CA()
        self.ca_file = str(self._directory / "ca.pem")
        """The authority's own certificate."""
        self._authority.cert_pem.write_to_path(self.ca_file)

    def issue(self, *names: str, common_name: str | None = None) -> str:
        """A file with a key and a certificate for these names (host names, addresses)."""
        made = self._authority.issue_cert(*names, common_name=common_name)
        path = self._directory / f"{common_name or names[0]}.pem"
        path.touch(0o600)
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def broker(self, *names: str) -> dict[str, Any]:
        """Settings of a broker on `names` (default: this machine), which believes our clients."""
        return {
            "ssl_certificate_location": self.issue(*(names or ("localhost", "127.0.0.1"))),
            "ssl_ca_location": self.ca_file,
        }

    def client(self, user: str | None = None) -> dict[str, Any]:
        """Settings of a client that believes our brokers, with a certificate of its own for
        `user`."""
        settings = {"security_protocol": "SSL", "ssl_ca_location": self.ca_file}
        if user is not None:
            settings["ssl_certificate_location"] = self.issue(f"{user}.test", common_name=user)
        return settings
