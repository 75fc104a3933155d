"""The fault test suite: checks a connector while its platform, its network or the server fails.

The author of a connector writes a `Peer` (docs/guides/write-a-connector.md). A peer is the
platform, or a faithful fake of it, under the control of a test. Then this command

    python -m retinue.testing.fault_kit my_package.peer:MyPeer

runs every case, and prints a table of the results (the matrix). In tests, use `CASES`,
`create_peer` and `check_case`.
"""

from __future__ import annotations

from retinue.testing.fault_kit.harness import ContractBroken
from retinue.testing.fault_kit.peer import BasePeer, HostPort, Peer, PeerFault

__all__ = ["BasePeer", "ContractBroken", "HostPort", "Peer", "PeerFault"]
