"""A local certificate authority and certificates signed by it, as files."""

from __future__ import annotations

from pathlib import Path

import trustme


class Authority:
    """Issues certificates; `ca` names its own, `cert` and `key` those of localhost."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.cert, self.key = self.issue("localhost")

    def issue(self, name: str) -> tuple[str, str]:
        """A certificate for this name and its key, which is its owner's alone."""
        issued = self.authority.issue_cert(name)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for blob in issued.cert_chain_pems:
            blob.write_to_path(cert, append=True)
        issued.private_key_pem.write_to_path(key)
        key.chmod(0o600)
        return str(cert), str(key)
